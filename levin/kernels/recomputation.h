#pragma once

#include <span>

#include <ATen/core/Tensor.h>

/// Activation checkpointing runs a unit again for what its operations save for backward, not for its result. torch's
/// own operations save before they compute: the last one is stopped in time. One that is a torch::autograd::Function
/// computes first, so it asks here.
namespace levin::kernels {

using at::Tensor;

/// Before an operation computes. `saved` is what autograd will save of it; undefined tensors do not count. True: with
/// these backward has all that it needs, and nobody looks at the result, so memory without values will do. May also end
/// the forward by an exception.
bool is_result_spare(std::span<const Tensor> saved);

/// Who answers on this thread, from when it is made. They nest.
class Recomputation {
 public:
  Recomputation();
  virtual ~Recomputation();
  Recomputation(const Recomputation&) = delete;
  Recomputation& operator=(const Recomputation&) = delete;

  virtual bool has_all_with(std::span<const Tensor> saved) = 0;

 private:
  Recomputation* const outer_;
};

}  // namespace levin::kernels
