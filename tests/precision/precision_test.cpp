#include "levin/precision/precision.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/precision/matmul.h"

namespace levin {
namespace {

constexpr auto kCpu = c10::DeviceType::CPU;
constexpr auto kCuda = c10::DeviceType::CUDA;

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

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
  EXPECT_EQ(message([] { resolve_precision("fp16", kCpu); }),
            "[fabric] precision \"fp16\" is not known; did you mean \"16-mixed\"? (known: 32-true, 64-true, 16-true, "
            "bf16-true, "
            "16-mixed, bf16-mixed, 16, bf16, 32, 64)");
  EXPECT_NE(message([] { resolve_precision("bf16-mixd", kCpu); }).find("did you mean \"bf16-mixed\""),
            std::string::npos);
  EXPECT_NE(message([] { set_float32_matmul_precision("hi"); }).find("highest, high, medium"), std::string::npos);
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

}  // namespace
}  // namespace levin
