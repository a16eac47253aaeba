// Embeddings and their gradients through the operators of ATen; those of the GPU are in embedding_gpu_test.cpp.
#include "levin/kernels/embedding/embedding.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/embedding/embedding_detail.h"
#include "levin/testing/error_of.h"

namespace levin::embedding_tests {
namespace {

using at::Tensor;
using kernels::detail::fused_embedding;

TEST(Embedding, OfTheCpuIsTorchs) {
  const auto weight = torch::randn({7, 3}).requires_grad_(), ids = torch::randint(0, 7, {2, 5});
  const auto found = kernels::embedding(weight, ids);
  EXPECT_TRUE(found.equal(at::embedding(weight, ids)));
  EXPECT_EQ(found.grad_fn()->name(), "EmbeddingBackward0");
}

TEST(Embedding, GradientIsTorchs) {
  torch::manual_seed(31);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16})
    for (const auto id_dtype : {at::kLong, at::kInt})
      for (const int64_t padding : {-1, 0, 4}) {
        SCOPED_TRACE(::testing::Message() << dtype << " " << id_dtype << " " << padding);
        const auto weight = torch::randn({11, 5}).to(dtype).requires_grad_();
        const auto ids = torch::randint(0, 11, {4, 9}).to(id_dtype);
        const auto grad = torch::randn({4, 9, 5}).to(dtype);
        const auto expected = at::embedding(weight, ids, padding), found = fused_embedding(weight, ids, padding);
        EXPECT_TRUE(found.equal(expected));
        const auto of = torch::autograd::grad({found}, {weight}, {grad})[0];
        EXPECT_TRUE(of.equal(torch::autograd::grad({expected}, {weight}, {grad})[0]));
        if (padding >= 0) EXPECT_EQ(of[padding].abs().max().item<double>(), 0);
      }
}

TEST(Embedding, SecondDerivativesAreTorchs) {
  torch::manual_seed(32);
  const auto weight = torch::randn({6, 4}, at::kDouble).requires_grad_(), ids = torch::randint(0, 6, {10});
  const auto second = [&](const Tensor& rows) {
    const auto first = torch::autograd::grad({rows.pow(3).sum()}, {weight}, {}, {}, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.square().sum()}, {weight})[0];
  };
  EXPECT_TRUE(torch::allclose(second(fused_embedding(weight, ids, 2)), second(at::embedding(weight, ids, 2)), 1e-12));
}

TEST(Embedding, BackwardOfMetaTensorsHasTheSizesOfTheWeight) {
  const auto meta = torch::device(at::kMeta);
  for (const int64_t count : {8, 5000}) {
    const auto grad = kernels::detail::embedding_backward(torch::empty({count, 12}, meta.dtype(at::kBFloat16)),
                                                          torch::empty({count}, meta.dtype(at::kLong)), 50, -1);
    EXPECT_EQ(grad.sizes(), torch::IntArrayRef({50, 12}));
    EXPECT_EQ(grad.scalar_type(), at::kBFloat16);
  }
}

TEST(Embedding, WithPositionsIsTorchsSum) {
  torch::manual_seed(33);
  using kernels::detail::fused_embedding_with_positions;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto weight = torch::randn({11, 5}).to(dtype).requires_grad_(),
               positions = torch::randn({9, 5}).to(dtype).requires_grad_();
    const auto ids = torch::randint(0, 11, {4, 9});
    const auto grad = torch::randn({4, 9, 5}).to(dtype);
    const auto expected = at::embedding(weight, ids) + positions;
    const auto gradients = torch::autograd::grad({expected}, {weight, positions}, {grad});
    for (const auto& found : {kernels::embedding_with_positions(weight, ids, positions),
                              fused_embedding_with_positions(weight, ids, positions)}) {
      EXPECT_TRUE(found.equal(expected));
      const auto of = torch::autograd::grad({found}, {weight, positions}, {grad});
      EXPECT_TRUE(of[0].equal(gradients[0]));
      EXPECT_TRUE(of[1].equal(gradients[1]));
    }
    // Either alone, and twice.
    EXPECT_TRUE(
        torch::autograd::grad({fused_embedding_with_positions(weight.detach(), ids, positions)}, {positions}, {grad})[0]
            .equal(gradients[1]));
    const auto second = [&](const Tensor& rows) {
      const auto first = torch::autograd::grad({rows.pow(3).sum()}, {weight}, {}, {}, /*create_graph=*/true)[0];
      return torch::autograd::grad({first.square().sum()}, {positions})[0];
    };
    EXPECT_TRUE(torch::allclose(second(fused_embedding_with_positions(weight, ids, positions)),
                                second(at::embedding(weight, ids) + positions), 1e-2));
  }
  EXPECT_EQ(
      testing::error_of([] {
        kernels::embedding_with_positions(torch::zeros({3, 2}), torch::zeros({1, 4}, at::kLong), torch::zeros({3, 2}));
      }),
      "[embedding_with_positions] needs a weight [V, D], ids [B, T] and positions [T, D], got [3, 2], [1, 4] and "
      "[3, 2]");
}

}  // namespace
}  // namespace levin::embedding_tests
