// Gradients of embeddings on the GPU. Gradients are small whole numbers, so that sums in float32 are exact.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/embedding/embedding.h"
#include "levin/kernels/embedding/embedding_detail.h"
#include "levin/testing/gpu.h"

namespace levin::embedding_gpu_tests {
namespace {

using at::Tensor;
using kernels::detail::add_embedding_backward;
using kernels::detail::embedding_backward;

class EmbeddingGpu : public levin::testing::GpuTest {};

Tensor whole_numbers(std::vector<int64_t> sizes, at::ScalarType dtype) {
  return torch::randint(-3, 4, sizes, torch::dtype(at::kFloat).device(at::kCUDA)).to(dtype);
}

/// By adding up on the CPU, in double.
Tensor expected(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding) {
  const auto flat = ids.flatten().cpu().to(at::kLong);
  auto values = grad.cpu().to(at::kDouble).view({flat.numel(), -1});
  if (padding >= 0) values = values.masked_fill((flat == padding).unsqueeze(1), 0);
  return torch::zeros({rows, values.size(1)}, at::kDouble).index_add_(0, flat, values);
}

void expect_exact(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding = -1) {
  const auto found = embedding_backward(grad, ids, rows, padding);
  ASSERT_EQ(found.scalar_type(), grad.scalar_type());
  const auto sums = expected(grad, ids, rows, padding);
  EXPECT_TRUE(found.cpu().equal(sums.to(grad.scalar_type())));
  const auto before = whole_numbers({rows, grad.size(-1)}, grad.scalar_type());
  auto grown = before.clone();
  add_embedding_backward(grown, grad, ids, padding);
  EXPECT_TRUE(grown.cpu().equal((before.cpu().to(at::kDouble) + sums).to(grad.scalar_type())));
}

TEST_F(EmbeddingGpu, OfEverySizeIsExact) {
  torch::manual_seed(41);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const int64_t count : {1, 100, 3072, 3073, 3104, 4096, 10001})
      for (const int64_t columns : {1, 7, 8, 132, 768})
        for (const int64_t rows : {1, 2, 33, 5003}) {
          SCOPED_TRACE(::testing::Message() << dtype << " " << count << " of " << rows << " x " << columns);
          // Sums of thousands have no place in 16 bits, and would hide what is missing.
          if (at::isReducedFloatingType(dtype) && rows < 33) continue;
          expect_exact(whole_numbers({count, columns}, dtype), torch::randint(0, rows, {count}).cuda(), rows);
        }
}

/// Runs of every length, at every place in a tile; one id alone; the words of a language, of which few are frequent.
TEST_F(EmbeddingGpu, OfAnyDistributionIsExact) {
  torch::manual_seed(42);
  constexpr int64_t kCount = 9000, kRows = 700;
  std::vector<Tensor> all;
  all.push_back(torch::full({kCount}, 5, at::kLong));
  all.push_back(torch::full({kCount}, kRows - 1, at::kLong));
  all.push_back(torch::arange(kCount).remainder(kRows));
  all.push_back(torch::rand({kCount}).pow(6).mul(kRows).to(at::kLong));
  all.push_back(
      at::where(torch::rand({kCount}) < 0.9, torch::zeros({kCount}, at::kLong), torch::randint(0, kRows, {kCount})));
  for (const int64_t length : {1, 31, 32, 33, 63, 64, 65, 300, 1024})
    all.push_back(torch::arange(kCount).div(length, "floor").remainder(kRows));
  for (size_t i = 0; i < all.size(); ++i)
    for (const int64_t padding : {-1, 0, 5, 699}) {
      SCOPED_TRACE(::testing::Message() << i << ", without " << padding);
      const auto ids = all[i].index({torch::randperm(kCount)}).cuda();
      expect_exact(whole_numbers({kCount, 96}, at::kFloat), ids, kRows, padding);
      expect_exact(whole_numbers({kCount, 5}, at::kFloat), ids.to(at::kInt), kRows, padding);
    }
}

TEST_F(EmbeddingGpu, OfAnyLayoutIsExact) {
  torch::manual_seed(43);
  const auto ids = torch::randint(0, 1000, {64, 80}).cuda();
  expect_exact(whole_numbers({64, 80, 48}, at::kFloat), ids, 1000);
  const auto turned = whole_numbers({80, 64, 48}, at::kFloat).transpose(0, 1);
  EXPECT_TRUE(embedding_backward(turned, ids, 1000, -1).equal(embedding_backward(turned.contiguous(), ids, 1000, -1)));
  const auto across = ids.t().contiguous().t();
  const auto grad = whole_numbers({64, 80, 48}, at::kFloat);
  EXPECT_TRUE(embedding_backward(grad, across, 1000, -1).equal(embedding_backward(grad, ids, 1000, -1)));
  const auto data = whole_numbers({64 * 80 * 48 + 1}, at::kHalf);
  expect_exact(data.narrow(0, 1, 64 * 80 * 48).view({64, 80, 48}), ids, 1000);
  const auto none = torch::empty({0, 48}, at::kCUDA);
  EXPECT_TRUE(
      embedding_backward(none, torch::empty({0}, ids.options()), 10, -1).equal(torch::zeros({10, 48}, at::kCUDA)));
}

TEST_F(EmbeddingGpu, GivesTheGradientOfTheWeight) {
  torch::manual_seed(44);
  const auto ids = torch::randint(0, 3000, {8, 1024}).cuda();
  const auto weight = torch::randn({3000, 256}, at::kCUDA).requires_grad_();
  const auto rows = kernels::embedding(weight, ids, 7), plain = at::embedding(weight, ids, 7);
  EXPECT_TRUE(rows.equal(plain));
  const auto grad = torch::randn(rows.sizes(), at::kCUDA);
  const auto found = torch::autograd::grad({rows}, {weight}, {grad})[0];
  EXPECT_TRUE(torch::allclose(found, torch::autograd::grad({plain}, {weight}, {grad})[0], 1e-4, 1e-4));
  EXPECT_EQ(found[7].abs().max().item<double>(), 0);
}

TEST_F(EmbeddingGpu, WithPositionsIsTorchsSum) {
  torch::manual_seed(35);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const auto id_dtype : {at::kLong, at::kInt})
      for (const int64_t columns : {1, 20, 768, 1030})
        for (const int64_t length : {1, 7, 1024}) {
          SCOPED_TRACE(::testing::Message() << dtype << " " << id_dtype << " " << columns << " " << length);
          const auto on = torch::device(at::kCUDA);
          const auto weight = torch::randn({97, columns}, on).to(dtype).requires_grad_();
          const auto positions = torch::randn({length + 3, columns}, on).to(dtype).narrow(0, 3, length);
          const auto ids = torch::randint(0, 97, {5, length}, on.dtype(at::kLong)).to(id_dtype);
          const auto own = positions.detach().requires_grad_();
          const auto expected = at::embedding(weight, ids) + own;
          const auto found = kernels::embedding_with_positions(weight, ids, own);
          EXPECT_TRUE(found.equal(expected));
          const auto grad = torch::randn_like(found);
          const auto of = torch::autograd::grad({found}, {own}, {grad})[0];
          EXPECT_TRUE(of.equal(torch::autograd::grad({expected}, {own}, {grad})[0]));
        }
}

TEST_F(EmbeddingGpu, IsTheSameEveryTime) {
  torch::manual_seed(45);
  const auto ids = torch::rand({16384}).pow(4).mul(50257).to(at::kLong).cuda();
  const auto grad = torch::randn({16384, 768}, at::kCUDA);
  const auto first = embedding_backward(grad, ids, 50257, -1);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(embedding_backward(grad, ids, 50257, -1).equal(first));
}

}  // namespace
}  // namespace levin::embedding_gpu_tests
