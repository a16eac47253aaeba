// Linear layers and products by cuBLASLt on the GPU against float64, and where they run.
#include <cmath>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/flop_counter.h"
#include "levin/devices/graphs.h"
#include "levin/kernels/activation_detail.h"
#include "levin/kernels/linear/constant_weights.h"
#include "levin/kernels/linear/linear.h"
#include "levin/kernels/linear/matmul.h"
#include "levin/kernels/linear/weight_casts.h"
#include "levin/kernels/linear/weight_casts_detail.h"
#include "levin/kernels/linear/weight_casts_launch.h"
#include "levin/kernels/norm/residual_norm.h"
#include "levin/precision/precision.h"
#include "levin/testing/gpu.h"
#include "levin/testing/operator_counts.h"
#include "levin/testing/scoped_variable.h"

namespace levin::linear_gpu_tests {
namespace {

using at::Tensor;
using kernels::detail::matmul;
using kernels::detail::matmul_and_sums;

class LinearGpu : public levin::testing::GpuTest {};

/// The difference as a part of the largest number.
double relative(const Tensor& mine, const Tensor& right) {
  if (mine.sizes() != right.sizes()) return 1;
  if (mine.numel() == 0) return 0;
  const auto a = mine.detach().to(at::kDouble).cpu(), b = right.detach().to(at::kDouble).cpu();
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-3)).item<double>();
}

double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-4 : dtype == at::kHalf ? 2e-3 : 1e-2;
}

/// Random numbers at an address that is no multiple of 16 bytes where `offset` is odd.
Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype, int64_t offset = 0) {
  const auto count = c10::multiply_integers(sizes);
  return torch::randn({count + offset}, at::kCUDA).to(dtype).narrow(0, offset, count).view(sizes);
}

Tensor leaf(const Tensor& tensor) {
  return tensor.detach().set_requires_grad(true);
}
Tensor wide(const Tensor& tensor) {
  return leaf(tensor.to(at::kDouble));
}

TEST_F(LinearGpu, FewRowsWithoutGradients) {
  torch::manual_seed(1);
  const at::NoGradGuard no_grad;
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const auto& [out, in] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 32}, {40, 96}, {257, 4096}, {12288, 4096}, {4096, 11008}, {50257, 768}, {33, 40}})
      for (const int64_t rows : {1, 3, 8, 9}) {
        SCOPED_TRACE(::testing::Message() << dtype << " " << out << " " << in << " " << rows);
        const auto x = numbers({1, rows, in}, dtype), weight = numbers({out, in}, dtype), bias = numbers({out}, dtype);
        for (const auto& added : {Tensor(), bias}) {
          const auto y = kernels::linear(x, weight, added);
          const auto right =
              at::linear(x.to(at::kDouble), weight.to(at::kDouble), added.defined() ? added.to(at::kDouble) : added);
          EXPECT_EQ(y.sizes(), right.sizes());
          const auto off = (y.to(at::kDouble) - right).abs().max().item<double>();
          EXPECT_LT(off, tolerance(dtype) * 4 * std::sqrt(static_cast<double>(in)));
          EXPECT_TRUE(y.equal(kernels::linear(x, weight, added)));
        }
      }
}

/// Each product reads what the one before it wrote. They start early; with constant weights these are read early, too.
TEST_F(LinearGpu, AChainOfProductsOfOneRow) {
  torch::manual_seed(2);
  const at::NoGradGuard no_grad;
  std::vector<Tensor> weights;
  for (int i = 0; i < 24; ++i) weights.push_back(numbers({2048, 2048}, at::kBFloat16) / std::sqrt(2048.0));
  const auto first = numbers({1, 2048}, at::kBFloat16);
  const auto chain = [&](auto&& product) {
    auto x = first;
    for (const auto& weight : weights) x = product(x, weight);
    return x;
  };
  const auto found = chain([](const Tensor& x, const Tensor& w) { return kernels::linear(x, w); });
  const auto after_each = chain([](const Tensor& x, const Tensor& w) {
    auto y = kernels::linear(x, w);
    torch::cuda::synchronize();
    return y;
  });
  EXPECT_TRUE(found.equal(after_each));
  const kernels::ConstantWeights constant;
  for (int i = 0; i < 50; ++i)
    EXPECT_TRUE(chain([](const Tensor& x, const Tensor& w) { return kernels::linear(x, w); }).equal(after_each)) << i;
}

