#include "levin/strategies/sync_batchnorm.h"

#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/distributed/single.h"
#include "tests/strategies/training.h"

namespace levin::testing {
namespace {

/// What a norm does to a batch: output, gradients of input, weight and bias, running statistics.
struct Outcome {
  Tensor y, dx, dw, db, mean, var;
};

/// Rows of each rank of three: uneven, and none on the last.
std::pair<int64_t, int64_t> rows_of(int rank) {
  static constexpr std::array<std::pair<int64_t, int64_t>, 3> kRows{{{0, 3}, {3, 5}, {8, 0}}};
  return kRows[static_cast<size_t>(rank)];
}

template <class Norm>
Outcome pass(Norm& norm, const Tensor& x, const Tensor& weights) {
  auto input = x.detach().clone().requires_grad_();
  auto y = norm(input);
  (y * weights).sum().backward();
  return {y.detach(),
          input.grad(),
          norm->weight.grad().clone(),
          norm->bias.grad().clone(),
          norm->running_mean.clone(),
          norm->running_var.clone()};
}

TEST(SyncBatchNorm, EqualsTheGlobalBatchWithUnevenShards) {
  run_ranks(3, [](Collective& group) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{8, 4}, {8, 4, 3}, {8, 4, 3, 2}, {8, 4, 2, 2, 2}}) {
      torch::manual_seed(7);
      const auto x = torch::randn(shape, at::kDouble) * 3 + 100, weights = torch::randn(shape, at::kDouble);
      SyncBatchNorm norm(4, std::shared_ptr<Collective>(&group, [](auto*) {})), whole(4);
      for (auto* n : {&norm, &whole}) {
        (*n)->to(at::kDouble);
        torch::NoGradGuard no_grad;
        (*n)->weight.copy_(at::tensor({1., 2., -1., 0.5}));
        (*n)->bias.copy_(at::tensor({0., 1., 2., 3.}));
      }
      const auto [start, rows] = rows_of(group.rank());
      for (int step = 0; step < 2; ++step) {
        clear_grads(norm->parameters());
        clear_grads(whole->parameters());
        const auto expected = pass(whole, x, weights);
        const auto got = pass(norm, x.narrow(0, start, rows), weights.narrow(0, start, rows));
        EXPECT_TRUE(at::allclose(got.y, expected.y.narrow(0, start, rows), 1e-9, 1e-9));
        EXPECT_TRUE(at::allclose(got.dx, expected.dx.narrow(0, start, rows), 1e-9, 1e-9));
        EXPECT_TRUE(at::allclose(got.mean, expected.mean, 1e-12, 1e-12));
        EXPECT_TRUE(at::allclose(got.var, expected.var, 1e-12, 1e-12));
        auto dw = got.dw, db = got.db;
        group.all_reduce(dw);
        group.all_reduce(db);
        EXPECT_TRUE(at::allclose(dw, expected.dw, 1e-9, 1e-9));
        EXPECT_TRUE(at::allclose(db, expected.db, 1e-9, 1e-9));
      }
      norm->eval();
      whole->eval();
      EXPECT_TRUE(at::allclose(norm(x), whole(x)));
    }
  });
}

TEST(SyncBatchNorm, ScopeReachesTorchsOwnLayers) {
  run_ranks(2, [](Collective& group) {
    torch::manual_seed(7);
    const auto x = torch::randn({8, 4, 3, 3}) * 2 + 5, weights = torch::randn({8, 4, 3, 3});
    torch::nn::BatchNorm2d norm(4), whole(4), local(4);
    const auto expected = pass(whole, x, weights);
    const auto own = shard_of(x, group.rank(), 2), own_weights = shard_of(weights, group.rank(), 2);
    Outcome got;
    {
      SyncBatchNormScope scope(group);
      got = pass(norm, own, own_weights);
      norm->eval();
      if (group.rank() == 0) norm(own);  // evaluation meets nobody
    }
    EXPECT_TRUE(at::allclose(got.y, shard_of(expected.y, group.rank(), 2), 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(got.dx, shard_of(expected.dx, group.rank(), 2), 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(got.var, expected.var, 1e-5, 1e-5));
    EXPECT_FALSE(at::allclose(pass(local, own, own_weights).y, got.y, 1e-3, 1e-3));  // the scope is over
  });
}

TEST(SyncBatchNorm, LowPrecisionAndOptions) {
  run_ranks(2, [](Collective& group) {
    std::shared_ptr<Collective> shared(&group, [](auto*) {});
    SyncBatchNorm norm(4, shared, SyncBatchNormOptions{.momentum = std::nullopt, .affine = false});
    EXPECT_EQ(norm->parameters().size(), 0);
    auto x = (torch::randn({6, 4}) + group.rank()).to(at::kBFloat16).requires_grad_();
    auto y = norm(x);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
    norm(x);
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 2);
    EXPECT_THROW(norm(at::zeros({3, 5})), Error);
  });
  SyncBatchNorm untracked(4, std::make_shared<SingleCollective>(), SyncBatchNormOptions{.track_running_stats = false});
  torch::nn::BatchNorm1d reference(4);
  const auto x = torch::randn({6, 4});
  EXPECT_TRUE(at::allclose(untracked(x), reference(x)));
  untracked->eval();
  EXPECT_TRUE(at::allclose(untracked(x), reference(x)));
}

}  // namespace
}  // namespace levin::testing
