// The fused kernels of transformers on the GPU against the same layers in double. Skipped where there is none.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/activation.h"
#include "levin/kernels/linear/linear.h"
#include "levin/kernels/norm/residual_norm.h"
#include "levin/precision/precision.h"
#include "levin/testing/gpu.h"

namespace levin::kernels {
namespace {

class FusedLayersOnCuda : public levin::testing::GpuTest {};

constexpr int64_t kSizes[]{1, 7, 64, 192, 197, 512, 768, 1000, 1024, 1280, 3072, 4096, 5000, 8192, 12288, 20000};

double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-10 : dtype == at::kFloat ? 2e-5 : dtype == at::kHalf ? 3e-3 : 2e-2;
}

/// The difference as a part of the largest number.
double relative(const Tensor& mine, const Tensor& right) {
  if (mine.numel() == 0) return mine.sizes() == right.sizes() ? 0 : 1;
  const auto a = mine.detach().to(at::kDouble).cpu(), b = right.detach().to(at::kDouble).cpu();
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-3)).item<double>();
}

/// Random numbers on the GPU, at an odd address where `offset`.
Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype, int64_t offset = 0) {
  const auto count = c10::multiply_integers(sizes);
  return torch::randn({count + offset}, at::kCUDA).to(dtype).narrow(0, offset, count).view(sizes);
}

Tensor wide(const Tensor& tensor) {
  return tensor.defined() ? tensor.detach().to(at::kDouble).set_requires_grad(true) : Tensor();
}
Tensor leaf(const Tensor& tensor) {
  return tensor.defined() ? tensor.detach().set_requires_grad(true) : Tensor();
}

struct NormCase {
  at::ScalarType stream, branch, output, weight;
  bool rms = false, has_branch = true, has_bias = true;
  int64_t offset = 0;
};

void check_norm(const NormCase& c, at::IntArrayRef sizes) {
  const auto columns = sizes.back();
  const auto stream = leaf(numbers(sizes, c.stream, c.offset));
  const auto branch = c.has_branch ? leaf(numbers(sizes, c.branch, c.offset)) : Tensor();
  const auto weight = leaf(numbers({columns}, c.weight, c.offset).add_(1)),
             bias = c.has_bias ? leaf(numbers({columns}, c.weight)) : Tensor();
  std::optional<Autocast> autocast;
  if (c.output != c.stream) autocast.emplace(at::kCUDA, c.output);
  const auto [output, h] = residual_norm(stream, branch, weight, bias, 1e-5, c.rms);
  autocast.reset();
  ASSERT_EQ(output.scalar_type(), c.output);
  ASSERT_EQ(h.scalar_type(), c.stream);
  const auto grad = numbers(sizes, c.output), residual = numbers(sizes, c.stream);
  torch::autograd::backward({output, h}, {grad, residual});

  const auto x = wide(stream), b = wide(branch), w = wide(weight), v = wide(bias);
  auto sum = c.has_branch ? x + b : x;
  sum = sum + (sum.detach().to(c.stream).to(at::kDouble) - sum.detach());  // rounded, as it is kept
  const auto centered = c.rms ? sum : sum - sum.mean(-1, true);
  auto right = centered * (centered.square().mean(-1, true) + 1e-5).rsqrt() * w;
  if (c.has_bias) right = right + v;
  torch::autograd::backward({right, sum}, {grad.to(at::kDouble), residual.to(at::kDouble)});

  const auto narrow = tolerance(c.output), of_stream = std::max(tolerance(c.stream), narrow / 10);
  EXPECT_LT(relative(output, right), narrow);
  EXPECT_LT(relative(h, sum), tolerance(c.stream));
  EXPECT_LT(relative(stream.grad(), x.grad()), of_stream);
  EXPECT_LT(relative(weight.grad(), w.grad()), std::max(of_stream, tolerance(c.weight)));
  if (c.has_branch) {
    EXPECT_LT(relative(branch.grad(), b.grad()), std::max(of_stream, tolerance(c.branch)));
  }
  if (c.has_bias) {
    EXPECT_LT(relative(bias.grad(), v.grad()), std::max(of_stream, tolerance(c.weight)));
  }
}

TEST_F(FusedLayersOnCuda, NormOfEverySizeAndDtype) {
  torch::manual_seed(1);
  for (const auto size : kSizes)
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
      for (const bool rms : {false, true}) {
        if (size == 1 && !rms) continue;  // a single number is always 0: there is no scale to compare with
        SCOPED_TRACE(::testing::Message() << size << " " << dtype << (rms ? " rms" : " layer"));
        check_norm({dtype, dtype, dtype, dtype, rms}, {3, 17, size});
        check_norm({dtype, dtype, dtype, at::kFloat, rms, /*has_branch=*/false, /*has_bias=*/false}, {51, size});
      }
}