TEST_F(LinearGpu, ProductsOfEveryLayoutAndSize) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const auto& [m, k, n] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {1, 1, 1}, {1, 64, 96}, {7, 5, 3}, {33, 129, 65}, {128, 768, 2304}, {197, 1000, 8}, {4096, 64, 96}})
      for (const int layouts : {0, 1, 2, 3})
        for (const int64_t offset : {0, 1}) {
          SCOPED_TRACE(::testing::Message()
                       << dtype << " " << m << " " << k << " " << n << " " << layouts << " " << offset);
          const auto a = layouts & 1 ? numbers({k, m}, dtype, offset).t() : numbers({m, k}, dtype, offset);
          const auto b = layouts & 2 ? numbers({n, k}, dtype, offset).t() : numbers({k, n}, dtype, offset);
          const auto bias = numbers({n}, dtype, offset);
          const auto right = a.to(at::kDouble).mm(b.to(at::kDouble));
          EXPECT_LT(relative(matmul(a, b, {}, dtype), right), tolerance(dtype));
          EXPECT_LT(relative(matmul(a, b, {}, at::kFloat), right), tolerance(at::kFloat));
          // The bias may cancel a product of one number.
          const auto added = right + bias.to(at::kDouble);
          const auto terms = (right.abs().max() + bias.abs().max()).item<double>();
          EXPECT_LT((matmul(a, b, bias, dtype).to(at::kDouble) - added).abs().max().item<double>(),
                    tolerance(dtype) * terms);
          for (const auto out : {dtype, at::kFloat})
            for (const auto sums : {dtype, at::kFloat}) {
              const auto both = matmul_and_sums(a, b, out, sums);
              EXPECT_EQ(std::get<0>(both).scalar_type(), out);
              EXPECT_EQ(std::get<1>(both).scalar_type(), sums);
              EXPECT_LT(relative(std::get<0>(both), right), tolerance(out));
              EXPECT_LT(relative(std::get<1>(both), a.to(at::kDouble).sum(1)), tolerance(sums));
            }
        }
}

TEST_F(LinearGpu, ProductsOfParts) {
  torch::manual_seed(2);
  const auto base = numbers({100, 3, 64}, at::kBFloat16), weight = numbers({96, 128}, at::kBFloat16);
  const auto a = base.select(1, 1), b = weight.narrow(1, 64, 64).t();  // longer rows than they have columns
  EXPECT_LT(relative(matmul(a, b, {}, at::kFloat), a.to(at::kDouble).mm(b.to(at::kDouble))), 1e-4);
  const auto scattered = numbers({100, 2 * 64}, at::kBFloat16).as_strided({100, 64}, {128, 2});
  EXPECT_LT(relative(matmul(scattered, b, {}, at::kFloat), scattered.to(at::kDouble).mm(b.to(at::kDouble))), 1e-4);
}

TEST_F(LinearGpu, ProductsIntoWhatIsThere) {
  torch::manual_seed(13);
  const auto a = numbers({70, 64}, at::kBFloat16), b = numbers({96, 64}, at::kBFloat16).t();
  const auto right = a.to(at::kDouble).mm(b.to(at::kDouble));
  for (const auto dtype : {at::kBFloat16, at::kFloat})
    for (const bool narrow : {false, true}) {
      const auto room = torch::zeros({70, 100}, at::TensorOptions(at::kCUDA).dtype(dtype));
      const auto out = narrow ? room.narrow(1, 2, 96) : torch::empty({70, 96}, room.options());
      out.fill_(3);
      kernels::detail::matmul_into(out, a, b, /*add=*/true);
      EXPECT_LT(relative(out, right + 3), tolerance(dtype));
      kernels::detail::matmul_into(out, a, b);
      EXPECT_LT(relative(out, right), tolerance(dtype));
      kernels::detail::matmul_into(out, a, b, /*add=*/true);
      EXPECT_LT(relative(out, 2 * right), tolerance(dtype));
      if (narrow) {
        EXPECT_EQ(room.narrow(1, 0, 2).abs().sum().item<double>(), 0);
      }
    }
}

