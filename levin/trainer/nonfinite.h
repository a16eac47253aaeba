#pragma once

#include <cstdint>
#include <string>

#include "levin/core/error.h"

namespace levin {

/// Thrown, on every rank, when on_nonfinite is "stop" and the loss or the gradients of a step are nan or inf. On the
/// CPU the step was not made: weights, optimizers and counters are those before its batch, or before its window of
/// accumulation.
class NonFiniteError : public Error {
 public:
  NonFiniteError(int64_t epoch, int64_t batch_idx, const std::string& line)
      : Error(line), epoch_(epoch), batch_idx_(batch_idx) {}
  int64_t epoch() const { return epoch_; }
  int64_t batch_idx() const { return batch_idx_; }

 private:
  int64_t epoch_, batch_idx_;
};

}  // namespace levin
