#include "levin/kernels/cross_entropy/cross_entropy.h"

#include <ATen/Functions.h>

#include "levin/compile/patterns/match.h"
#include "levin/compile/patterns/patterns.h"
#include "levin/core/error.h"

namespace levin::compile {
namespace {

/// logits, targets and the gradient of the loss to the loss and the number of targets; the gradient takes the place of
/// the logits.
class CrossEntropyCall final : public Call {
 public:
  CrossEntropyCall(int64_t ignore_index, bool mean, bool has_gradient)
      : ignore_index_(ignore_index), mean_(mean), has_gradient_(has_gradient) {}
  std::string name() const override { return "cross_entropy"; }
  void run(std::span<const Tensor> reads, std::span<const Tensor> writes) override {
    const auto &logits = reads[0], &targets = reads[1];
    const auto count = targets.ne(ignore_index_).sum().to(at::kFloat);
    const auto losses = at::empty(
        targets.sizes(), targets.options().dtype(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
    kernels::CrossEntropyStep step{.classes = logits.size(1), .ignore_index = ignore_index_};
    if (has_gradient_) {
      step.scale = mean_ ? reads[2].to(at::kFloat).div(count) : reads[2].to(at::kFloat);
      kernels::cross_entropy_step(logits, targets, losses, step);
    } else {
      kernels::cross_entropy_losses(logits, targets, losses, step);
    }
    const auto sum = losses.sum();
    writes[0].copy_(mean_ ? sum.div(count) : sum);
    writes[1].copy_(count);
  }

 private:
  int64_t ignore_index_;
  bool mean_, has_gradient_;
};

}  // namespace

std::string fuse_cross_entropy(const PatternContext& context) {
  auto& graph = context.graph;
  int count = 0;
  for (bool again = true; again;) {
    again = false;
    const GraphIndex index(graph);
    const Match match(graph, index);
    const auto only_reader = [&](const View& view) -> int32_t {
      const auto& readers = index.readers(view);
      return readers.size() == 1 && index.is_inner(view.storage) ? readers[0] : -1;
    };
    for (size_t i = 0; i < graph.nodes.size() && !again; ++i) {
      const auto& loss = graph.nodes[i];
      if (!loss.is("aten::nll_loss_forward") || loss.tensor("weight")) continue;
      const auto reduction = Match::number(loss, "reduction"), ignored = Match::number(loss, "ignore_index");
      if (!reduction || !ignored || (*reduction != 1 && *reduction != 2)) continue;
      // What nll_loss reads may be a cast of the log-probabilities.
      const auto read = *loss.tensor("self");
      auto made = match.whole_maker(read);
      int32_t widened = -1;
      if (made >= 0 && match.node(made).is("aten::_to_copy") && at::isFloatingType(match.node(made).reads[0].dtype)) {
        widened = made;
        made = match.whole_maker(match.node(widened).reads[0]);
      }
      if (made < 0) continue;
      const auto probabilities = widened < 0 ? read : match.node(widened).reads[0];
      const auto& softmax = match.node(made);
      if (!softmax.is("aten::_log_softmax") || softmax.writes[0].dim() != 2 || !softmax.writes[0].is_contiguous() ||
          Match::number(softmax, "dim").value_or(-2) != 1)
        continue;
      // Float logits may be a cast of what the product gave.
      View logits = softmax.reads[0];
      int32_t cast = -1;
      if (const auto maker = match.whole_maker(logits);
          maker >= 0 && match.node(maker).is("aten::_to_copy") && index.readers(logits).size() == 1) {
        cast = maker;
        const auto& source = match.node(maker).reads[0];
        if (!source.is_contiguous()) continue;
        logits = source;
        logits.sizes = softmax.reads[0].sizes;
        logits.strides = softmax.reads[0].strides;
      }
      // Nobody else may see them, since the gradient takes their place.
      const auto& memory = graph.storages[static_cast<size_t>(logits.storage)];
      if (!logits.is_contiguous() || memory.enters || memory.leaves || logits.version == 0 || !match.stays(logits) ||
          index.readers(logits).size() != 1)
        continue;
      // Backward: nll_loss_backward reads the probabilities, and the gradient of log-softmax reads both.
      auto readers = index.readers(probabilities);
      if (widened >= 0) readers.insert(readers.end(), index.readers(read).begin(), index.readers(read).end());
      int32_t backward = -1, softmax_backward = -1, others = 0;
      for (const auto place : readers) {
        const auto& node = match.node(place);
        if (place == static_cast<int32_t>(i) || place == widened) continue;
        if (node.is("aten::nll_loss_backward"))
          backward = place;
        else if (node.is("aten::_log_softmax_backward_data"))
          softmax_backward = place;
        else
          ++others;
      }
      if (others > 0 || backward < 0 || softmax_backward < 0) continue;
      const auto& of_loss = match.node(backward);
      const auto& of_softmax = match.node(softmax_backward);
      int32_t narrowed = only_reader(of_loss.writes[0]);
      if (narrowed == softmax_backward) {
        narrowed = -1;
      } else if (narrowed < 0 || !match.node(narrowed).is("aten::_to_copy") ||
                 only_reader(match.node(narrowed).writes[0]) != softmax_backward) {
        continue;
      }
      // The gradient is wanted in the dtype of the logits.
      auto gradient = of_softmax.writes[0];
      int32_t last = softmax_backward;
      if (gradient.dtype != logits.dtype) {
        last = only_reader(gradient);
        if (last < 0 || !match.node(last).is("aten::_to_copy") || match.node(last).writes[0].dtype != logits.dtype)
          continue;
        gradient = match.node(last).writes[0];
      }
      if (!index.is_inner(gradient.storage) || !gradient.is_contiguous() || gradient.numel() != logits.numel())
        continue;
      const auto targets = *loss.tensor("target"), grad = *of_loss.tensor("grad_output");
      if (targets.dim() != 1 || !match.stays(targets) || grad.numel() != 1) continue;
      // Nobody may read the loss before its gradient is made: the two are made together, there.
      bool early = false;
      for (const auto& view : loss.writes)
        for (const auto place : index.readers(view)) early = early || (place < backward);
      const auto total = loss.writes.size();
      if (early || total != 2) continue;
      if (grad.version != index.last_version(grad.storage)) continue;

      auto writes = std::vector<View>{loss.writes[0], loss.writes[1], logits};
      auto& place = graph.nodes[static_cast<size_t>(backward)];
      const auto from = gradient.storage, to = logits.storage;
      place.call = std::make_shared<CrossEntropyCall>(static_cast<int64_t>(*ignored), *reduction == 1, true);
      place.op.reset();
      place.args.clear();
      place.results.clear();
      place.reads = {logits, targets, grad};
      place.writes = writes;
      std::vector<bool> dead(graph.nodes.size(), false);
      for (const auto gone : {static_cast<int32_t>(i), made, cast, widened, narrowed, softmax_backward, last})
        if (gone >= 0) dead[static_cast<size_t>(gone)] = true;
      for (auto& node : graph.nodes) {
        const auto follow = [&](View& view) {
          if (view.storage == from) view.storage = to;
        };
        for (auto& view : node.reads) follow(view);
        for (auto& arg : node.args) {
          if (auto* view = std::get_if<View>(&arg)) follow(*view);
          if (auto* list = std::get_if<std::vector<std::optional<View>>>(&arg))
            for (auto& view : *list)
              if (view) follow(*view);
        }
      }
      graph.erase(dead);
      graph.has_other_bits = true;
      ++count;
      again = true;
    }
  }
  return count == 0 ? std::string() : levin::detail::concat("cross entropy: ", count, " times, in place of the logits");
}

}  // namespace levin::compile