/// A handle of cuBLAS takes 32 MiB for each thread that asks for it.
TEST_F(LinearGpu, ProductsHoldNoWorkspace) {
  const auto x = numbers({800, 256}, at::kBFloat16), weight = numbers({512, 256}, at::kBFloat16);
  const auto& device = detail::cuda_accelerator();
  int64_t before = 0, after = 0;
  std::thread other([&] {
    before = device.memory(x.device()).allocated;
    for (const auto rows : {4, 100, 800}) {
      const auto few = x.narrow(0, 0, rows);
      const auto y = matmul(few, weight.t(), {}, at::kBFloat16);
      (void)matmul(y, weight, {}, at::kFloat);
      (void)matmul_and_sums(y.t(), few, at::kBFloat16, at::kBFloat16);
    }
    after = device.memory(x.device()).allocated;
  });
  other.join();
  EXPECT_EQ(after, before);
}

TEST_F(LinearGpu, ProductsOfNothing) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const auto bias = torch::ones({3}, options);
  EXPECT_EQ(matmul(torch::empty({0, 4}, options), torch::ones({4, 3}, options), bias, at::kBFloat16).sizes(),
            at::IntArrayRef({0, 3}));
  const auto none = matmul(torch::empty({2, 0}, options), torch::empty({0, 3}, options), bias, at::kBFloat16);
  EXPECT_TRUE(torch::equal(none, bias.expand({2, 3})));
  const auto [product, sums] =
      matmul_and_sums(torch::empty({2, 0}, options), torch::empty({0, 3}, options), at::kFloat, at::kFloat);
  EXPECT_TRUE(torch::equal(product, torch::zeros({2, 3}, at::kCUDA)));
  EXPECT_TRUE(torch::equal(sums, torch::zeros({2}, at::kCUDA)));
}

TEST_F(LinearGpu, RefusesWhatDoesNotFit) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const auto a = torch::ones({2, 4}, options), b = torch::ones({4, 3}, options);
  EXPECT_THROW(matmul(a, b.t(), {}, at::kBFloat16), Error);
  EXPECT_THROW(matmul(a, b.to(at::kHalf), {}, at::kBFloat16), Error);
  EXPECT_THROW(matmul(a, b, torch::ones({4}, options), at::kBFloat16), Error);
  // The layer leaves the words to torch.
  EXPECT_THROW(kernels::linear(a, torch::ones({3, 5}, options), torch::ones({3}, options)), c10::Error);
  EXPECT_THROW(kernels::linear(a, torch::ones({3, 4}, options), torch::ones({3}, at::kBFloat16)), c10::Error);
}

struct LayerCase {
  at::ScalarType dtype = at::kBFloat16;
  bool mixed = false;
  std::vector<int64_t> sizes;
  int64_t out = 96;
};

/// Forward and all gradients against float64, with the numbers that the layer is given.
void check_layer(
    const LayerCase& c, const std::function<Tensor(const Tensor&)>& view = [](auto& x) { return x; }) {
  const auto parameters = c.mixed ? at::kFloat : c.dtype;
  const auto in = c.sizes.back();
  const auto base = leaf(numbers(c.sizes, parameters));
  const auto x = view(base);
  const auto weight = leaf(numbers({c.out, x.size(-1)}, parameters).div_(std::sqrt(in)));
  const auto bias = leaf(numbers({c.out}, parameters));
  std::optional<Autocast> autocast;
  if (c.mixed) autocast.emplace(at::kCUDA, c.dtype);
  const auto y = kernels::linear(x, weight, bias);
  autocast.reset();
  ASSERT_EQ(y.scalar_type(), c.dtype);
  const auto grad = numbers(y.sizes(), c.dtype);
  y.backward(grad);

  const auto base_wide = wide(base.to(c.dtype)), weight_wide = wide(weight.to(c.dtype)),
             bias_wide = wide(bias.to(c.dtype));
  const auto right = at::linear(view(base_wide), weight_wide, bias_wide);
  right.backward(grad.to(at::kDouble));
  EXPECT_LT(relative(y, right), tolerance(c.dtype));
  EXPECT_LT(relative(base.grad(), base_wide.grad()), tolerance(c.dtype));
  EXPECT_EQ(weight.grad().scalar_type(), parameters);
  EXPECT_LT(relative(weight.grad(), weight_wide.grad()), tolerance(parameters));
  EXPECT_LT(relative(bias.grad(), bias_wide.grad()), tolerance(parameters));
}