TEST_F(FusedLayersOnCuda, NormOfManyRows) {
  torch::manual_seed(2);
  // Blocks of backward have several rows one after the other, of which the last are not for all.
  for (const auto size : {64, 192, 768, 1024, 1280, 2048, 4096, 8192}) {
    SCOPED_TRACE(size);
    const int64_t rows = size > 1280 ? 1003 : 5003;
    for (const auto dtype : {at::kFloat, at::kBFloat16}) check_norm({dtype, dtype, dtype, at::kFloat}, {rows, size});
    check_norm({at::kFloat, at::kBFloat16, at::kBFloat16, at::kFloat}, {rows, size});
    check_norm({at::kBFloat16, at::kBFloat16, at::kBFloat16, at::kBFloat16, true}, {788, size});
  }
}

TEST_F(FusedLayersOnCuda, NormIsTheSameEveryTime) {
  torch::manual_seed(7);
  for (const auto size : {768, 1024, 4096})
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << size << " " << dtype);
      const auto stream = leaf(numbers({3001, size}, dtype)), branch = leaf(numbers({3001, size}, at::kBFloat16));
      const auto weight = leaf(numbers({size}, at::kFloat)), bias = leaf(numbers({size}, at::kFloat));
      const auto grad = numbers({3001, size}, at::kBFloat16), residual = numbers({3001, size}, dtype);
      const auto run = [&] {
        const Autocast autocast(at::kCUDA, at::kBFloat16);
        const auto [output, h] = residual_norm(stream, branch, weight, bias, 1e-5, false);
        auto all = torch::autograd::grad({output, h}, {stream, branch, weight, bias}, {grad, residual});
        all.push_back(output);
        return all;
      };
      const auto first = run(), second = run();
      for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(second[i])) << i;
    }
}

TEST_F(FusedLayersOnCuda, NormOfMixedDtypes) {
  torch::manual_seed(3);
  for (const auto size : {64, 197, 768, 1280, 5000, 12288})
    for (const auto narrow : {at::kBFloat16, at::kHalf})
      for (const auto branch : {narrow, at::kFloat, narrow == at::kHalf ? at::kBFloat16 : at::kHalf}) {
        SCOPED_TRACE(::testing::Message() << size << " " << narrow << " " << branch);
        check_norm({at::kFloat, branch, narrow, at::kFloat}, {40, size});
        check_norm({at::kFloat, branch, narrow, narrow, true}, {40, size});
        check_norm({at::kFloat, branch, at::kFloat, at::kFloat}, {40, size});
        check_norm({at::kFloat, at::kFloat, narrow, at::kFloat, false, /*has_branch=*/false}, {40, size});
      }
}

TEST_F(FusedLayersOnCuda, NormAtOddAddresses) {
  torch::manual_seed(4);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    check_norm({dtype, dtype, dtype, dtype, false, true, true, /*offset=*/1}, {40, 768});
    check_norm({dtype, dtype, dtype, dtype, true, true, true, /*offset=*/3}, {40, 1024});
  }
}

TEST_F(FusedLayersOnCuda, NormOfViewsAndOfNothing) {
  torch::manual_seed(5);
  const auto base = torch::randn({4, 6, 64}, at::kCUDA);
  const auto stream = base.narrow(1, 0, 1), branch = torch::randn({64, 1, 4}, at::kCUDA).permute({2, 1, 0});
  const auto weight = torch::randn({64}, at::kCUDA), bias = torch::randn({64}, at::kCUDA);
  const auto [output, h] = residual_norm(stream, branch, weight, bias, 1e-5, false);
  EXPECT_TRUE(torch::allclose(h, stream + branch));
  EXPECT_TRUE(torch::allclose(output, at::layer_norm(stream + branch, {64}, weight, bias, 1e-5), 1e-4, 1e-5));
  const auto none = torch::empty({0, 64}, at::kCUDA).set_requires_grad(true), scale = leaf(weight);
  const auto empty = residual_norm(none, none.detach(), scale, bias, 1e-5, false);
  EXPECT_EQ(empty.output.sizes(), none.sizes());
  empty.output.sum().backward();
  EXPECT_TRUE(torch::equal(scale.grad(), torch::zeros_like(weight)));
}

