#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/linear_detail.h"
#include "levin/kernels/linear/linear_launch.h"

namespace levin::kernels::detail {
namespace {

Tensor column_sum_cuda(const Tensor& given, at::ScalarType dtype) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto x = given.contiguous();
  if (x.numel() == 0) return at::zeros({x.size(1)}, x.options().dtype(dtype));
  auto result = at::empty({x.size(1)}, x.options().dtype(dtype));
  ColumnSum sum;
  sum.from = x.const_data_ptr(), sum.to = result.mutable_data_ptr();
  sum.rows = x.size(0), sum.columns = x.size(1);
  sum.from_type = number_type("column_sum", x.scalar_type()), sum.to_type = number_type("column_sum", dtype);
  sum.aligned = is_pack_aligned(sum.from);
  sum.parts = column_sum_parts(sum.rows, sum.columns, sum.from_type,
                               at::cuda::getCurrentDeviceProperties()->multiProcessorCount);
  Tensor partials;
  if (sum.parts > 1) {
    partials = at::empty({sum.parts, sum.columns},
                         x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
    sum.partials = partials.mutable_data_ptr();
  }
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch_column_sum(sum, c10::cuda::getCurrentCUDAStream().stream())));
  return result;
}

}  // namespace

void register_linear_cuda(torch::Library& library) {
  library.impl("column_sum", column_sum_cuda);
}

}  // namespace levin::kernels::detail
