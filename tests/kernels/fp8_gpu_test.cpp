// Products in float8 on the GPU: the casts against torch's, the products against those of the rounded numbers.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/accelerator.h"
#include "levin/kernels/activation_detail.h"
#include "levin/kernels/fp8/fp8.h"
#include "levin/kernels/fp8/fp8_layers.h"
#include "levin/nn/layers.h"
#include "levin/precision/precision.h"
#include "levin/testing/gpu.h"

namespace levin::kernels {
namespace {

class Fp8Gpu : public levin::testing::GpuTest {
 protected:
  static bool has_products() { return levin::detail::cuda_accelerator().info(c10::Device(at::kCUDA, 0)).has_fp8; }
};

bool same_codes(const Tensor& a, const Tensor& b) {
  return torch::equal(a.cpu().view(at::kByte), b.cpu().view(at::kByte));
}

// Small, odd, padded, more than one tile in both directions, and a matrix that begins at an odd address.
TEST_F(Fp8Gpu, CastsAreThoseOfTheCpu) {
  torch::manual_seed(1);
  const std::vector<std::pair<int64_t, int64_t>> shapes{{1, 16},    {5, 32},    {16, 16},   {63, 144},   {64, 128},
                                                        {65, 1040}, {200, 272}, {1000, 64}, {129, 2048}, {3072, 768}};
  for (const auto& [m, k] : shapes)
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
      for (const auto format : {at::kFloat8_e4m3fn, at::kFloat8_e5m2})
        for (const bool per_row : {false, true})
          for (const bool given : {false, true}) {
            if (per_row && given) continue;
            auto x = (torch::randn({m * k + 1}) * torch::exp(torch::randn({m * k + 1}) * 3)).clamp(-6e4, 6e4).to(dtype);
            x[0] = 3;
            x[m * k - 1] = std::numeric_limits<float>::infinity();
            x[m * k / 2] = std::numeric_limits<float>::quiet_NaN();
            const auto matrix = x.narrow(0, given ? 1 : 0, m * k).view({m, k});
            const auto there = x.cuda().narrow(0, given ? 1 : 0, m * k).view({m, k});
            const auto amax = given ? torch::full({1}, 2.5f) : Tensor();
            auto seen = torch::zeros({1}), seen_there = torch::zeros({1}, at::kCUDA);
            const Fp8CastOptions options{.dtype = format, .per_row = per_row, .margin = given ? 1 : 0};
            const auto a = fp8_cast(matrix, amax, seen, options);
            const auto b = fp8_cast(there, given ? amax.cuda() : amax, seen_there, options);
            const auto what = ::testing::Message() << m << " x " << k << " " << dtype << " " << format << " per_row "
                                                   << per_row << " given " << given;
            EXPECT_TRUE(torch::equal(a.inverse, b.inverse.cpu())) << what;
            EXPECT_TRUE(torch::equal(a.column_inverse, b.column_inverse.cpu())) << what;
            EXPECT_TRUE(torch::equal(seen, seen_there.cpu())) << what;
            // Codes of nan may differ in their sign.
            const auto numbers = [](const Tensor& codes) { return codes.cpu().to(at::kFloat).nan_to_num(1e9); };
            EXPECT_TRUE(torch::equal(numbers(a.rows), numbers(b.rows))) << what;
            EXPECT_TRUE(torch::equal(numbers(a.columns), numbers(b.columns))) << what;
          }
}

TEST_F(Fp8Gpu, CastsAreTorchsAfterScaling) {
  torch::manual_seed(2);
  const auto x = torch::randn({256, 512}, torch::dtype(at::kBFloat16).device(at::kCUDA));
  for (const auto format : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const auto cast = fp8_cast(x, {}, {}, {.dtype = format});
    const auto expected = (x.to(at::kFloat) / cast.inverse).to(format);
    EXPECT_TRUE(same_codes(cast.rows, expected));
    EXPECT_TRUE(same_codes(cast.columns, expected.view(at::kByte).t().contiguous()));
    const auto rows = fp8_cast(x, {}, {}, {.dtype = format, .columns = false});
    EXPECT_TRUE(same_codes(rows.rows, expected));
    EXPECT_FALSE(rows.columns.defined());
    const auto columns = fp8_cast(x, {}, {}, {.dtype = format, .rows = false});
    EXPECT_TRUE(same_codes(columns.columns, cast.columns));
    EXPECT_FALSE(columns.rows.defined());
  }
}

// One pass against a kernel for the activation and one for the cast: the same codes.
TEST_F(Fp8Gpu, ActivationsAndSumsInThePassOfTheCast) {
  torch::manual_seed(3);
  for (const auto& [m, k] : std::vector<std::pair<int64_t, int64_t>>{{1, 16}, {63, 144}, {197, 512}, {1000, 2048}}) {
    const auto options = torch::dtype(at::kBFloat16).device(at::kCUDA);
    const auto x = torch::randn({m, k}, options) * 3, at = torch::randn({m, k}, options) * 2;
    const auto amax = torch::full({1}, 5.0f, at::kCUDA);
    for (const auto kind : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu, Activation::kSilu}) {
      auto seen = torch::zeros({1}, at::kCUDA), seen_apart = seen.clone();
      const auto what = ::testing::Message() << m << " x " << k << " kind " << static_cast<int>(kind);
      const auto one = fp8_cast(x, amax, seen, {.activation = kind});
      const auto apart = fp8_cast(detail::run_activation(x, kind), amax, seen_apart);
      EXPECT_TRUE(same_codes(one.rows, apart.rows)) << what;
      EXPECT_TRUE(same_codes(one.columns, apart.columns)) << what;
      EXPECT_TRUE(torch::equal(seen, seen_apart)) << what;

      const auto gradient = detail::run_activation_backward(x, at, kind);
      const auto back = fp8_cast(
          x, amax, seen, {.dtype = at::kFloat8_e5m2, .activation = kind, .derivative_at = at, .sums = at::kFloat});
      const auto back_apart = fp8_cast(gradient, amax, {}, {.dtype = at::kFloat8_e5m2, .sums = at::kFloat});
      EXPECT_TRUE(same_codes(back.rows, back_apart.rows)) << what;
      EXPECT_TRUE(same_codes(back.columns, back_apart.columns)) << what;
      EXPECT_TRUE(torch::equal(back.sums, back_apart.sums)) << what;
      EXPECT_TRUE(torch::allclose(back.sums, gradient.sum({0}, false, at::kFloat), 1e-4, 1e-3)) << what;
    }
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
      for (const bool per_row : {false, true}) {
        const auto sums = fp8_cast(x.to(dtype), {}, {}, {.per_row = per_row, .sums = at::kBFloat16}).sums;
        EXPECT_EQ(sums.scalar_type(), at::kBFloat16);
        EXPECT_TRUE(torch::allclose(sums.to(at::kFloat), x.to(at::kFloat).sum(0), 1e-2, 1e-2)) << dtype << per_row;
      }
  }
}

TEST_F(Fp8Gpu, HistoriesAreThoseOfTheCpu) {
  torch::manual_seed(3);
  for (const int64_t length : {1, 3, 32, 33, 100}) {
    auto history = torch::rand({70, length}), there = history.cuda();
    for (int step = 0; step < 4; ++step) {
      auto seen = torch::rand({70});
      seen[step] = 0;
      auto seen_there = seen.cuda();
      const auto amax = fp8_roll(history, seen), amax_there = fp8_roll(there, seen_there);
      EXPECT_TRUE(torch::equal(amax, amax_there.cpu())) << length;
      EXPECT_TRUE(torch::equal(history, there.cpu())) << length;
      EXPECT_EQ(seen_there.abs().sum().item<float>(), 0);
    }
  }
}

TEST_F(Fp8Gpu, ProductsAreThoseOfTheRoundedNumbers) {
  if (!has_products()) GTEST_SKIP() << "no products in float8";
  torch::manual_seed(4);
  for (const bool per_row : {false, true})
    for (const int64_t m : {1, 5, 64, 200}) {
      const auto options = torch::dtype(at::kBFloat16).device(at::kCUDA);
      const auto x = torch::randn({m, 96}, options), w = torch::randn({160, 96}, options);
      const auto g = torch::randn({m, 160}, options), bias = torch::randn({160}, options);
      const Fp8CastOptions cast{.per_row = per_row};
      const Fp8CastOptions of_gradient{.dtype = per_row ? at::kFloat8_e4m3fn : at::kFloat8_e5m2, .per_row = per_row};
      const auto x8 = fp8_cast(x, {}, {}, cast), w8 = fp8_cast(w, {}, {}, cast), g8 = fp8_cast(g, {}, {}, of_gradient);
      const auto numbers = [](const Tensor& codes, const Tensor& inverse) { return codes.to(at::kFloat) * inverse; };
      const auto near = [](const Tensor& a, const Tensor& b) {
        return ((a.to(at::kFloat) - b).abs().max() / b.abs().max()).item<float>() < 0.01;
      };
      EXPECT_TRUE(near(fp8_mm(x8.rows, w8.rows, x8.inverse, w8.inverse, bias, at::kBFloat16, true),
                       torch::mm(numbers(x8.rows, x8.inverse), numbers(w8.rows, w8.inverse).t()) + bias))
          << m << per_row;
      for (const auto dtype : {at::kBFloat16, at::kFloat}) {
        EXPECT_TRUE(near(fp8_mm(g8.rows, w8.columns, g8.inverse, w8.column_inverse, {}, dtype, false),
                         torch::mm(numbers(g8.rows, g8.inverse), numbers(w8.columns, w8.column_inverse).t())))
            << m << per_row;
        EXPECT_TRUE(near(fp8_mm(g8.columns, x8.columns, g8.column_inverse, x8.column_inverse, {}, dtype, false),
                         torch::mm(numbers(g8.columns, g8.column_inverse), numbers(x8.columns, x8.column_inverse).t())))
            << m << per_row;
      }
    }
}

struct Fp8GpuNetImpl : torch::nn::Module {
  explicit Fp8GpuNetImpl(int64_t hidden) {
    first = register_module("first", nn::Linear(64, 128));
    up = register_module("up", nn::Linear(128, hidden));
    down = register_module("down", nn::Linear(hidden, 128));
    last = register_module("last", nn::Linear(128, 10));
  }
  Tensor forward(const Tensor& x) {
    const auto h = torch::gelu(first(x));
    return last(h + down(torch::gelu(up(h))));
  }
  nn::Linear first = nullptr, up = nullptr, down = nullptr, last = nullptr;
};
LEVIN_MODULE(Fp8GpuNet);

// Loss of the last steps of a net that learns what another net says.
double fp8_trained_loss(std::optional<Fp8Options> options, int64_t hidden = 512) {
  torch::manual_seed(5);
  Fp8GpuNet net(hidden), teacher(512);
  net->to(at::kCUDA);
  teacher->to(at::kCUDA);
  const auto layers = options ? std::make_shared<Fp8Layers>(
                                    net.ptr(), Fp8Setup{.options = *options, .device = c10::Device(at::kCUDA, 0)})
                              : nullptr;
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-3));
  double last = 0;
  for (int step = 0; step < 100; ++step) {
    const auto x = torch::randn({250, 64}, at::kCUDA);  // rows are padded
    Tensor wanted, y;
    {
      const torch::NoGradGuard no_grad;
      wanted = teacher(x);
    }
    {
      const Autocast autocast(at::kCUDA, at::kBFloat16);
      const Fp8Scope scope(layers);
      y = net(x);
    }
    const auto loss = (y.to(at::kFloat) - wanted).square().mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step >= 90) last += loss.item<double>() / 10;
  }
  return last;
}

