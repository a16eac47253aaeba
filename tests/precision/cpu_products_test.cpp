#include "levin/precision/cpu_products.h"

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/linear.h>

#include "levin/precision/precision.h"
#include "levin/testing/capture.h"

namespace levin {
namespace {

using at::Tensor;
namespace F = torch::nn::functional;

bool onednn_is_on() {
  return at::globalContext().userEnabledMkldnn();
}

class Switched {
 public:
  explicit Switched(bool on) { at::globalContext().setUserEnabledMkldnn(on); }
  ~Switched() { at::globalContext().setUserEnabledMkldnn(before_); }

 private:
  bool before_ = onednn_is_on();
};

struct Product {
  const char* name;
  std::vector<at::IntArrayRef> shapes;
  std::function<Tensor(std::vector<Tensor>&)> compute;
};

// Every way to LibTorch's products on the CPU; matrices large enough for oneDNN, which small ones never reach.
std::vector<Product> products() {
  static const std::vector<int64_t> m{48, 64}, b{64}, s{32, 64}, many{3, 48, 64}, sum{3, 48, 48}, q{2, 2, 40, 16},
      mask{40, 40}, image{2, 8, 12, 12}, kernel{12, 8, 3, 3}, signal{2, 8, 40}, taps{12, 8, 3}, up{8, 12, 3, 3},
      volume{1, 4, 6, 6, 6}, cube{4, 4, 3, 3, 3}, square{48, 48};
  using V = std::vector<Tensor>;
  return {
      {"linear", {m, s, at::IntArrayRef(s).slice(0, 1)}, [](V& x) { return at::linear(x[0], x[1], x[2]); }},
      {"mm", {m, m}, [](V& x) { return at::mm(x[0], x[1].t()); }},
      {"mm of a transposed one", {m, m}, [](V& x) { return at::mm(x[0].t(), x[1]); }},
      {"addmm", {square, m, m}, [](V& x) { return at::addmm(x[0], x[1], x[2].t(), 0.5, 2); }},
      {"matmul", {many, m}, [](V& x) { return at::matmul(x[0], x[1].t()); }},
      {"bmm", {many, many}, [](V& x) { return at::bmm(x[0], x[1].transpose(1, 2)); }},
      {"baddbmm", {sum, many, many}, [](V& x) { return at::baddbmm(x[0], x[1], x[2].transpose(1, 2), 0.5, 2); }},
      {"addbmm", {square, many, many}, [](V& x) { return at::addbmm(x[0], x[1], x[2].transpose(1, 2)); }},
      {"einsum",
       {many, many},
       [](V& x) {
         return at::einsum("bij,bkj->bik", {x[0], x[1]});
       }},
      {"mv", {m, b}, [](V& x) { return at::mv(x[0], x[1]); }},
      {"attention", {q, q, q}, [](V& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2]); }},
      {"causal attention",
       {q, q, q},
       [](V& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0, true); }},
      {"attention with a mask",
       {q, q, q, mask},
       [](V& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2], x[3].detach()); }},
      {"conv1d", {signal, taps}, [](V& x) { return at::conv1d(x[0], x[1]); }},
      {"conv2d",
       {image, kernel, at::IntArrayRef(kernel).slice(0, 1)},
       [](V& x) { return at::conv2d(x[0], x[1], x[2], 1, 1); }},
      {"conv2d in channels_last",
       {image, kernel},
       [](V& x) { return at::conv2d(x[0].contiguous(at::MemoryFormat::ChannelsLast), x[1], {}, 2); }},
      {"conv_transpose2d", {image, up}, [](V& x) { return at::conv_transpose2d(x[0], x[1]); }},
      {"conv3d", {volume, cube}, [](V& x) { return at::conv3d(x[0], x[1]); }},
  };
}

std::vector<Tensor> inputs(const Product& product, c10::ScalarType dtype) {
  torch::manual_seed(7);
  std::vector<Tensor> made;
  for (const auto& shape : product.shapes)
    made.push_back(((torch::randn(shape) * 16).round() / 16).to(dtype).requires_grad_(true));  // exact in 16 bits
  return made;
}

// The result and the gradients, in float32.
std::vector<Tensor> run(const Product& product, c10::ScalarType dtype) {
  auto x = inputs(product, dtype);
  auto result = product.compute(x);
  EXPECT_EQ(result.scalar_type(), dtype) << product.name;
  (result * torch::linspace(-1, 1, result.numel()).view(result.sizes()).to(dtype)).sum().backward();
  std::vector<Tensor> all{result.detach().to(at::kFloat)};
  for (const auto& input : x)
    if (input.grad().defined()) {
      EXPECT_EQ(input.grad().scalar_type(), dtype) << product.name;
      all.push_back(input.grad().to(at::kFloat));
    }
  return all;
}

void expect_near(const std::vector<Tensor>& narrow, const std::vector<Tensor>& exact, const char* name) {
  ASSERT_EQ(narrow.size(), exact.size()) << name;
  for (size_t i = 0; i < exact.size(); ++i) {
    const auto error = (narrow[i] - exact[i]).abs().max().item<double>() / exact[i].abs().max().item<double>();
    EXPECT_LT(error, 0.05) << name << ", " << (i == 0 ? "result" : "gradient") << " " << i;
  }
}

class CpuProducts : public ::testing::TestWithParam<c10::ScalarType> {};

