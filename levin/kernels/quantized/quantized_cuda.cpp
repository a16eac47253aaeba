#include <array>
#include <mutex>

#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "levin/core/error.h"
#include "levin/kernels/fused_step/adam_8bit.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/constant_weights.h"
#include "levin/kernels/quantized/quantized_detail.h"

namespace levin::kernels::detail {
namespace {

/// The codes of nested scales, once for each device.
const float* nested_codes_on(c10::Device device) {
  static auto& tables = *new std::array<Tensor, 64>();  // for the life of the process
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& table = tables.at(static_cast<size_t>(device.index()));
  if (!table.defined())
    table = at::from_blob(const_cast<float*>(dynamic_codes(true).data()), {256}, at::kFloat).to(device);
  return table.const_data_ptr<float>();
}

}  // namespace

PackedMatrix matrix_on_device(const QuantizedWeight& weight) {
  auto matrix = packed_matrix(weight);
  if (weight.nested.defined()) matrix.nested_codes = nested_codes_on(weight.codes.device());
  LEVIN_CHECK(is_pack_aligned(matrix.codes) && is_pack_aligned(matrix.scales) && is_pack_aligned(matrix.nested),
              "[quantized_linear] the tensors of a quantized weight must begin at multiples of 16 bytes");
  return matrix;
}

Tensor dequantize_cuda(const QuantizedWeight& weight, at::ScalarType dtype) {
  const c10::cuda::CUDAGuard guard(weight.codes.device());
  // The kernel writes eight numbers at a time, and knows three dtypes.
  if (weight.columns % 8 != 0 || dtype == at::kDouble) {
    const auto codes = weight.options.kind == Quantization::kFp8 ? weight.codes.view(at::kFloat8_e4m3fn)
                                                                 : weight.codes.view(at::kChar);
    if (dtype == at::kDouble && weight.columns % 8 == 0) return dequantize_cuda(weight, at::kFloat).to(dtype);
    const auto wide = codes.to(at::kFloat) * weight.scales.view(at::kFloat).view({-1, 1});
    return (weight.options.kind == Quantization::kFp8 ? wide : wide * kInt8Unit).to(dtype);
  }
  auto result = at::empty({weight.rows(), weight.columns}, weight.codes.options().dtype(dtype));
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch_dequantize(matrix_on_device(weight), result.mutable_data_ptr(),
                                                            number_type("dequantize", dtype),
                                                            c10::cuda::getCurrentCUDAStream().stream())));
  return result;
}

namespace {

/// x as the kernels of packed matrices read it.
Tensor packed_rows(const Tensor& given) {
  auto x = given.contiguous();
  return is_pack_aligned(x.const_data_ptr()) ? x : x.clone();
}

/// A product with a matrix, in one launch. `product` has what only its own kernel asks for.
template <class Product>
Tensor product_of(const Tensor& given, const PackedMatrix& matrix, const Tensor& bias,
                  int (*launch)(const Product&, CUstream_st*), Product product = {}) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto x = packed_rows(given);
  auto result = at::empty({x.size(0), matrix.rows}, x.options());
  product.matrix = matrix;
  product.x = x.const_data_ptr(), product.y = result.mutable_data_ptr();
  const auto added = bias.defined() ? bias.contiguous() : bias;
  product.bias = added.defined() ? added.const_data_ptr() : nullptr;
  product.m = x.size(0);
  product.early_matrix = ConstantWeights::here();
  product.type = number_type("linear", x.scalar_type());
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch(product, c10::cuda::getCurrentCUDAStream().stream())));
  return result;
}

}  // namespace

Tensor skinny_linear_cuda(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias) {
  return product_of(x, matrix_on_device(weight), bias, launch_skinny_linear);
}

Tensor skinny_linear_cuda(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  PackedMatrix matrix;
  matrix.codes = weight.const_data_ptr();
  matrix.rows = weight.size(0), matrix.columns = weight.size(1);
  return product_of(x, matrix, bias, launch_skinny_linear);
}

Tensor tile_linear_cuda(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias) {
  TileLinear product;
  product.processors = at::cuda::getDeviceProperties(x.device().index())->multiProcessorCount;
  return product_of(x, matrix_on_device(weight), bias, launch_tile_linear, product);
}

}  // namespace levin::kernels::detail
