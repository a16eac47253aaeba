// The tokens of a vision transformer on the GPU against the operators of torch there, and in double on the CPU.
#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/graphs.h"
#include "levin/kernels/linear/linear.h"
#include "levin/kernels/tokens/prepend_token.h"
#include "levin/precision/precision.h"
#include "levin/testing/gpu.h"
#include "levin/testing/operator_counts.h"
#include "levin/testing/scoped_variable.h"

namespace levin::prepend_token_gpu_tests {
namespace {

using at::Tensor;
using kernels::prepend_token;

class PrependTokenGpu : public levin::testing::GpuTest {};

struct Case {
  at::ScalarType patches, token, positions;
  int64_t images, count, columns;
  /// Numbers by which the tensors begin behind a multiple of 16 bytes.
  int64_t offset = 0;
};

Tensor leaf(const Tensor& tensor) {
  return tensor.detach().set_requires_grad(true);
}

Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype, int64_t offset = 0) {
  const auto count = c10::multiply_integers(sizes);
  return torch::randn({count + offset}, at::kCUDA).to(dtype).narrow(0, offset, count).view(sizes);
}

std::vector<Tensor> leaves(const Case& c) {
  return {leaf(numbers({c.images, c.count, c.columns}, c.patches, c.offset)),
          leaf(numbers({1, 1, c.columns}, c.token, c.offset)),
          leaf(numbers({1, c.count + 1, c.columns}, c.positions, c.offset))};
}

Tensor joined(const std::vector<Tensor>& in) {
  return at::cat({in[1].expand({in[0].size(0), -1, -1}).contiguous(), in[0]}, 1) + in[2];
}

double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 1e-3 : 8e-3;
}

/// The result and the gradient of the patches are torch's bit by bit: one sum, one rounding. Sums over the batch are
/// those of double, rounded.
void check(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c.patches << " " << c.token << " " << c.positions << " [" << c.images << ", "
                                    << c.count << ", " << c.columns << "] at " << c.offset);
  const auto in = leaves(c);
  const levin::testing::OperatorCounts counted;
  const auto out = prepend_token(in[0], in[1], in[2]), right = joined(in);
  ASSERT_EQ(counted["levin::prepend_token"], 1);
  ASSERT_EQ(out.scalar_type(), right.scalar_type());
  EXPECT_TRUE(out.is_contiguous());
  EXPECT_TRUE(torch::equal(out, right));
  const auto grad = numbers(out.sizes(), out.scalar_type(), c.offset);
  const auto found = torch::autograd::grad({out}, in, {grad}), plain = torch::autograd::grad({right}, in, {grad});
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), in[i].scalar_type()) << i;
    EXPECT_EQ(found[i].sizes(), in[i].sizes()) << i;
    EXPECT_TRUE(found[i].is_contiguous()) << i;
  }
  EXPECT_TRUE(torch::equal(found[0], plain[0]));
  const auto exact = grad.to(at::kDouble).sum(0, /*keepdim=*/true);
  const auto near = [&](const Tensor& mine, const Tensor& theirs) {
    const auto most = tolerance(mine.scalar_type()) * std::max(1.0, std::sqrt(static_cast<double>(c.images)));
    EXPECT_TRUE(torch::allclose(mine.to(at::kDouble), theirs, most, most))
        << (mine.to(at::kDouble) - theirs).abs().max();
  };
  near(found[1], exact.narrow(1, 0, 1));
  near(found[2], exact);
}

TEST_F(PrependTokenGpu, OfEveryDtype) {
  torch::manual_seed(61);
  for (const auto& [patches, token, positions] :
       std::vector<std::array<at::ScalarType, 3>>{{at::kFloat, at::kFloat, at::kFloat},
                                                  {at::kBFloat16, at::kBFloat16, at::kBFloat16},
                                                  {at::kHalf, at::kHalf, at::kHalf},
                                                  {at::kDouble, at::kDouble, at::kDouble},
                                                  {at::kBFloat16, at::kFloat, at::kFloat},
                                                  {at::kHalf, at::kFloat, at::kFloat},
                                                  {at::kBFloat16, at::kBFloat16, at::kFloat},
                                                  {at::kFloat, at::kBFloat16, at::kHalf}})
    for (const int64_t columns : {1, 7, 8, 20, 64, 768})
      for (const int64_t images : {0, 1, 3, 5, 13, 64}) check({patches, token, positions, images, 9, columns});
}

