#pragma once

#include <optional>

#include "levin/compile/graph.h"

/// Helpers to look at what a value was made of.
namespace levin::compile {

class Match {
 public:
  Match(const Graph& graph, const GraphIndex& index) : graph_(graph), index_(index) {}

  /// Whether a tensor is all that was written, in the same order.
  static bool is_whole(const View& view, const View& written) {
    return view.storage == written.storage && view.dtype == written.dtype && view.offset == written.offset &&
           (view.same_place(written) ||
            (view.is_contiguous() && written.is_contiguous() && view.numel() == written.numel()));
  }
  /// The node that made a value of the step which nobody writes again; -1: there is none.
  int32_t maker(const View& view) const {
    return index_.is_inner(view.storage) && view.version == 1 ? index_.writer(view) : -1;
  }
  /// ... whose only result is the value.
  int32_t whole_maker(const View& view) const {
    const auto made = maker(view);
    if (made < 0) return -1;
    const auto& node = graph_.nodes[static_cast<size_t>(made)];
    return node.op && node.writes.size() == 1 && is_whole(view, node.writes[0]) ? made : -1;
  }
  const Node& node(int32_t place) const { return graph_.nodes[static_cast<size_t>(place)]; }
  /// A number of an operator's argument, also where it is a tensor without dimensions on the host.
  static std::optional<double> number(const Node& node, std::string_view argument) {
    const auto* value = node.number(argument);
    if (!value) return std::nullopt;
    if (value->isScalar()) return value->toScalar().toDouble();
    if (value->isTensor() && value->toTensor().defined() && value->toTensor().dim() == 0 && value->toTensor().is_cpu())
      return value->toTensor().item().toDouble();
    return std::nullopt;
  }
  /// The tensor is read, and it is not written again in the step.
  bool stays(const View& view) const { return index_.last_version(view.storage) == view.version; }

 private:
  const Graph& graph_;
  const GraphIndex& index_;
};

/// Other strides for dimensions, where a view steps along them.
struct Relayout {
  /// Of the written tensor, its dimensions of more than one element: stride before and after.
  std::vector<std::pair<int64_t, int64_t>> strides;

  std::optional<View> operator()(const View& view) const {
    if (view.offset != 0) return std::nullopt;
    auto moved = view;
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      if (view.sizes[d] == 1) continue;
      bool found = false;
      for (const auto& [before, after] : strides)
        if (view.strides[d] == before) {
          moved.strides[d] = after;
          found = true;
          break;
        }
      if (!found) return std::nullopt;
    }
    return moved;
  }
};

}  // namespace levin::compile
