#pragma once

#include "levin/optim/grouped.h"

namespace levin::optim::detail {

// Updates on the CPU by plain loops, the numbers of torch's fused kernels. Those start all threads for every tensor,
// however small: on a busy machine a bias of 8 elements takes as long as a matrix of a million.

/// Parameters up to this many elements are updated here, larger ones by torch's kernels.
inline constexpr int64_t kPlainNumel = 4096;

/// Whether the kernels of Levin's own (fused_step/adam.h) run where the parameter is.
inline bool has_kernels(const Tensor& param) {
  return param.is_cpu() || param.is_cuda();
}

inline bool is_small_on_cpu(const Tensor& param) {
  return param.is_cpu() && param.numel() <= kPlainNumel;
}

using kernels::AdamNumbers;
using kernels::SgdNumbers;

void plain_sgd(Bucket& bucket, const SgdNumbers& numbers, const DeviceScale& scale);

/// The steps are counted already.
void plain_adam(Bucket& bucket, const AdamNumbers& numbers, const DeviceScale& scale);

struct AdagradNumbers {
  double lr, lr_decay, weight_decay, eps;
  bool maximize;
};
/// The steps are counted already.
void plain_adagrad(Bucket& bucket, const AdagradNumbers& numbers, const DeviceScale& scale);

}  // namespace levin::optim::detail