TEST_F(PrependTokenGpu, OfVisionTransformers) {
  torch::manual_seed(62);
  for (const auto narrow : {at::kBFloat16, at::kHalf})
    for (const auto wide : {at::kFloat, narrow}) {
      check({narrow, wide, wide, 64, 196, 1024});
      check({narrow, wide, wide, 33, 196, 768});
      check({narrow, wide, wide, 16, 256, 1280});
    }
  check({at::kFloat, at::kFloat, at::kFloat, 64, 196, 1024});
  check({at::kBFloat16, at::kFloat, at::kFloat, 3000, 4, 48});  // more images than a part has
  check({at::kFloat, at::kFloat, at::kFloat, 2, 1, 8});
}

TEST_F(PrependTokenGpu, AtOddAddressesAndAsViews) {
  torch::manual_seed(63);
  for (const int64_t offset : {1, 2, 4}) {
    check({at::kBFloat16, at::kFloat, at::kFloat, 5, 9, 64, offset});
    check({at::kBFloat16, at::kBFloat16, at::kBFloat16, 5, 9, 64, offset});
    check({at::kFloat, at::kFloat, at::kFloat, 5, 9, 64, offset});
  }
  // Parameters at odd addresses beside patches that are not: they may be views of a flat one.
  const auto patches = numbers({5, 9, 64}, at::kBFloat16), token = numbers({1, 1, 64}, at::kFloat, 1),
             positions = numbers({1, 10, 64}, at::kFloat, 3);
  EXPECT_TRUE(torch::equal(prepend_token(patches, token, positions), joined({patches, token, positions})));
  const auto turned = numbers({9, 5, 64}, at::kFloat).transpose(0, 1), wide = numbers({1, 64, 10}, at::kFloat);
  EXPECT_TRUE(
      torch::equal(prepend_token(turned, token, wide.transpose(1, 2)), joined({turned, token, wide.transpose(1, 2)})));
  // A gradient with gaps.
  auto in = leaves({at::kBFloat16, at::kFloat, at::kFloat, 5, 9, 64});
  const auto out = prepend_token(in[0], in[1], in[2]);
  const auto grad = numbers({10, 5, 64}, at::kFloat).transpose(0, 1);
  const auto found = torch::autograd::grad({out}, in, {grad});
  EXPECT_TRUE(torch::equal(found[0], grad.narrow(1, 1, 9).to(at::kBFloat16)));
  EXPECT_TRUE(torch::allclose(found[2], grad.sum(0, true), 1e-5, 1e-5));
}

TEST_F(PrependTokenGpu, OnlyWantedGradientsAreComputed) {
  torch::manual_seed(64);
  for (const int wanted : {1, 2, 3, 4, 5, 6}) {
    auto in = leaves({at::kBFloat16, at::kFloat, at::kFloat, 8, 9, 64});
    for (int i = 0; i < 3; ++i) in[static_cast<size_t>(i)].set_requires_grad((wanted >> i & 1) != 0);
    prepend_token(in[0], in[1], in[2]).sum().backward();
    for (int i = 0; i < 3; ++i) {
      const auto& grad = in[static_cast<size_t>(i)].grad();
      ASSERT_EQ(grad.defined(), (wanted >> i & 1) != 0) << wanted << " " << i;
      if (grad.defined()) {
        EXPECT_TRUE(grad.eq(i == 0 ? 1 : 8).all().item<bool>()) << wanted << " " << i;
      }
    }
  }
}

