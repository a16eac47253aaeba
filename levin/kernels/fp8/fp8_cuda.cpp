#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/aligned.h"
#include "levin/kernels/fp8/fp8_detail.h"
#include "levin/kernels/fp8/fp8_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/matmul_detail.h"
#include "levin/kernels/number_type.h"

namespace levin::kernels::detail {
namespace {

Fp8From from_of(const Tensor& x) {
  return x.scalar_type() == at::kFloat  ? Fp8From::kFloat
         : x.scalar_type() == at::kHalf ? Fp8From::kHalf
                                        : Fp8From::kBFloat16;
}

CUstream_st* stream_of(const Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.get_device()).stream();
}

void check(int error) {
  C10_CUDA_CHECK(static_cast<cudaError_t>(error));
}

uint8_t* bytes_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<uint8_t*>(tensor.mutable_data_ptr()) : nullptr;
}
float* floats_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

Fp8Parts cast(const Tensor& given, const MaybeTensor& given_amax, const MaybeTensor& seen, at::ScalarType dtype,
              bool per_row, bool rows, bool columns, int64_t margin, MaybeKind kind, const MaybeTensor& derivative_at,
              MaybeDtype wanted_sums) {
  const c10::cuda::CUDAGuard guard(given.device());
  // Parts of a flat buffer may begin anywhere.
  const auto x = aligned(given), at = derivative_at ? aligned(*derivative_at) : Tensor();
  const auto m = x.size(0), k = x.size(1);
  auto parts = empty_fp8_parts(x, dtype, per_row, rows, columns, wanted_sums);
  auto& [out, transposed, inverse, column_inverse, sums] = parts;
  if (x.numel() == 0) {
    if (inverse.defined()) inverse.fill_(1);
    if (column_inverse.defined()) column_inverse.fill_(1);
    if (sums.defined()) sums.zero_();
    return parts;
  }
  Tensor amax = given_amax.value_or(Tensor());
  if (!amax.defined()) {
    amax = at::zeros({per_row ? m + k : 1}, x.options().dtype(at::kFloat));
    check(launch_fp8_amax({.in = x.const_data_ptr(),
                           .type = from_of(x),
                           .per_row = per_row,
                           .rows = m,
                           .columns = k,
                           .amax = floats_of(amax),
                           .column_amax = per_row ? floats_of(amax) + m : nullptr},
                          stream_of(x)));
  }
  Tensor partials;
  if (wanted_sums) partials = at::empty({(m + kFp8TileRows - 1) / kFp8TileRows, k}, x.options().dtype(at::kFloat));
  check(launch_fp8_cast({.in = x.const_data_ptr(),
                         .type = from_of(x),
                         .e5m2 = dtype == at::kFloat8_e5m2,
                         .per_row = per_row,
                         .margin = static_cast<int32_t>(margin),
                         .rows = m,
                         .columns = k,
                         .padded_rows = columns ? transposed.size(1) : 0,
                         .amax = amax.const_data_ptr<float>(),
                         .column_amax = per_row ? amax.const_data_ptr<float>() + m : nullptr,
                         .seen = seen ? floats_of(*seen) : nullptr,
                         .out = bytes_of(out),
                         .transposed = bytes_of(transposed),
                         .inverse = floats_of(inverse),
                         .column_inverse = floats_of(column_inverse),
                         .before = !kind           ? Fp8Before::kNothing
                                   : derivative_at ? Fp8Before::kDerivative
                                                   : Fp8Before::kActivation,
                         .activation = static_cast<ActivationKind>(kind.value_or(0)),
                         .derivative_at = at.defined() ? at.const_data_ptr() : nullptr,
                         .partials = floats_of(partials),
                         .sums = sums.defined() ? sums.mutable_data_ptr() : nullptr,
                         .sums_type = wanted_sums ? number_type("fp8_cast", *wanted_sums) : NumberType::kNone},
                        stream_of(x)));
  return parts;
}

Tensor product(const Tensor& a, const Tensor& b, const Tensor& inverse_a, const Tensor& inverse_b,
               const MaybeTensor& bias, at::ScalarType dtype, bool fast) {
  const bool per_row = inverse_a.dim() == 2;
  if (!per_row)
    if (auto result = scaled_matmul(a, b.t(), {inverse_a, inverse_b, bias.value_or(Tensor()), dtype, fast}))
      return std::move(*result);
  const at::RecordFunctionGuard unseen(/*is_enabled=*/false);  // it is counted once
  // Products with scales per row end in bfloat16.
  const auto made = per_row ? at::kBFloat16 : dtype;
  const auto result =
      at::_scaled_mm(a, b.t(), inverse_a, per_row ? inverse_b.t() : inverse_b, bias, /*scale_result=*/{}, made, fast);
  return result.to(dtype);
}

Tensor roll(const Tensor& history, const Tensor& seen) {
  const c10::cuda::CUDAGuard guard(history.device());
  auto amax = at::empty_like(seen);
  if (seen.numel() == 0) return amax;
  check(launch_fp8_roll({.history = floats_of(history),
                         .seen = floats_of(seen),
                         .amax = floats_of(amax),
                         .slots = history.size(0),
                         .length = history.size(1)},
                        stream_of(history)));
  return amax;
}

}  // namespace

void register_fp8_cuda(torch::Library& library) {
  library.impl("fp8_cast", cast);
  library.impl("fp8_mm", product);
  library.impl("fp8_roll", roll);
}

}  // namespace levin::kernels::detail
