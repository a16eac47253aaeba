#include "levin/precision/precision.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/precision/matmul.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

using testing::error_of;

constexpr auto kCpu = c10::DeviceType::CPU;
constexpr auto kCuda = c10::DeviceType::CUDA;

TEST(Precision, AliasesAreLightnings) {
  EXPECT_EQ(resolve_precision("32", kCpu).name, "32-true");
  EXPECT_EQ(resolve_precision("64", kCpu).name, "64-true");
  EXPECT_EQ(resolve_precision("16", kCuda).name, "16-mixed");
  EXPECT_EQ(resolve_precision("bf16", kCuda).name, "bf16-mixed");
  EXPECT_EQ(resolve_precision("16-mixed", kCpu).name, "bf16-mixed");
  EXPECT_FALSE(resolve_precision("16-mixed", kCpu).scales_loss);
  EXPECT_TRUE(resolve_precision("16-mixed", kCuda).scales_loss);
}

TEST(Precision, UnknownWordsGetTheNearestKnownOne) {
  EXPECT_EQ(error_of([] { resolve_precision("fp16", kCpu); }),
            "[fabric] precision \"fp16\" is not known; did you mean \"16-mixed\"? (known: 32-true, 64-true, 16-true, "
            "bf16-true, "
            "16-mixed, bf16-mixed, fp8-mixed, 16, bf16, 32, 64)");
  EXPECT_NE(error_of([] { resolve_precision("bf16-mixd", kCpu); }).find("did you mean \"bf16-mixed\""),
            std::string::npos);
  EXPECT_NE(error_of([] { set_float32_matmul_precision("hi"); }).find("highest, high, medium"), std::string::npos);
}

TEST(Precision, MatmulPrecisionIsTorchs) {
  const auto before = float32_matmul_precision();
  set_float32_matmul_precision("high");
  EXPECT_EQ(float32_matmul_precision(), "high");
  set_float32_matmul_precision(before);
}

TEST(Autocast, CastsInsideAndRestoresOutside) {
  const auto x = torch::randn({4, 4});
  {
    const Autocast outer(kCpu, at::kBFloat16);
    EXPECT_EQ(torch::matmul(x, x).scalar_type(), at::kBFloat16);
    {
      const Autocast inner(kCpu, at::kBFloat16, false);
      EXPECT_EQ(torch::matmul(x, x).scalar_type(), at::kFloat);
    }
    EXPECT_EQ(torch::matmul(x, x).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(torch::matmul(x, x).scalar_type(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(kCpu));
}

TEST(Autocast, NormsOfTheCpuTakeNarrowWeights) {
  const auto x = at::randn({4, 6, 5}).requires_grad_();
  const auto weight = at::randn({5}), channels = at::randn({6});
  const auto mean = at::zeros({6}), variance = at::ones({6});
  const auto narrow = [](const at::Tensor& tensor) { return tensor.to(at::kBFloat16); };
  const auto wide = [&](const at::Tensor& tensor) { return narrow(tensor).to(at::kFloat); };
  const Autocast autocast(kCpu, at::kBFloat16);
  EXPECT_TRUE(at::equal(at::layer_norm(x, {5}, narrow(weight), narrow(weight)),
                        at::layer_norm(x, {5}, wide(weight), wide(weight))));
  EXPECT_TRUE(at::equal(at::group_norm(x, 3, narrow(channels), narrow(channels)),
                        at::group_norm(x, 3, wide(channels), wide(channels))));
  const auto batch_norm = [&](const at::Tensor& input, const at::Tensor& weights) {
    return at::batch_norm(input, weights, weights, mean.clone(), variance.clone(), true, 0.1, 1e-5, false);
  };
  EXPECT_TRUE(at::equal(batch_norm(x, narrow(channels)), batch_norm(x, wide(channels))));
  EXPECT_TRUE(at::equal(batch_norm(narrow(x), narrow(channels)), batch_norm(narrow(x), wide(channels))));
  // Gradients arrive in the dtype of the weights.
  const auto trained = narrow(weight).requires_grad_();
  at::layer_norm(x, {5}, trained, trained).square().sum().backward();
  EXPECT_EQ(trained.grad().scalar_type(), at::kBFloat16);
  EXPECT_GT(trained.grad().abs().sum().item<double>(), 0);
  // What there is no need to upcast stays as it is.
  EXPECT_EQ(at::layer_norm(narrow(x), {5}, narrow(weight), {}).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace levin