TEST_F(PrependTokenGpu, GivesTheGradientOfTheBiasBefore) {
  torch::manual_seed(65);
  for (const bool mixed : {false, true})
    for (const int64_t columns : {64, 20}) {
      const auto dtype = mixed ? at::kFloat : at::kBFloat16;
      const auto x = numbers({16, 49, 32}, at::kBFloat16);
      const auto weight = leaf(numbers({columns, 32}, dtype)), bias = leaf(numbers({columns}, dtype));
      const auto token = leaf(numbers({1, 1, columns}, dtype)), positions = leaf(numbers({1, 50, columns}, dtype));
      const auto grad = numbers({16, 50, columns}, dtype);
      const auto run = [&](const char* sums) {
        const levin::testing::ScopedVariable wanted("LEVIN_BIAS_SUMS", sums);
        std::optional<Autocast> autocast;
        if (mixed) autocast.emplace(at::kCUDA, at::kBFloat16);
        const auto out = prepend_token(kernels::linear(x, weight, bias), token, positions);
        return torch::autograd::grad({out}, {weight, bias}, {grad});
      };
      const auto plain = run("0"), known = run("1");
      // By another product: one with sums adds up in another order.
      EXPECT_TRUE(torch::allclose(plain[0].to(at::kDouble), known[0].to(at::kDouble), 1e-2, 1e-2));
      const auto exact = grad.narrow(1, 1, 49).to(at::kDouble).sum(at::IntArrayRef{0, 1});
      EXPECT_TRUE(torch::allclose(known[1].to(at::kDouble), exact, 1e-2, mixed ? 1e-3 : 0.3))
          << (known[1].to(at::kDouble) - exact).abs().max();
    }
}

TEST_F(PrependTokenGpu, IsTheSameEveryTime) {
  torch::manual_seed(66);
  const auto in = leaves({at::kBFloat16, at::kFloat, at::kFloat, 64, 196, 1024});
  const auto out = prepend_token(in[0], in[1], in[2]);
  const auto grad = numbers(out.sizes(), at::kFloat);
  const auto first = torch::autograd::grad({out}, in, {grad}, /*retain_graph=*/true);
  for (int time = 0; time < 10; ++time) {
    const auto again = torch::autograd::grad({out}, in, {grad}, /*retain_graph=*/true);
    for (size_t i = 0; i < in.size(); ++i) ASSERT_TRUE(torch::equal(again[i], first[i])) << time << " " << i;
  }
}

TEST_F(PrependTokenGpu, InAGraph) {
  torch::manual_seed(67);
  auto in = leaves({at::kBFloat16, at::kFloat, at::kFloat, 16, 49, 256});
  const auto grad = numbers({16, 50, 256}, at::kFloat);
  std::vector<Tensor> all;
  const auto step = [&] {
    const auto out = prepend_token(in[0], in[1], in[2]);
    all = torch::autograd::grad({out}, in, {grad});
    all.push_back(out);
  };
  step();
  // Leaves belong to the stream of their first backward, which must be that of the capture.
  for (auto& each : in) each = leaf(each.detach().clone());
  torch::cuda::synchronize();
  const auto graph = levin::detail::cuda_graphs(c10::Device(at::kCUDA, 0))->capture(step);
  {
    const at::NoGradGuard no_grad;
    for (const auto& each : in) each.mul_(2);
    grad.mul_(3);
  }
  graph->replay();
  torch::cuda::synchronize();
  std::vector<Tensor> captured;
  for (const auto& each : all) captured.push_back(each.clone());
  step();
  for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(torch::equal(captured[i], all[i])) << i;
}

TEST_F(PrependTokenGpu, GradientsCanBeDifferentiated) {
  const auto in = leaves({at::kDouble, at::kDouble, at::kDouble, 3, 4, 6});
  const auto penalty = [&](const Tensor& out) {
    Tensor sum = torch::zeros({}, torch::dtype(at::kDouble).device(at::kCUDA));
    for (const auto& each : torch::autograd::grad({out.pow(3).sum()}, in, {}, std::nullopt, /*create_graph=*/true))
      sum = sum + each.square().sum();
    return torch::autograd::grad({sum}, in);
  };
  const auto mine = penalty(prepend_token(in[0], in[1], in[2])), theirs = penalty(joined(in));
  for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(torch::allclose(mine[i], theirs[i], 1e-10, 1e-10)) << i;
}

}  // namespace
}  // namespace levin::prepend_token_gpu_tests
