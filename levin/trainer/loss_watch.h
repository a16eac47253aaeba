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

/// Finds the first loss of a run that is nan or inf, and warns of an epoch whose steps all returned none. Losses on a
/// device are looked at together, 64 to 128 batches later, when they have long been there; at the end of an epoch all
/// have been seen. There the ranks share what they find, so all know of it at the same batch.
class LossWatch {
 public:
  struct Found {
    int64_t epoch = 0, batch = 0;
  };

  LossWatch() = default;
  /// `warns`: of the first one, with a line of its rank.
  LossWatch(bool warns, Fabric& fabric) : warns_(warns), fabric_(&fabric) {}
  std::optional<Found> first_bad() const { return found_; }

  /// What a training step returned; an empty tensor is none.
  void add(const at::Tensor& loss, int64_t epoch, int64_t batch);
  /// `trains`: a step without a loss trains nothing.
  void end_epoch(int64_t epoch, bool trains);

 private:
  /// Which of some losses are not finite, on their way to the host.
  struct Flags {
    at::Tensor values;
    std::vector<int64_t> batches;
    int64_t epoch = 0;
    std::optional<c10::Event> arrived = {};
  };
  void send(int64_t epoch);
  /// Leaves as many groups for later.
  void look(size_t later);
  void note(int64_t epoch, int64_t batch);

  bool warns_ = false;
  Fabric* fabric_ = nullptr;
  std::optional<Found> found_;
  bool warned_none_ = false;
  int64_t steps_ = 0, losses_ = 0;
  std::vector<at::Tensor> pending_;
  std::vector<int64_t> batches_;
  std::deque<Flags> sent_;
};

}  // namespace levin::detail
