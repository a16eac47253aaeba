// The parts of bench/speed.cpp that can be wrong without anybody noticing: classes of kernels, limits.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "bench/speed/encoder.h"
#include "bench/speed/kernels.h"
#include "levin/models/text_encoder.h"
#include "levin/models/text_encoder_sizes.h"
#include "levin/nn/functional.h"

namespace levin::bench {
namespace {

TEST(SpeedKernels, ClassesByName) {
  const std::pair<const char*, KernelClass> names[] = {
      {"nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", KernelClass::kGemm},
      {"void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16>", KernelClass::kGemm},
      {"void cublasLt::splitKreduce_kernel<32, 16, int, float>", KernelClass::kGemm},
      {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", KernelClass::kAttention},
      {"fmha_cutlassF_bf16_aligned_64x64_rf_sm80(...)", KernelClass::kAttention},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3", KernelClass::kAttention},
      {"sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", KernelClass::kConvolution},
      {"void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized>", KernelClass::kConvolution},
      {"void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16>", KernelClass::kConvolution},
      {"void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512>", KernelClass::kNorm},
      {"void at::native::batch_norm_transform_input_channels_last_kernel<c10::BFloat16>", KernelClass::kNorm},
      {"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", KernelClass::kNorm},
      {"void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>", KernelClass::kNorm},
      {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
       KernelClass::kOptimizer},
      {"levin::adam_kernel(levin::NumberTable, levin::AdamNumbers)", KernelClass::kOptimizer},
      {"void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true>", KernelClass::kLoss},
      {"void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", KernelClass::kCopy},
      {"Memset (Device)", KernelClass::kCopy},
      {"Memcpy DtoD (Device -> Device)", KernelClass::kCopy},
      {"void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl>", KernelClass::kElementwise},
      {"void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16>>", KernelClass::kReduction},
      {"void at::native::max_pool_forward_nhwc<c10::BFloat16, int>", KernelClass::kOther},
      {"void levin::kernels::detail::(anonymous namespace)::norm_backward_kernel<c10::BFloat16, 4>",
       KernelClass::kNorm},
      {"void levin::kernels::detail::(anonymous namespace)::column_sum_kernel<float>", KernelClass::kReduction},
      {"void levin::kernels::detail::(anonymous namespace)::pack_sums_kernel<__nv_bfloat16, 8>", KernelClass::kCopy},
      {"void levin::kernels::detail::(anonymous namespace)::activation_sums_kernel<0, __nv_bfloat16>",
       KernelClass::kElementwise},
      {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<CopyFunctor<c10::BFloat16, float>>",
       KernelClass::kCopy},
      {"void levin::kernels::detail::(anonymous namespace)::weights_cast_kernel<__nv_bfloat16>", KernelClass::kCopy},
      {"void levin::kernels::detail::(anonymous namespace)::prepend_token_backward_kernel<__nv_bfloat16, float, 4>",
       KernelClass::kElementwise},
      {"something_new", KernelClass::kOther},
  };
  for (const auto& [name, kind] : names) EXPECT_EQ(name_of(kernel_class(name)), name_of(kind)) << name;
}

/// Operations of the products of a step, as PyTorch's profiler counts them.
template <class Step>
double counted_flops(Step&& step, const std::set<std::string>& names) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  const std::set<ActivityType> activities{ActivityType::CPU};
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                     /*report_input_shapes=*/true, /*profile_memory=*/false,
                                                     /*with_stack=*/false, /*with_flops=*/true);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  step();
  double sum = 0;
  const auto result = profiler::disableProfiler();
  for (const auto& event : result->events())
    if (names.contains(event.name())) sum += static_cast<double>(event.flops());
  return sum;
}

const std::set<std::string> kProducts{"aten::mm", "aten::addmm"};

TEST(SpeedWork, GemmsOfAVisionTransformer) {
  const models::ViTOptions options{.image_size = 16,
                                   .patch_size = 4,
                                   .num_layers = 3,
                                   .num_heads = 2,
                                   .hidden_dim = 32,
                                   .mlp_dim = 48,
                                   .num_classes = 5};
  auto model = models::vit(options);
  const auto x = torch::randn({6, 3, 16, 16});
  const auto y = torch::randint(0, 5, {6});
  const auto counted = counted_flops([&] { cross_entropy(model(x), y).backward(); }, kProducts);
  const auto work = vit_work(options, 6, step_bytes("32-true", 2));
  EXPECT_DOUBLE_EQ(work[KernelClass::kGemm].flops, counted);
}

TEST(SpeedWork, GemmsOfClassifiersOfTexts) {
  for (const char* name : {"distilbert", "big_bird"}) {
    auto options = models::text_encoder_options(name);
    auto& body = options.body;
    body.vocab_size = 50, body.max_positions = 24, body.num_layers = 2, body.num_heads = 2, body.hidden_dim = 32;
    body.mlp_dim = 48;
    if (options.block_size > 0) options.block_size = 2, options.random_blocks = 1;
    models::TextEncoder model(options);
    const auto ids = torch::randint(0, 50, {4, 20});
    const auto y = torch::randint(0, 2, {4});
    const auto counted = counted_flops([&] { cross_entropy(model(ids), y).backward(); }, kProducts);
    const auto work = text_encoder_work(options, 4, 20, step_bytes("32-true", 2));
    EXPECT_DOUBLE_EQ(work[KernelClass::kGemm].flops, counted) << name;
  }
}

TEST(SpeedWork, ConvolutionsOfResNets) {
  // torchvision says 4.089 and 1.814 billion multiply-adds for an image of 224 pixels, the last layer (2048 or 512 to
  // 1000) included. A step does all convolutions three times, but for the first: the images need no gradient.
  const double first = 2.0 * 112 * 112 * 64 * 3 * 49;
  const auto forward = [&](const models::ResNetOptions& options, double features) {
    const auto work = resnet_work(options, 1, 224, step_bytes("bf16-mixed", 1));
    return ((work[KernelClass::kConvolution].flops + first) / 3 + 2 * features * 1000) / 2e9;
  };
  EXPECT_NEAR(forward({}, 2048), 4.089, 0.001);
  EXPECT_NEAR(forward({.layers = {2, 2, 2, 2}, .bottleneck = false}, 512), 1.814, 0.001);
}

TEST(SpeedWork, LimitsAreTimeOfOperationsOrBytes) {
  Work work({.activation = 2}, {.flops_per_s = 1e12, .bytes_per_s = 1e9});
  work.linear(1000, 1000, 1000, /*input_gradient=*/false);
  // Two products of 2e9 operations and 6e6 bytes: bytes take longer here.
  EXPECT_DOUBLE_EQ(work[KernelClass::kGemm].flops, 4e9);
  EXPECT_DOUBLE_EQ(work[KernelClass::kGemm].seconds, 12e6 / 1e9);
  // Value, gradient and two moments are read, all but the gradient written.
  work = Work(step_bytes("bf16-true", 2), {.flops_per_s = 1e12, .bytes_per_s = 1e9});
  work.optimizer(1e9);
  EXPECT_DOUBLE_EQ(work[KernelClass::kOptimizer].seconds, 14);
}

TEST(SpeedKernels, TablesHaveEveryMillisecond) {
  KernelProfile profile;
  profile.kernels = {{"gemm_a", KernelClass::kGemm, 6, 3e-3}, {"odd|name", KernelClass::kOther, 3, 1e-3}};
  profile.seconds[static_cast<size_t>(KernelClass::kGemm)] = 3e-3;
  profile.seconds[static_cast<size_t>(KernelClass::kOther)] = 1e-3;
  profile.counts[static_cast<size_t>(KernelClass::kGemm)] = 2;
  profile.counts[static_cast<size_t>(KernelClass::kOther)] = 1;
  profile.sum = profile.busy = 4e-3;
  profile.steps = 3;
  Work work({}, {.flops_per_s = 1e12, .bytes_per_s = 1e12});
  work.add(KernelClass::kGemm, 1.5e9, 0);
  const auto text = to_markdown("a case", profile, work, 5e-3);
  EXPECT_NE(text.find("| gemm | 2 | 3.000 | 60.0 % | 1.500 | 2.00 |"), std::string::npos) << text;
  EXPECT_NE(text.find("| no kernel |  | 1.000 | 20.0 % |  |  |"), std::string::npos) << text;
  EXPECT_NE(text.find("| `odd/name` | other | 1 | 1.000 |"), std::string::npos) << text;
  const auto json = to_json(profile, work, 5e-3);
  EXPECT_EQ(json["classes"].size(), 2u);
  EXPECT_DOUBLE_EQ(json["classes"][0]["limit_ms"].get<double>(), 1.5);
  EXPECT_DOUBLE_EQ(json["largest"][0]["count"].get<double>(), 2);
}

}  // namespace
}  // namespace levin::bench