TEST_F(LinearGpu, LayersOfEveryShape) {
  torch::manual_seed(3);
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const bool mixed : {false, true})
      for (const auto& sizes : std::vector<std::vector<int64_t>>{
               {64}, {1, 64}, {0, 64}, {3, 0, 64}, {70, 64}, {5, 33, 7}, {4, 197, 1024}, {2, 3, 5, 129}})
        for (const int64_t out : {1, 10, 1000, 3072}) {
          SCOPED_TRACE(::testing::Message() << dtype << (mixed ? " mixed " : " ") << sizes << " " << out);
          check_layer({dtype, mixed, sizes, out});
        }
}

TEST_F(LinearGpu, LayersOfViews) {
  torch::manual_seed(4);
  for (const bool mixed : {false, true}) {
    check_layer({at::kBFloat16, mixed, {6, 9, 64}}, [](const Tensor& x) { return x.narrow(1, 0, 1); });
    check_layer({at::kBFloat16, mixed, {6, 64, 64}}, [](const Tensor& x) { return x.transpose(1, 2); });
    check_layer({at::kBFloat16, mixed, {6, 5, 64}}, [](const Tensor& x) { return x.transpose(0, 1); });
    check_layer({at::kBFloat16, mixed, {64}}, [](const Tensor& x) { return x.expand({7, 64}); });
  }
}

TEST_F(LinearGpu, LayersWithoutABias) {
  torch::manual_seed(12);
  for (const bool mixed : {false, true}) {
    const auto parameters = mixed ? at::kFloat : at::kBFloat16;
    const auto x = leaf(numbers({4, 50, 64}, parameters)), weight = leaf(numbers({96, 64}, parameters));
    std::optional<Autocast> autocast;
    if (mixed) autocast.emplace(at::kCUDA, at::kBFloat16);
    const auto y = kernels::linear(x, weight);
    autocast.reset();
    const auto grad = numbers({4, 50, 96}, at::kBFloat16);
    y.backward(grad);
    const auto g = grad.to(at::kDouble).flatten(0, 1), a = x.to(at::kBFloat16).to(at::kDouble).flatten(0, 1);
    const auto w = weight.to(at::kBFloat16).to(at::kDouble);
    EXPECT_LT(relative(y.flatten(0, 1), a.mm(w.t())), tolerance(at::kBFloat16));
    EXPECT_LT(relative(x.grad().flatten(0, 1), g.mm(w)), tolerance(at::kBFloat16));
    EXPECT_LT(relative(weight.grad(), g.t().mm(a)), tolerance(parameters));
  }
}

TEST_F(LinearGpu, LayersWithAnActivation) {
  using kernels::Activation;
  torch::manual_seed(14);
  for (const auto kind : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu, Activation::kSilu})
    for (const auto dtype : {at::kBFloat16, at::kHalf})
      for (const bool mixed : {false, true})
        for (const auto& sizes :
             std::vector<std::vector<int64_t>>{{64}, {0, 64}, {5, 33, 64}, {4, 197, 64}, {5003, 64}})
          for (const int64_t out : {10, 96, 1000, 4096}) {
            SCOPED_TRACE(::testing::Message()
                         << static_cast<int>(kind) << " " << dtype << (mixed ? " mixed " : " ") << sizes << " " << out);
            const auto parameters = mixed ? at::kFloat : dtype;
            const auto x = leaf(numbers(sizes, parameters)), weight = leaf(numbers({out, 64}, parameters).div_(8));
            const auto bias = leaf(numbers({out}, parameters));
            const auto a = leaf(x), b = leaf(weight), c = leaf(bias);
            std::optional<Autocast> autocast;
            if (mixed) autocast.emplace(at::kCUDA, dtype);
            const auto y = kernels::linear_activation(x, weight, bias, kind);
            const auto right = kernels::activation(kernels::linear(a, b, c), kind);
            autocast.reset();
            EXPECT_TRUE(torch::equal(y, right));
            const auto grad = numbers(y.sizes(), dtype);
            y.backward(grad);
            right.backward(grad);
            EXPECT_LT(relative(x.grad(), a.grad()), tolerance(dtype));
            EXPECT_LT(relative(weight.grad(), b.grad()), tolerance(dtype));
            EXPECT_EQ(weight.grad().scalar_type(), parameters);
            EXPECT_EQ(bias.grad().scalar_type(), parameters);
            // Numbers are added up before they are rounded.
            EXPECT_LT(relative(bias.grad(), c.grad()), 2 * tolerance(dtype));
          }
}

