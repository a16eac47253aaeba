#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "levin/nn/interceptor.h"

namespace torch::nn {
class Module;
}

namespace levin::detail {

/// The name of a span of a unit: "nn.Module: Linear_0 [encoder.fc]".
struct UnitSpanName {
  /// "Linear_0", "encoder.fc"
  std::string module, path;

  std::string text() const;
  /// False when it is no such name.
  static bool parse(const std::string& text, UnitSpanName& name);
};

/// Which unit made a node of the autograd graph. Nodes are numbered by the thread that makes them, so a call of a unit
/// is a range of numbers: operators of backward, which carry the number of their node, belong to the unit of forward.
class UnitCalls {
 public:
  explicit UnitCalls(std::vector<UnitSpanName> units) : units_(std::move(units)) {}

  const std::vector<UnitSpanName>& units() const { return units_; }
  /// Any thread may call.
  void add(size_t unit, uint64_t thread, int64_t first, int64_t last);
  /// The graphs of earlier calls are gone.
  void forget();
  /// The innermost unit whose call made a node; null for none.
  const UnitSpanName* find(uint64_t thread, int64_t node) const;

 private:
  struct Range {
    uint64_t thread;
    int64_t first, last;
    size_t unit;
  };

  std::vector<UnitSpanName> units_;
  mutable std::mutex mutex_;
  mutable std::vector<Range> ranges_;
  mutable bool is_sorted_ = true;
};

/// Spans of the calls of a model's units, while it lives. Where nothing is recorded, a call costs a few nanoseconds.
class UnitSpans {
 public:
  UnitSpans() = default;
  explicit UnitSpans(torch::nn::Module& root);

  /// Null when the model has no units. It outlives this.
  const std::shared_ptr<UnitCalls>& calls() const { return calls_; }

 private:
  std::shared_ptr<UnitCalls> calls_;
  std::vector<Attachment> attachments_;
};

/// The units of a model, with the names of their spans; none where only the model itself is one.
std::vector<std::pair<UnitSpanName, Unit*>> named_units(torch::nn::Module& root);

/// The calls of several models.
using AllUnitCalls = std::vector<std::shared_ptr<UnitCalls>>;
const UnitSpanName* find_unit(const AllUnitCalls& all, uint64_t thread, int64_t node);

}  // namespace levin::detail
