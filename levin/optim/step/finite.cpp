#include "levin/optim/step/finite.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "levin/core/parallel.h"
#include "levin/optim/step/by_device.h"

namespace levin::optim {
namespace {

/// Bits of the exponent, all of which are set in inf and nan alone.
template <class Bits, Bits Exponent>
bool are_finite(const void* data, int64_t count) {
  constexpr int64_t kBlock = 4096;
  const auto* bits = static_cast<const Bits*>(data);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    Bits bad = 0;
    for (int64_t i = begin; i < end; ++i) bad |= static_cast<Bits>((bits[i] & Exponent) == Exponent);
    if (bad != 0) return false;
  }
  return true;
}

bool are_finite(c10::ScalarType type, const char* data, int64_t count) {
  if (type == at::kDouble) return are_finite<uint64_t, 0x7ff0000000000000>(data, count);
  if (type == at::kFloat) return are_finite<uint32_t, 0x7f800000>(data, count);
  if (type == at::kHalf) return are_finite<uint16_t, 0x7c00>(data, count);
  return are_finite<uint16_t, 0x7f80>(data, count);  // bfloat16
}

bool has_exponent(c10::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

bool is_finite_on_host(const Tensor& tensor) {
  constexpr int64_t kGrain = 1 << 16;
  if (!tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) return tensor.isfinite().all().item<bool>();
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  const int64_t count = tensor.numel(), size = static_cast<int64_t>(tensor.element_size());
  if (count <= kGrain) return are_finite(tensor.scalar_type(), data, count);
  std::atomic<bool> finite = true;
  parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    if (!are_finite(tensor.scalar_type(), data + begin * size, end - begin)) finite = false;
  });
  return finite;
}

}  // namespace

bool all_finite(std::span<const Tensor> tensors) {
  std::vector<Tensor> elsewhere;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0 || tensor.is_meta() || tensor.layout() != at::kStrided ||
        !has_exponent(tensor.scalar_type()))
      continue;
    if (!tensor.is_cpu())
      elsewhere.push_back(tensor.detach());
    else if (!is_finite_on_host(tensor))
      return false;
  }
  if (elsewhere.empty()) return true;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> largest;
  for (auto& part : detail::by_device_and_dtype(elsewhere))
    for (auto& norm : at::_foreach_norm(part.tensors, INFINITY))
      largest.push_back(norm.to(elsewhere[0].device(), at::kDouble));
  return at::stack(largest).isfinite().all().item<bool>();
}

}  // namespace levin::optim