TEST_F(LinearGpu, SumsOfActivationsInTheSameOrder) {
  torch::manual_seed(15);
  const auto x = numbers({12608, 4096}, at::kBFloat16), grad = numbers({12608, 4096}, at::kBFloat16);
  const auto run = [&] {
    return kernels::detail::activation_backward_and_sums(grad, x, kernels::Activation::kGelu, at::kFloat);
  };
  const auto [out, sums] = run();
  EXPECT_TRUE(torch::equal(out, std::get<0>(run())));
  EXPECT_TRUE(torch::equal(sums, std::get<1>(run())));
  const auto right = at::gelu_backward(grad.to(at::kDouble), x.to(at::kDouble));
  EXPECT_LT(relative(sums, right.sum(0)), 1e-4);
  EXPECT_LT(relative(out, right), 1e-2);
}

/// The norm behind a layer adds up its gradient, with and without dropout, in rows of one warp and of several.
TEST_F(LinearGpu, GradientsOfBiasesFromTheNormBehind) {
  for (const auto stream_dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t columns : {64, 768, 1024, 5120})
      for (const double dropout : {0.0, 0.25}) {
        SCOPED_TRACE(::testing::Message() << stream_dtype << " " << columns << " " << dropout);
        const auto run = [&](const char* sums) {
          const testing::ScopedVariable wanted("LEVIN_BIAS_SUMS", sums);
          torch::manual_seed(31);
          const auto x = leaf(numbers({999, 48}, at::kBFloat16));
          const auto weight = leaf(numbers({columns, 48}, at::kBFloat16));
          const auto bias = leaf(numbers({columns}, at::kBFloat16)),
                     stream = leaf(numbers({999, columns}, stream_dtype));
          const auto scale = leaf(numbers({columns}, at::kFloat)), shift = leaf(numbers({columns}, at::kFloat));
          const auto branch = kernels::linear(x, weight, bias);
          const auto [output, h] = kernels::residual_norm(stream, branch, scale, shift, 1e-5, false, dropout);
          (output.to(at::kFloat).sin().sum() + h.to(at::kFloat).square().sum() * 0.1).backward();
          return std::vector<Tensor>{bias.grad(), weight.grad(), x.grad(), stream.grad(), scale.grad(), shift.grad()};
        };
        const auto plain = run("0"), known = run("1");
        for (size_t i = 0; i < plain.size(); ++i) EXPECT_LT(relative(known[i], plain[i]), 1e-2) << i;
        EXPECT_TRUE(known[3].equal(plain[3]));
      }
}

TEST_F(LinearGpu, GradientsThatAreNotContiguous) {
  torch::manual_seed(5);
  const auto x = leaf(numbers({40, 64}, at::kBFloat16)), weight = leaf(numbers({96, 64}, at::kBFloat16));
  const auto bias = leaf(numbers({96}, at::kBFloat16)), other = leaf(bias), again = leaf(weight);
  const auto grad = numbers({96, 40}, at::kBFloat16).t();
  kernels::linear(x, weight, bias).backward(grad);
  kernels::linear(x.detach(), again, other).backward(grad.contiguous());
  EXPECT_TRUE(torch::equal(weight.grad(), again.grad()));
  EXPECT_TRUE(torch::equal(bias.grad(), other.grad()));
  const auto last = leaf(bias);
  kernels::linear(x.detach(), weight.detach(), last).sum().backward();  // a gradient of one number
  EXPECT_TRUE(torch::equal(last.grad(), torch::full({96}, 40, last.options())));
}

