#pragma once

#include <cstdint>

namespace levin {

/// Counts the floating point operations of matrix products, convolutions and attention on all threads while it lives,
/// forward and backward, from the shapes that the operators are given. A multiply-add counts as two. One at a time.
///
///     levin::FlopCounter counter;
///     loss = model(x).sum();
///     loss.backward();
///     double flops = counter.flops();
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  double flops() const;

 private:
  uint64_t handle_ = 0;
};

}  // namespace levin
