#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "levin/fabric/late_flags.h"

namespace levin::detail {

/// Finds the first loss of a run that is nan or inf, and warns of an epoch whose steps all returned none. Losses on a
/// device are looked at together, 64 to 128 batches later, when they have long been there; at the end of an epoch all
/// have been seen. There the ranks share what they find, so all know of it at the same batch. So they do on the CPU
/// where they `share`; else each rank sees its own losses, at once.
class LossWatch {
 public:
  struct Found {
    int64_t epoch = 0, batch = 0;
  };

  LossWatch() = default;
  /// `warns`: of the first one, with a line of its rank.
  LossWatch(bool warns, Fabric& fabric) : warns_(warns), fabric_(&fabric), late_(&fabric) {}
  std::optional<Found> first_bad() const { return found_; }
  /// Called before the first loss.
  void share() { shares_ = true; }
  /// What was found or is still under way is of weights that are gone.
  void forget();

  /// What a training step returned; an empty tensor is none.
  void add(const at::Tensor& loss, int64_t epoch, int64_t batch);
  /// `trains`: a step without a loss trains nothing.
  void end_epoch(int64_t epoch, bool trains);

 private:
  void note(int64_t epoch, int64_t batch);

  bool warns_ = false;
  Fabric* fabric_ = nullptr;
  std::optional<Found> found_;
  bool warned_none_ = false;
  int64_t steps_ = 0, losses_ = 0;
  bool shares_ = false;
  LateFlags late_;
};

}  // namespace levin::detail