TEST_F(LinearGpu, OnlyGradientsThatAreAskedFor) {
  torch::manual_seed(6);
  const auto x = numbers({40, 64}, at::kBFloat16), weight = numbers({96, 64}, at::kBFloat16);
  const auto bias = numbers({96}, at::kBFloat16), grad = numbers({40, 96}, at::kBFloat16);
  for (int asked = 1; asked < 8; ++asked) {
    const auto a = x.detach().set_requires_grad(asked & 1), b = weight.detach().set_requires_grad(asked & 2);
    const auto c = bias.detach().set_requires_grad(asked & 4);
    kernels::linear(a, b, c).backward(grad);
    EXPECT_EQ(a.grad().defined(), (asked & 1) != 0);
    EXPECT_EQ(b.grad().defined(), (asked & 2) != 0);
    EXPECT_EQ(c.grad().defined(), (asked & 4) != 0);
    const auto g = grad.to(at::kDouble);
    if (asked & 1) {
      EXPECT_LT(relative(a.grad(), g.mm(weight.to(at::kDouble))), 1e-2);
    }
    if (asked & 2) {
      EXPECT_LT(relative(b.grad(), g.t().mm(x.to(at::kDouble))), 1e-2);
    }
    if (asked & 4) {
      EXPECT_LT(relative(c.grad(), g.sum(0)), 1e-2);
    }
  }
}

TEST_F(LinearGpu, GradientsOfGradients) {
  torch::manual_seed(7);
  const auto x = leaf(numbers({40, 64}, at::kBFloat16)), weight = leaf(numbers({96, 64}, at::kBFloat16));
  const auto bias = leaf(numbers({96}, at::kBFloat16));
  const auto loss = kernels::linear(x, weight, bias).sin().sum();
  const std::vector<Tensor> all{x, weight, bias};
  const auto plain = torch::autograd::grad({loss}, all, {}, /*retain_graph=*/true);
  const auto graph = torch::autograd::grad({loss}, all, {}, true, /*create_graph=*/true);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_LT(relative(graph[i], plain[i]), 1e-2) << i;
  EXPECT_GT(torch::autograd::grad({graph[0].square().sum()}, {weight})[0].abs().sum().item<double>(), 0);
}

TEST_F(LinearGpu, ComputesTheSameEveryTime) {
  torch::manual_seed(8);
  const auto x = numbers({12608, 1024}, at::kBFloat16), weight = numbers({3072, 1024}, at::kBFloat16);
  const auto grad = numbers({12608, 3072}, at::kBFloat16), bias = numbers({3072}, at::kBFloat16);
  const auto first = matmul(x, weight.t(), bias, at::kBFloat16);
  const auto [product, sums] = matmul_and_sums(grad.t(), x, at::kFloat, at::kFloat);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(torch::equal(matmul(x, weight.t(), bias, at::kBFloat16), first));
    const auto again = matmul_and_sums(grad.t(), x, at::kFloat, at::kFloat);
    EXPECT_TRUE(torch::equal(std::get<0>(again), product));
    EXPECT_TRUE(torch::equal(std::get<1>(again), sums));
  }
}

TEST_F(LinearGpu, InACapturedGraph) {
  torch::manual_seed(9);
  const auto graphs = levin::detail::cuda_graphs(c10::Device(at::kCUDA, 0));
  for (const int64_t rows : {48, 49}) {  // the second shape is met in the capture first
    const auto x = numbers({rows, 64}, at::kBFloat16), grad = numbers({rows, 96}, at::kBFloat16);
    auto weight = leaf(numbers({96, 64}, at::kFloat)), bias = leaf(numbers({96}, at::kFloat));
    Tensor y;
    std::vector<Tensor> grads;
    const auto step = [&] {
      const Autocast autocast(at::kCUDA, at::kBFloat16);
      y = kernels::linear(x, weight, bias);
      grads = torch::autograd::grad({y}, {weight, bias}, {grad});
    };
    if (rows == 48) step();
    // Leaves belong to the stream of their first backward, which must be that of the capture.
    weight = leaf(weight.detach().clone());
    bias = leaf(bias.detach().clone());
    torch::cuda::synchronize();
    const auto graph = graphs->capture(step);
    graph->replay();
    torch::cuda::synchronize();
    const auto captured = y.clone();
    const auto of_weight = grads[0].clone(), of_bias = grads[1].clone();
    step();
    EXPECT_TRUE(torch::equal(captured, y)) << rows;
    EXPECT_TRUE(torch::equal(of_weight, grads[0])) << rows;
    EXPECT_TRUE(torch::equal(of_bias, grads[1])) << rows;
  }
}

TEST_F(LinearGpu, OperationsAreCountedOnce) {
  const auto x = leaf(numbers({32, 64}, at::kBFloat16)), weight = leaf(numbers({96, 64}, at::kBFloat16));
  const auto bias = leaf(numbers({96}, at::kBFloat16)), grad = numbers({32, 96}, at::kBFloat16);
  const FlopCounter counter;
  kernels::linear(x, weight, bias).backward(grad);
  EXPECT_EQ(counter.flops(), 3 * 2.0 * 32 * 64 * 96);
}