// As this CPU computes them: natively, or emulated since the library was loaded.
TEST_P(CpuProducts, LeaveOneDnnAsItWas) {
  for (const bool on : {true, false}) {
    const Switched switched(on);
    for (const auto& product : products()) {
      expect_near(run(product, GetParam()), run(product, at::kFloat), product.name);
      EXPECT_EQ(onednn_is_on(), on) << product.name;
    }
  }
}

// As a CPU computes them that lacks the dtype.
TEST_P(CpuProducts, AreThoseOfFloat32RoundedWhereTheCpuLacksThem) {
  const Switched switched(true);
  const detail::WideProducts wide(GetParam());
  for (const auto& product : products()) {
    const auto exact = run(product, at::kFloat);
    const auto emulated = run(product, GetParam());
    expect_near(emulated, exact, product.name);
    if (std::string_view(product.name) != "mv" && std::string_view(product.name) != "addbmm") {
      EXPECT_TRUE(emulated[0].equal(exact[0].to(GetParam()).to(at::kFloat))) << product.name;
    }
  }
}

TEST_P(CpuProducts, WriteIntoWhatTheyAreGiven) {
  const Switched switched(true);
  const detail::WideProducts wide(GetParam());
  const at::NoGradGuard no_grad;
  const auto a = torch::randn({48, 64}).to(GetParam()), b = torch::randn({48, 64}).to(GetParam());
  const auto added = torch::randn({48, 48}).to(GetParam());
  const auto product = at::mm(a, b.t());

  auto out = torch::empty({0}, a.options());
  at::mm_out(out, a, b.t());
  EXPECT_TRUE(out.equal(product));
  auto columns = torch::empty({48, 48}, a.options()).t();
  at::mm_out(columns, a, b.t());
  EXPECT_TRUE(columns.equal(product));
  EXPECT_EQ(columns.stride(0), 1) << "the layout is the caller's";

  const auto sum = at::addmm(added, a, b.t());
  at::addmm_out(out, added, a, b.t());
  EXPECT_TRUE(out.equal(sum));
  auto self = added.clone();
  self.addmm_(a, b.t());
  EXPECT_TRUE(self.equal(sum));
  EXPECT_TRUE(at::_addmm_activation(added, a, b.t()).equal(at::relu(sum)));
  at::_addmm_activation_out(out, added, a, b.t());
  EXPECT_TRUE(out.equal(at::relu(sum)));

  const auto x = a.view({4, 12, 64}), y = b.view({4, 12, 64}).transpose(1, 2);
  auto batches = torch::empty({0}, a.options());
  at::bmm_out(batches, x, y);
  EXPECT_TRUE(batches.equal(at::bmm(x, y)));
  auto start = torch::randn({4, 12, 12}).to(GetParam());
  const auto total = at::baddbmm(start, x, y);
  at::baddbmm_out(batches, start, x, y);
  EXPECT_TRUE(batches.equal(total));
  start.baddbmm_(x, y);
  EXPECT_TRUE(start.equal(total));
}

TEST_P(CpuProducts, RefuseWhatLibTorchRefuses) {
  const detail::WideProducts wide(GetParam());
  const auto a = torch::randn({48, 64}).to(GetParam());
  EXPECT_THROW(at::mm(a, a), c10::Error);
  EXPECT_THROW(at::mm(a, torch::randn({64, 48})), c10::Error);
  auto other = torch::empty({48, 48});
  EXPECT_THROW(at::mm_out(other, a, a.t()), c10::Error);
  auto row = torch::randn({48}).to(GetParam());
  EXPECT_THROW(row.addmm_(a, a.t()), c10::Error) << "a sum in place cannot grow";
  EXPECT_EQ(row.dim(), 1);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CpuProducts, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& tested) { return std::string(toString(tested.param)); });

TEST(CpuProductsInTraining, LeaveOneDnnOnInEveryThread) {
  const Switched switched(true);
  std::atomic<bool> done = false, seen_off = false;
  std::thread watcher([&] {
    while (!done)
      if (!onednn_is_on()) seen_off = true;
  });
  for (const bool autocast : {false, true}) {
    torch::nn::Linear layer(64, 64);
    if (!autocast) layer->to(at::kBFloat16);
    const auto x = torch::randn({32, 64}, autocast ? at::kFloat : at::kBFloat16);
    for (int step = 0; step < 20; ++step) {
      Tensor loss;
      {
        const Autocast scope(c10::DeviceType::CPU, at::kBFloat16, autocast);
        loss = F::mse_loss(layer(x), x);
      }
      loss.to(at::kFloat).backward();
    }
  }
  done = true;
  watcher.join();
  EXPECT_FALSE(seen_off);
  EXPECT_TRUE(onednn_is_on());
}

TEST(CpuProductsInPrecision, EmulationIsSaidWhereItIsAsked) {
  const auto others = testing::captured_stderr([] {
    resolve_precision("bf16-true", c10::DeviceType::CUDA);
    resolve_precision("32-true", c10::DeviceType::CPU);
  });
  EXPECT_EQ(others.find("emulated"), std::string::npos) << others;
  const auto said = testing::captured_stderr([] {
    resolve_precision("bf16-true", c10::DeviceType::CPU);
    resolve_precision("bf16-true", c10::DeviceType::CPU);
  });
  const auto first = said.find("\"bf16-true\" is emulated");
  if (detail::cpu_has_products_in(at::kBFloat16)) {
    EXPECT_EQ(first, std::string::npos) << said;
  } else {
    EXPECT_NE(first, std::string::npos) << said;
    EXPECT_EQ(said.find("is emulated", first + 20), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace levin