TEST_F(Fp8Gpu, TrainsAsInBfloat16) {
  if (!has_products()) GTEST_SKIP() << "no products in float8";
  const auto narrow = fp8_trained_loss({});
  for (const auto recipe : {Fp8Recipe::kDelayed, Fp8Recipe::kCurrent, Fp8Recipe::kRow})
    EXPECT_NEAR(fp8_trained_loss(Fp8Options{.recipe = recipe}) / narrow, 1, 0.05) << static_cast<int>(recipe);
  // Sizes that are no multiples of 16: the same numbers as in bfloat16.
  EXPECT_EQ(fp8_trained_loss(Fp8Options{}, 100), fp8_trained_loss({}, 100));
}

TEST_F(Fp8Gpu, NothingWaitsForTheDevice) {
  if (!has_products()) GTEST_SKIP() << "no products in float8";
  Fp8GpuNet net(256);
  net->to(at::kCUDA);
  const auto layers = std::make_shared<Fp8Layers>(net.ptr(), Fp8Setup{.device = c10::Device(at::kCUDA, 0)});
  const auto x = torch::randn({64, 64}, at::kCUDA);
  const auto step = [&] {
    Tensor y;
    {
      const Autocast autocast(at::kCUDA, at::kBFloat16);
      const Fp8Scope scope(layers);
      y = net(x);
    }
    y.sum().backward();
  };
  step();
  const auto& accelerator = levin::detail::cuda_accelerator();
  struct Warnings : c10::WarningHandler {
    void process(const c10::Warning& warning) override { lines.push_back(warning.msg()); }
    std::vector<std::string> lines;
  } warnings;
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    accelerator.set_sync_warnings(true);
    step();
    accelerator.set_sync_warnings(false);
  }
  EXPECT_TRUE(warnings.lines.empty()) << warnings.lines.front();
}

}  // namespace
}  // namespace levin::kernels