// ---- casts of weights

/// The bytes of a list of 16-bit tensors, which a comparison of numbers would not tell apart.
void expect_same_bits(const std::vector<Tensor>& found, const std::vector<Tensor>& from) {
  ASSERT_EQ(found.size(), from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const auto right = torch::empty_like(found[i]).copy_(from[i].detach());
    EXPECT_TRUE(torch::equal(found[i].view(at::kShort), right.view(at::kShort))) << i << " " << from[i].sizes();
  }
}

std::vector<Tensor> places_for(const std::vector<Tensor>& from, at::ScalarType dtype, int64_t offset = 0) {
  std::vector<Tensor> to;
  for (const auto& each : from) {
    const auto memory = torch::full({each.numel() + offset}, 7, each.options().dtype(dtype));
    to.push_back(memory.narrow(0, offset, each.numel()).view(each.sizes()));
  }
  return to;
}

TEST_F(LinearGpu, CastsAreCopiesOfEverySize) {
  torch::manual_seed(20);
  using kernels::detail::CastTable, kernels::detail::kCastElements;
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const int64_t offset : {0, 1, 2, 4, 8}) {
      SCOPED_TRACE(::testing::Message() << dtype << " at " << offset);
      std::vector<Tensor> from;
      for (const int64_t count :
           {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{9}, int64_t{0}, int64_t{2047}, int64_t{2048}, kCastElements - 1,
            kCastElements, kCastElements + 1, 3 * kCastElements + 13, int64_t{1234567}})
        from.push_back(numbers({count}, at::kFloat, offset));
      from.push_back(numbers({1024, 768}, at::kFloat, offset));
      for (int64_t i = 0; i < 2 * CastTable::kEntries; ++i) from.push_back(numbers({1 + 37 * i}, at::kFloat, i % 4));
      const auto to = places_for(from, dtype, offset);
      kernels::detail::cast_weights(to, from);
      expect_same_bits(to, from);
    }
}

TEST_F(LinearGpu, CastsRoundAsCopiesDo) {
  // Every sign and exponent with mantissas around each border of rounding; infinities, NaN of any payload, denormals.
  const auto high = torch::arange(int64_t{1} << 16, torch::dtype(at::kLong).device(at::kCUDA)).mul_(int64_t{1} << 16);
  std::vector<Tensor> from;
  for (const int64_t low : {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff})
    from.push_back((high + low).to(at::kInt).view(at::kFloat));
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto to = places_for(from, dtype);
    kernels::detail::cast_weights(to, from);
    expect_same_bits(to, from);
    // Number by number, not in packs.
    std::vector<Tensor> shifted;
    for (const auto& each : from) shifted.push_back(each.narrow(0, 1, each.numel() - 1));
    const auto places = places_for(shifted, dtype);
    kernels::detail::cast_weights(places, shifted);
    expect_same_bits(places, shifted);
  }
}

TEST_F(LinearGpu, CastsOfOtherTensorsAreTorchs) {
  torch::manual_seed(21);
  const std::vector<Tensor> from{numbers({33, 40}, at::kFloat),
                                 numbers({33, 40}, at::kFloat).t(),
                                 numbers({33, 40}, at::kDouble),
                                 numbers({33, 40}, at::kHalf),
                                 numbers({33, 80}, at::kFloat).slice(1, 0, 80, 2),
                                 torch::randn({33, 40}),
                                 numbers({40}, at::kFloat).expand({33, 40}),
                                 numbers({2, 8, 5, 5}, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast)};
  std::vector<Tensor> to;
  for (const auto& each : from) to.push_back(torch::empty(each.sizes(), torch::dtype(at::kBFloat16).device(at::kCUDA)));
  to.push_back(torch::empty_like(from[7], from[7].options().dtype(at::kBFloat16)));  // strides as the weight's
  auto weights = from;
  weights.push_back(from[7]);
  kernels::detail::cast_weights(to, weights);
  expect_same_bits(to, weights);
  const std::vector<Tensor> wide{torch::empty({33, 40}, at::kCUDA)};
  kernels::detail::cast_weights(wide, {from[0]});
  EXPECT_TRUE(torch::equal(wide[0], from[0]));
}

