#include "levin/testing/tensors.h"

#include <cmath>
#include <cstring>

#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>

#include "levin/core/error.h"

namespace levin::testing {

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  LEVIN_CHECK(a.sizes() == b.sizes(), "[testing] tensors of shapes ", a.sizes(), " and ", b.sizes(), " are compared");
  if (a.numel() == 0) return 0;
  return (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs().max().item<double>();
}

double max_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  LEVIN_CHECK(a.size() == b.size() && !a.empty(), "[testing] lists of ", a.size(), " and ", b.size(),
              " tensors are compared");
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto difference = max_difference(a[i], b[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const auto x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

}  // namespace levin::testing
