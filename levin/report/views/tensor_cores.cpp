#include "levin/report/views/tensor_cores.h"

#include <algorithm>
#include <array>

#include "levin/devices/product_operators.h"

namespace levin::report {
namespace {

// Parts of names that the plugin looked for.
constexpr std::array<std::string_view, 18> kOldParts{"h884",
                                                     "s884",
                                                     "h1688",
                                                     "s1688",
                                                     "c1688",
                                                     "hmma",
                                                     "i8816",
                                                     "16816",
                                                     "dgrad_1x1_stride_2x2",
                                                     "first_layer_wgrad_kernel",
                                                     "conv1x1",
                                                     "conv2d_c1_k1",
                                                     "direct_group",
                                                     "xmma_implicit_gemm",
                                                     "xmma_sparse_conv",
                                                     "xmma_warp_specialized_implicit_gemm",
                                                     "xmma_gemm",
                                                     "xmma_sparse_gemm"};

// Kernels of cuBLAS, cuDNN, CUTLASS and attention since.
constexpr std::array<std::string_view, 27> kNewParts{
    "nvjet", "tensorop", "wgmma", "xmma_fprop", "xmma_dgrad", "xmma_wgrad", "tf32f32", "gemm_bf16", "gemm_fp8",
    "flash_fwd", "flash_bwd", "fmha_cutlass", "GmmaKernel", "pytorch_flash", "cudnn_generated_fort_native_sdpa",
    "short_attention", "causal_attention", "decode_groups", "block_sparse", "sparse_keys", "sparse_queries",
    // Matrix cores of AMD: hipBLASLt's and Composable Kernel's.
    "_MI16x16", "_MI32x32", "_MI4x4", "_MFMA", "mfma", "xdlops"};

// sm80_xmma_..., sm90_..._gemm...: made for one architecture. Those in float alone (simt, sgemm, ffma) do not use them.
bool is_simt(std::string_view name) {
  for (const std::string_view part : {"simt", "_sgemm", "ffma", "dgemm"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

bool has_any(std::string_view name, auto const& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

constexpr std::array<std::string_view, 47> kOperators{
    "aten::_convolution",
    "aten::conv1d",
    "aten::conv2d",
    "aten::conv3d",
    "aten::conv_tbc",
    "aten::conv_transpose1d",
    "aten::conv_transpose2d",
    "aten::conv_transpose3d",
    "aten::convolution",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_transpose",
    "aten::prelu",
    "aten::addmm",
    "aten::addmv",
    "aten::addr",
    "aten::matmul",
    "aten::mm",
    "aten::mv",
    "aten::linear",
    "aten::addbmm",
    "aten::baddbmm",
    "aten::bmm",
    "aten::chain_matmul",
    "aten::linalg_multi_dot",
    "aten::_thnn_fused_lstm_cell",
    "aten::_thnn_fused_gru_cell",
    "aten::lstm_cell",
    "aten::gru_cell",
    "aten::rnn_tanh_cell",
    "aten::rnn_relu_cell",
    "CudnnConvolutionBackward",
    "BmmBackward0",
    "aten::cudnn_convolution_transpose_backward",
    "CudnnConvolutionTransposeBackward",
    "MmBackward",
    "aten::cudnn_convolution_backward_weight",
    "aten::addmm_",
    "AddmvBackward",
    "MvBackward",
    "aten::cudnn_convolution_transpose_backward_weight",
    "aten::cudnn_convolution_transpose_backward_input",
    "AddmmBackward",
    "aten::cudnn_convolution_backward_input",
    "AddbmmBackward",
    "aten::cudnn_convolution_backward",
    // Not known to the plugin, as are those of product_operators.h.
    "aten::_flash_attention_forward",
    "aten::_flash_attention_backward",
};

}  // namespace

bool uses_tensor_cores(std::string_view kernel, bool tb_compat) {
  if (tb_compat) return has_any(kernel, kOldParts);
  return !is_simt(kernel) && (has_any(kernel, kOldParts) || has_any(kernel, kNewParts));
}

bool uses_tf32(std::string_view kernel) {
  if (has_any(kernel, std::array<std::string_view, 2>{"tf32", "nvjet_sss"})) return !is_simt(kernel);
  // s1688 alone is TF32; Turing's kernels of this shape say that they take 16 bits.
  return kernel.find("s1688") != std::string_view::npos && kernel.find("f16") == std::string_view::npos &&
         kernel.find("fp16") == std::string_view::npos;
}

bool changes_memory_format(std::string_view kernel) {
  return has_any(kernel,
                 std::array<std::string_view, 3>{"nchwToNhwcKernel", "nhwcToNchwKernel", "tensorTransformGeneric"});
}

bool could_use_tensor_cores(std::string_view operator_name) {
  return std::find(kOperators.begin(), kOperators.end(), operator_name) != kOperators.end() ||
         find_product_operator(operator_name) != nullptr;
}

}  // namespace levin::report