TEST_F(FusedLayersOnCuda, NormWithOneGradientOnly) {
  torch::manual_seed(6);
  const auto x = leaf(numbers({30, 768}, at::kFloat)), y = leaf(numbers({30, 768}, at::kBFloat16));
  const auto weight = leaf(numbers({768}, at::kFloat));
  const auto grad = numbers({30, 768}, at::kFloat);
  residual_norm(x, y, weight, {}, 1e-5, false).stream.backward(grad);
  EXPECT_TRUE(torch::equal(x.grad(), grad));
  EXPECT_TRUE(torch::equal(y.grad(), grad.to(at::kBFloat16)));
  EXPECT_FALSE(weight.grad().defined());
  const auto z = leaf(x), right = leaf(x);
  residual_norm(z, {}, weight.detach(), {}, 1e-5, true).output.backward(grad);
  at::rms_norm(right, {768}, weight.detach(), 1e-5).backward(grad);
  EXPECT_LT(relative(z.grad(), right.grad()), 1e-5);
}

TEST_F(FusedLayersOnCuda, DropoutDropsTheSameInBackward) {
  for (const auto size : {1024, 197})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const auto stream = torch::zeros({1000, size}, at::TensorOptions(at::kCUDA).dtype(dtype));
      const auto branch = torch::ones_like(stream).set_requires_grad(true);
      const auto weight = torch::ones({size}, stream.options()).set_requires_grad(true);
      const auto run = [&] { return residual_norm(stream, branch, weight, {}, 1e-5, false, 0.3); };
      torch::manual_seed(9);
      const auto first = run(), second = run();
      torch::manual_seed(9);
      const auto again = run();
      EXPECT_TRUE(torch::equal(first.stream, again.stream));
      EXPECT_FALSE(torch::equal(first.stream, second.stream));
      const auto count = static_cast<double>(stream.numel());
      const auto kept = first.stream.ne(0).to(at::kDouble);
      EXPECT_NEAR(kept.mean().item<double>(), 0.7, 5 * std::sqrt(0.21 / count));
      EXPECT_LT(relative(first.stream, kept / 0.7), tolerance(dtype));
      // Neighbours, and rows, know nothing of each other.
      const auto centered = kept - 0.7;
      for (const int dim : {0, 1}) {
        const auto length = centered.size(dim) - 1;
        const auto product = (centered.narrow(dim, 0, length) * centered.narrow(dim, 1, length)).mean();
        EXPECT_NEAR(product.item<double>(), 0, 5 * 0.21 / std::sqrt(count));
      }
      torch::autograd::backward({first.stream}, {torch::ones_like(stream)});
      EXPECT_TRUE(torch::equal(branch.grad(), first.stream.detach()));
    }
}

TEST_F(FusedLayersOnCuda, DropoutIsTheSameAtAnyAddress) {
  const auto values = torch::ones({20, 768}, at::kCUDA);
  const auto odd = torch::ones({20 * 768 + 1}, at::kCUDA).narrow(0, 1, 20 * 768).view({20, 768});
  const auto weight = torch::ones({768}, at::kCUDA);
  const auto run = [&](const Tensor& branch) {
    torch::manual_seed(4);
    return residual_norm(torch::zeros_like(values), branch, weight, {}, 1e-5, false, 0.5).stream;
  };
  EXPECT_TRUE(torch::equal(run(values), run(odd)));
}

TEST_F(FusedLayersOnCuda, GradientsOfGradients) {
  torch::manual_seed(8);
  const auto x = leaf(numbers({10, 64}, at::kDouble)), y = leaf(numbers({10, 64}, at::kDouble));
  const auto weight = leaf(numbers({64}, at::kDouble)), bias = leaf(numbers({64}, at::kDouble));
  const auto [output, h] = residual_norm(x, y, weight, bias, 1e-5, false, 0.4);
  const auto loss = output.sin().sum() + h.square().sum();
  const std::vector<Tensor> all{x, y, weight, bias};
  const auto plain = torch::autograd::grad({loss}, all, {}, /*retain_graph=*/true);
  const auto graph = torch::autograd::grad({loss}, all, {}, true, /*create_graph=*/true);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_LT(relative(graph[i], plain[i]), 1e-9) << i;
  EXPECT_TRUE(torch::autograd::grad({graph[1].square().sum()}, {y})[0].abs().sum().item<double>() > 0);
}

TEST_F(FusedLayersOnCuda, Activations) {
  torch::manual_seed(10);
  for (const auto kind : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu, Activation::kSilu})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
      for (const int64_t count : {0, 1, 1000, 100003, 1 << 20})
        for (const int64_t offset : {0, 1}) {
          SCOPED_TRACE(::testing::Message() << static_cast<int>(kind) << " " << dtype << " " << count);
          const auto x = leaf(numbers({count}, dtype, offset).mul_(3)), right = wide(x);
          const auto out = activation(x, kind), expected = activation(right.cpu(), kind);
          ASSERT_EQ(out.scalar_type(), dtype);
          EXPECT_LT(relative(out, expected), tolerance(dtype));
          const auto grad = numbers({count}, dtype);
          out.backward(grad);
          expected.backward(grad.to(at::kDouble).cpu());
          EXPECT_LT(relative(x.grad(), right.grad()), tolerance(dtype));
        }
  const auto far = torch::tensor({-1e4f, -100.0f, 100.0f, 1e4f}, at::kCUDA);
  for (const auto kind : {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const auto x = leaf(far.to(dtype));
      activation(x, kind).sum().backward();
      EXPECT_TRUE(torch::allclose(x.grad().to(at::kFloat).cpu(), torch::tensor({0.0f, 0.0f, 1.0f, 1.0f})));
    }
}

