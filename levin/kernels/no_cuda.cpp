// The null twins of the *_cuda.cpp of this folder, for builds without CUDA.
#include "levin/core/error.h"
#include "levin/kernels/activation_detail.h"
#include "levin/kernels/attention/attention_detail.h"
#include "levin/kernels/attention/causal_attention_detail.h"
#include "levin/kernels/attention/packed_attention.h"
#include "levin/kernels/attention/rotary_detail.h"
#include "levin/kernels/attention/short_attention_detail.h"
#include "levin/kernels/block_sparse/attention_detail.h"
#include "levin/kernels/cross_entropy/cross_entropy_detail.h"
#include "levin/kernels/cross_entropy/linear_cross_entropy_detail.h"
#include "levin/kernels/decode/decode.h"
#include "levin/kernels/decode/greedy_detail.h"
#include "levin/kernels/decode/row_linear.h"
#include "levin/kernels/embedding/embedding_detail.h"
#include "levin/kernels/fp8/fp8_detail.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/images/image_batch_detail.h"
#include "levin/kernels/images/image_resample_detail.h"
#include "levin/kernels/images/jpeg_colors.h"
#include "levin/kernels/linear/linear_detail.h"
#include "levin/kernels/linear/matmul_detail.h"
#include "levin/kernels/linear/weight_casts_detail.h"
#include "levin/kernels/max_pool_detail.h"
#include "levin/kernels/norm/batch_norm_detail.h"
#include "levin/kernels/norm/residual_norm_detail.h"
#include "levin/kernels/played_device.h"
#include "levin/kernels/quantized/quantized_detail.h"
#include "levin/kernels/tokens/prepend_token_detail.h"

namespace levin::kernels::detail {

void normalize_images_cuda(const Tensor&, NormalizeLaunch, std::span<const ImagePlacement>, Tensor&) {
  levin::detail::fail("[normalize_images] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void erase_images_cuda(Tensor&, EraseLaunch, std::span<const EraseBox>) {
  levin::detail::fail("[erase_images] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void resample_images_cuda(std::span<const ResampleEntry>, ResampleLaunch, Tensor&) {
  levin::detail::fail("[resample_images] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void jpeg_colors_cuda(std::span<const JpegPlanesEntry>, c10::Device) {
  levin::detail::fail("[jpeg_colors] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void adam_cuda(std::span<const StepEntry>, const AdamNumbers&, const StepScale&, c10::Device,
               const StepReplay<AdamNumbers>&) {
  levin::detail::fail("[fused_adam] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void sgd_cuda(std::span<const StepEntry>, const SgdNumbers&, const StepScale&, c10::Device,
              const StepReplay<SgdNumbers>&) {
  levin::detail::fail("[fused_sgd] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void adam_8bit_cuda(std::span<const StepEntry>, const AdamNumbers&, const AdamNumbers*, const CodeBooks&,
                    const StepScale&, c10::Device) {
  levin::detail::fail("[fused_adam_8bit] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

Tensor dequantize_cuda(const QuantizedWeight&, at::ScalarType) {
  levin::detail::fail("[dequantize] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

Tensor skinny_linear_cuda(const Tensor&, const QuantizedWeight&, const Tensor&) {
  levin::detail::fail("[quantized_linear] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}
Tensor skinny_linear_cuda(const Tensor&, const Tensor&, const Tensor&) {
  levin::detail::fail("[linear] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}
Tensor tile_linear_cuda(const Tensor&, const QuantizedWeight&, const Tensor&) {
  levin::detail::fail("[quantized_linear] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

void load_step_kernels_cuda(c10::Device) {}

// Fused layers compute with torch's operators then.
bool has_cuda_kernels() {
  return false;
}
void register_residual_norm_cuda(torch::Library&) {}
void register_activation_cuda(torch::Library&) {}
void register_linear_cuda(torch::Library&) {}
void register_weight_casts_cuda(torch::Library&) {}
void register_embedding_cuda(torch::Library&) {}
void register_prepend_token_cuda(torch::Library&) {}
void register_block_sparse_cuda(torch::Library&) {}
void register_matmul_cuda(torch::Library&) {}
bool flash_runs_on(const Tensor&, const Tensor&, const Tensor&, bool) {
  return false;
}
bool attention_runs_on(AttentionBackend, const Tensor&, bool, double) {
  return false;
}
AttentionBackend fastest_attention(const Tensor&, bool, const std::vector<AttentionBackend>&) {
  return AttentionBackend::kTorch;
}

bool is_hopper(c10::Device) {
  return false;
}

// Without them the operators have no kernel for CUDA, and say so.
void register_cross_entropy_cuda(torch::Library&) {}
void register_linear_cross_entropy_cuda(torch::Library&) {}
void register_greedy_cuda(torch::Library&) {}
void register_rotary_cuda(torch::Library&) {}
void register_short_attention_cuda(torch::Library&) {}
void register_causal_attention_cuda(torch::Library&) {}
void register_batch_norm_act_cuda(torch::Library&) {}
void register_max_pool_cuda(torch::Library&) {}
void register_fp8_cuda(torch::Library&) {}

}  // namespace levin::kernels::detail

namespace levin::kernels {

bool has_decode_kernel(c10::Device, at::ScalarType, int64_t, int64_t, int64_t) {
  return false;
}
bool has_row_linear(const RowLinear&) {
  return false;
}
NormedRows row_linear_normed(const RowLinear&) {
  levin::detail::fail("[row_linear] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}
Tensor row_linear(const RowLinear& layer) {
  return row_linear_normed(layer).sum;
}
Tensor decode_attention(const DecodeArguments&) {
  levin::detail::fail("[decode_attention] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

}  // namespace levin::kernels
