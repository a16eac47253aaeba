#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace levin {
class Fabric;
}

namespace levin::detail {

/// Which of many numbers on a device are nan or inf, without waiting for it: they are looked at together, 64 to 128
/// additions later, when they have long been there. The ranks share what they find, so all know of it at the same
/// addition: every rank must add as often.
class LateFlags {
 public:
  LateFlags() = default;
  /// `fabric` may be null: one rank.
  explicit LateFlags(Fabric* fabric) : fabric_(fabric) {}

  /// A tensor of one element, and what it is of. Returns the label of the first bad one that has become known.
  std::optional<int64_t> add(const at::Tensor& value, int64_t label);
  /// Waits for all that were added. Every rank must call.
  std::optional<int64_t> finish();

 private:
  struct Sent {
    at::Tensor values;
    std::vector<int64_t> labels;
    std::optional<c10::Event> arrived = {};
  };
  void send();
  /// Leaves as many groups for later.
  std::optional<int64_t> look(size_t later);

  Fabric* fabric_ = nullptr;
  std::vector<at::Tensor> pending_;
  std::vector<int64_t> labels_;
  std::deque<Sent> sent_;
};

}  // namespace levin::detail