TEST_F(FusedLayersOnCuda, GatedSilu) {
  torch::manual_seed(11);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const int64_t columns : {5, 4096}) {
      const auto both = numbers({33, 2 * columns}, dtype);
      const auto gate = leaf(both.narrow(1, 0, columns)), up = leaf(both.narrow(1, columns, columns));
      const auto g = wide(gate), u = wide(up);
      const auto out = gated_silu(gate, up), expected = at::silu(g) * u;
      EXPECT_LT(relative(out, expected), tolerance(dtype));
      const auto grad = numbers({33, columns}, dtype);
      out.backward(grad);
      expected.backward(grad.to(at::kDouble));
      EXPECT_LT(relative(gate.grad(), g.grad()), tolerance(dtype));
      EXPECT_LT(relative(up.grad(), u.grad()), tolerance(dtype));
    }
}

TEST_F(FusedLayersOnCuda, ColumnSums) {
  torch::manual_seed(12);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const int64_t rows : {0, 1, 31, 1000, 12608})
      for (const int64_t columns : {1, 7, 64, 1000, 4096})
        for (const auto to : {dtype, at::kFloat}) {
          SCOPED_TRACE(::testing::Message() << dtype << " " << rows << " " << columns);
          const auto x = numbers({rows, columns}, dtype, columns == 64 ? 1 : 0);
          const auto sum = column_sum(x, to);
          ASSERT_EQ(sum.scalar_type(), to);
          EXPECT_LT(relative(sum, x.to(at::kDouble).sum(0)), std::max(tolerance(to), 1e-5));
          EXPECT_TRUE(torch::equal(sum, column_sum(x, to))) << "in the same order every time";
        }
}

TEST_F(FusedLayersOnCuda, LinearUnderAutocast) {
  torch::manual_seed(13);
  const auto x = leaf(numbers({4, 50, 64}, at::kFloat)), weight = leaf(numbers({96, 64}, at::kFloat));
  const auto bias = leaf(numbers({96}, at::kFloat));
  const auto a = leaf(x), b = leaf(weight), c = leaf(bias);
  const auto grad = numbers({4, 50, 96}, at::kBFloat16);
  {
    const Autocast autocast(at::kCUDA, at::kBFloat16);
    const auto mine = kernels::linear(x, weight, bias), theirs = at::linear(a, b, c);
    ASSERT_EQ(mine.scalar_type(), at::kBFloat16);
    EXPECT_LT(relative(mine, theirs), 4e-3);
    mine.backward(grad);
    theirs.backward(grad);
  }
  for (const auto& each : {x, weight, bias}) EXPECT_EQ(each.grad().scalar_type(), at::kFloat);
  EXPECT_LT(relative(x.grad(), a.grad()), 1e-2);
  EXPECT_LT(relative(weight.grad(), b.grad()), 1e-2);
  EXPECT_LT(relative(bias.grad(), c.grad()), 1e-2);
  EXPECT_LT(relative(bias.grad(), grad.to(at::kDouble).flatten(0, 1).sum(0)), 1e-5)
      << "not rounded to 16 bits on the way";
}

TEST_F(FusedLayersOnCuda, LinearWithoutAutocast) {
  torch::manual_seed(14);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const auto x = leaf(numbers({70, 64}, dtype)), weight = leaf(numbers({96, 64}, dtype));
    const auto bias = leaf(numbers({96}, dtype));
    const auto a = leaf(x), b = leaf(weight), c = leaf(bias);
    const auto mine = kernels::linear(x, weight, bias), theirs = at::linear(a, b, c);
    EXPECT_LT(relative(mine, theirs), 4e-3);
    const auto grad = numbers({70, 96}, dtype);
    mine.backward(grad);
    theirs.backward(grad);
    EXPECT_LT(relative(x.grad(), a.grad()), tolerance(dtype));
    EXPECT_LT(relative(weight.grad(), b.grad()), tolerance(dtype));
    EXPECT_LT(relative(bias.grad(), c.grad()), tolerance(dtype));
  }
}

}  // namespace
}  // namespace levin::kernels
