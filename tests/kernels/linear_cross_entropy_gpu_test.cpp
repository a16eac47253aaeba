// The product with a vocabulary that computes the loss, against double on the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/cross_entropy/linear_cross_entropy.h"
#include "levin/testing/gpu.h"

namespace levin::linear_cross_entropy_gpu_tests {
namespace {

using at::Tensor;

class LinearCrossEntropyGpu : public levin::testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (!kernels::has_linear_cross_entropy_step(torch::empty({1, 8}, torch::dtype(at::kBFloat16).device(at::kCUDA))))
      GTEST_SKIP() << "compute capability 9.0 alone has this kernel";
  }
};

double relative(const Tensor& found, const Tensor& expected) {
  const auto a = found.to(at::kCPU, at::kDouble), b = expected.to(at::kCPU, at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

struct Found {
  Tensor losses, grads, factors, scaled;
};

Found step(const Tensor& x, const Tensor& w, const Tensor& targets, int64_t classes, bool gradient = true) {
  Found found;
  found.losses = torch::full({x.size(0)}, -1.0f, at::kCUDA);
  if (gradient) found.grads = torch::full({x.size(0), w.size(0)}, NAN, x.options());
  std::tie(found.factors, found.scaled) =
      kernels::linear_cross_entropy_step(x, w, targets.cuda(), found.losses, found.grads,
                                         {.classes = classes, .scale = torch::full({}, 0.125f, at::kCUDA)});
  return found;
}

/// spread: of the logits.
void compare(int64_t rows, int64_t classes, int64_t columns, int64_t depth, double spread) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << depth << ", " << classes << " of " << columns
                                    << " classes, logits " << spread);
  const auto x = torch::randn({rows, depth}).to(at::kBFloat16).cuda();
  const auto w =
      (torch::randn({columns, depth}) * (spread / std::sqrt(static_cast<double>(depth)))).to(at::kBFloat16).cuda();
  w.narrow(0, classes, columns - classes).fill_(NAN);  // padding counts for nothing
  auto targets = torch::randint(0, classes, {rows});
  if (rows > 3) targets[1] = -100, targets[rows - 1] = -100, targets[2] = classes - 1, targets[0] = 0;
  const auto here = x.to(at::kCPU, at::kDouble), weight = w.to(at::kCPU, at::kDouble).nan_to_num_(0);
  const auto losses = torch::empty({rows}, at::kDouble), grads = torch::empty({rows, columns}, at::kDouble);
  kernels::linear_cross_entropy_step(here, weight, targets, losses, grads,
                                     {.classes = classes, .scale = torch::full({}, 0.125, at::kDouble)});
  const auto found = step(x, w, targets, classes);
  EXPECT_LT(relative(found.losses, losses), 1e-3);
  const auto whole = found.grads.to(at::kCPU, at::kDouble) * found.factors.cpu().unsqueeze(1);
  EXPECT_LT(relative(whole, grads), 4e-3);
  EXPECT_LT(relative(found.scaled, found.factors.unsqueeze(1) * x), 4e-3);
  if (columns > classes) {
    EXPECT_EQ(found.grads.narrow(1, classes, columns - classes).abs().max().item<double>(), 0);
  }
  if (rows > 3) {
    EXPECT_EQ(found.grads[1].abs().max().item<double>(), 0);
    EXPECT_EQ(found.scaled[1].abs().max().item<double>(), 0);
  }
  EXPECT_TRUE(step(x, w, targets, classes, false).losses.equal(found.losses));
  EXPECT_TRUE(step(x, w, targets, classes).grads.equal(found.grads));  // deterministic
}

TEST_F(LinearCrossEntropyGpu, EqualsTheCpusAtOddSizes) {
  torch::manual_seed(13);
  for (const int64_t rows : {1, 5, 300})
    for (const int64_t classes : {1, 17, 255, 256, 257, 1000}) compare(rows, classes, (classes + 7) / 8 * 8, 72, 1);
  compare(129, 50257, 50304, 768, 2);
  compare(600, 3001, 3008, 200, 3);
  compare(40, 1000, 1280, 8, 1);
}

TEST_F(LinearCrossEntropyGpu, TakesLogitsFarAboveTheTargets) {
  torch::manual_seed(14);
  for (const double spread : {10.0, 20.0, 40.0, 300.0}) compare(300, 2000, 2048, 128, spread);
}

TEST_F(LinearCrossEntropyGpu, OneFarRowDoesNotChangeOthers) {
  torch::manual_seed(15);
  const auto x = torch::randn({300, 64}).to(at::kBFloat16).cuda(), w = torch::randn({512, 64}).to(at::kBFloat16).cuda();
  const auto targets = torch::randint(0, 512, {300});
  const auto plain = step(x, w, targets, 512);
  const auto changed = x.clone();
  changed[7].mul_(40);
  const auto found = step(changed, w, targets, 512);
  EXPECT_GT(found.losses[7].item<double>(), 40);
  for (const auto& [a, b] : {std::pair{plain.losses, found.losses}, std::pair{plain.grads, found.grads},
                             std::pair{plain.factors, found.factors}, std::pair{plain.scaled, found.scaled}}) {
    EXPECT_TRUE(a.narrow(0, 0, 7).equal(b.narrow(0, 0, 7)));
    EXPECT_TRUE(a.narrow(0, 8, 292).equal(b.narrow(0, 8, 292)));
  }
}

TEST_F(LinearCrossEntropyGpu, TakesViewsThatAreNotAligned) {
  torch::manual_seed(16);
  const auto bf16 = torch::dtype(at::kBFloat16).device(at::kCUDA);
  const auto x = torch::randn({40, 64}, bf16), w = torch::randn({512, 64}, bf16);
  const auto targets = torch::randint(0, 512, {40});
  const auto plain = step(x, w, targets, 512);
  const auto moved = [&](const Tensor& from) {
    const auto room = torch::empty({from.numel() + 1}, bf16);
    return room.narrow(0, 1, from.numel()).view(from.sizes()).copy_(from);
  };
  const auto found = step(moved(x), moved(w), targets, 512);
  EXPECT_TRUE(found.losses.equal(plain.losses));
  EXPECT_TRUE(found.grads.equal(plain.grads));
  EXPECT_TRUE(found.scaled.equal(plain.scaled));
}

TEST_F(LinearCrossEntropyGpu, ShowsWhatIsWrong) {
  const auto bf16 = torch::dtype(at::kBFloat16).device(at::kCUDA);
  const auto w = torch::randn({64, 16}, bf16);
  auto x = torch::randn({5, 16}, bf16);
  x[1][3] = NAN, x[2][3] = INFINITY;
  const auto found = step(x, w, torch::tensor({1, 1, 1, 64, -100}, at::kLong), 64);
  EXPECT_TRUE(found.losses[0].isfinite().item<bool>());
  for (const int row : {1, 2, 3}) {
    EXPECT_TRUE(found.losses[row].isnan().item<bool>()) << row;
    EXPECT_TRUE(found.scaled[row].isnan().any().item<bool>()) << row;
  }
  EXPECT_EQ(found.losses[4].item<double>(), 0);
}

TEST_F(LinearCrossEntropyGpu, OfNoRows) {
  const auto bf16 = torch::dtype(at::kBFloat16).device(at::kCUDA);
  const auto found = step(torch::empty({0, 16}, bf16), torch::zeros({64, 16}, bf16), torch::empty({0}, at::kLong), 64);
  EXPECT_EQ(found.factors.numel(), 0);
}

}  // namespace
}  // namespace levin::linear_cross_entropy_gpu_tests