TEST_F(LinearGpu, CastsInAGraph) {
  torch::manual_seed(22);
  std::vector<Tensor> from;
  for (int64_t i = 0; i < 200; ++i) from.push_back(numbers({1 + 101 * i}, at::kFloat));
  const auto to = places_for(from, at::kBFloat16);
  kernels::detail::cast_weights(to, from);
  torch::cuda::synchronize();
  const auto graph =
      levin::detail::cuda_graphs(c10::Device(at::kCUDA, 0))->capture([&] { kernels::detail::cast_weights(to, from); });
  for (const auto& each : from) each.mul_(-3);
  graph->replay();
  torch::cuda::synchronize();
  expect_same_bits(to, from);
}

struct MixedLayer {
  Tensor weight = leaf(numbers({96, 64}, at::kFloat)), bias = leaf(numbers({96}, at::kFloat));

  std::vector<Tensor> run(const Tensor& x, kernels::WeightCasts* casts) const {
    const Autocast autocast(at::kCUDA, at::kBFloat16);
    std::optional<kernels::WeightCastsScope> scope;
    if (casts) scope.emplace(*casts, at::kBFloat16);
    const auto y = kernels::linear(x, weight, bias);
    const auto grads = torch::autograd::grad({y.square().sum()}, {weight, bias});
    return {y, grads[0], grads[1]};
  }
};

TEST_F(LinearGpu, WeightsAreCastWhenForwardBegins) {
  torch::manual_seed(10);
  const MixedLayer layer;
  const auto x = numbers({32, 64}, at::kFloat);
  kernels::WeightCasts casts;
  for (int step = 0; step < 3; ++step) {  // the first one has nothing to go by
    const auto mine = layer.run(x, &casts), theirs = layer.run(x, nullptr);
    for (size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(torch::equal(mine[i], theirs[i])) << step << " " << i;
    const at::NoGradGuard no_grad;
    layer.weight.sub_(0.1 * mine[1]);
  }
  const levin::testing::OperatorCounts counted;
  kernels::WeightCastsScope scope(casts, at::kBFloat16);
  EXPECT_EQ(counted["levin::cast_weights_"], 1);
  const auto cast = scope.find(layer.weight, at::kBFloat16);
  ASSERT_TRUE(cast.defined());
  EXPECT_TRUE(torch::equal(cast, layer.weight.to(at::kBFloat16)));
  EXPECT_TRUE(scope.find(layer.bias, at::kBFloat16).defined());
  EXPECT_FALSE(scope.find(layer.weight, at::kHalf).defined());
  EXPECT_FALSE(scope.find(layer.weight.narrow(0, 0, 10), at::kBFloat16).defined());
}

TEST_F(LinearGpu, WeightsThatChangeInForwardAreCastAgain) {
  torch::manual_seed(11);
  const MixedLayer layer;
  const auto x = numbers({32, 64}, at::kFloat);
  kernels::WeightCasts casts;
  layer.run(x, &casts);
  const Autocast autocast(at::kCUDA, at::kBFloat16);
  kernels::WeightCastsScope scope(casts, at::kBFloat16);
  {
    const at::NoGradGuard no_grad;
    layer.weight.mul_(2);
  }
  EXPECT_FALSE(scope.find(layer.weight, at::kBFloat16).defined());
  const auto y = kernels::linear(x, layer.weight, layer.bias);
  EXPECT_LT(relative(y, at::linear(x.to(at::kDouble), layer.weight.to(at::kDouble), layer.bias.to(at::kDouble))), 2e-2);
}

TEST_F(LinearGpu, CastsForgetWeightsThatAreGone) {
  kernels::WeightCasts casts;
  const auto x = numbers({32, 64}, at::kFloat);
  MixedLayer().run(x, &casts);
  const MixedLayer frozen;
  frozen.run(x, &casts);
  frozen.weight.set_requires_grad(false);
  kernels::WeightCastsScope scope(casts, at::kBFloat16);
  EXPECT_FALSE(scope.find(frozen.weight, at::kBFloat16).defined());
  EXPECT_TRUE(scope.find(frozen.bias, at::kBFloat16).defined());
}

}  // namespace
}  // namespace levin::linear_gpu_tests
