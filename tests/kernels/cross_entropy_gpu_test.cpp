// The loss of large vocabularies on the GPU against the CPU's.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/cross_entropy/cross_entropy.h"
#include "levin/testing/gpu.h"

namespace levin::cross_entropy_gpu_tests {
namespace {

using at::Tensor;

class CrossEntropyGpu : public levin::testing::GpuTest {};

double relative(const Tensor& found, const Tensor& expected) {
  const auto a = found.to(at::kCPU, at::kDouble), b = expected.to(at::kCPU, at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

void compare(at::ScalarType dtype, int64_t rows, int64_t classes, int64_t columns, int64_t stride, int64_t offset) {
  SCOPED_TRACE(::testing::Message() << dtype << " " << rows << " x " << classes << " of " << columns << ", " << stride
                                    << " apart, at " << offset);
  const auto storage = (torch::randn({rows * stride + offset}) * 4).to(dtype).cuda();
  const auto logits = storage.narrow(0, offset, rows * stride).view({rows, stride}).narrow(1, 0, columns);
  auto targets = torch::randint(0, classes, {rows});
  if (rows > 3) targets[1] = -100, targets[rows - 1] = -100, targets[2] = classes - 1;
  if (rows > 500) targets.slice(0, 5, {}, 3).fill_(-100);
  auto expected = logits.cpu().to(at::kDouble);
  auto expected_losses = torch::empty({rows}, at::kDouble);
  kernels::cross_entropy_step(expected, targets, expected_losses,
                              {.classes = classes, .scale = torch::full({}, 0.125, at::kDouble)});

  const auto before = storage.clone();
  auto losses = torch::full({rows}, -1.0f, at::kCUDA);
  kernels::cross_entropy_losses(logits, targets.cuda(), losses, {.classes = classes});
  EXPECT_LT(relative(losses, expected_losses), 1e-5);
  EXPECT_TRUE(storage.equal(before));

  losses.fill_(-1);
  kernels::cross_entropy_step(logits, targets.cuda(), losses,
                              {.classes = classes, .scale = torch::full({}, 0.125f, at::kCUDA)});
  EXPECT_LT(relative(losses, expected_losses), 1e-5);
  EXPECT_LT(relative(logits, expected), dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-3 : 4e-3);
  const auto outside = [&](const Tensor& all) {
    return all.narrow(0, offset, rows * stride).view({rows, stride}).narrow(1, columns, stride - columns);
  };
  EXPECT_TRUE(outside(storage).equal(outside(before)));
  if (columns > classes) {
    EXPECT_EQ(logits.narrow(1, classes, columns - classes).abs().max().item<double>(), 0);
  }
  if (rows > 3) {
    EXPECT_EQ(logits[1].abs().max().item<double>(), 0);
  }
}

TEST_F(CrossEntropyGpu, EqualsTheCpusAtOddSizes) {
  torch::manual_seed(11);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const int64_t rows : {1, 5, 1000})
      for (const int64_t classes : {1, 17, 1000}) compare(dtype, rows, classes, (classes + 63) / 64 * 64, 1024, 0);
    compare(dtype, 37, 50257, 50304, 50304, 0);
    compare(dtype, 37, 50257, 50257, 50257, 0);  // nothing is aligned
    compare(dtype, 37, 50257, 50304, 50304, 1);  // nor here
    compare(dtype, 5, 50304, 50304, 50400, 8);
    compare(dtype, 700, 16450, 16512, 16512, 0);  // several rows for each block
    compare(dtype, 300, 100001, 100032, 100032, 0);
    compare(dtype, 5, 150000, 150016, 150016, 0);  // no room for a row in shared memory
    compare(dtype, 5, 16383, 16384, 16384, 0);
    compare(dtype, 5, 16384, 16384, 16384, 0);
  }
}

TEST_F(CrossEntropyGpu, OfNoRowsAndOfIgnoredOnes) {
  kernels::cross_entropy_step(torch::empty({0, 64}, at::kCUDA),
                              torch::empty({0}, torch::dtype(at::kLong).device(at::kCUDA)),
                              torch::empty({0}, at::kCUDA), {.classes = 50});
  const auto logits = torch::randn({5, 64}, at::kCUDA), losses = torch::ones({5}, at::kCUDA);
  kernels::cross_entropy_step(logits, torch::full({5}, -100, torch::dtype(at::kLong).device(at::kCUDA)), losses,
                              {.classes = 50});
  EXPECT_EQ(logits.abs().sum().item<double>() + losses.abs().sum().item<double>(), 0);
}

TEST_F(CrossEntropyGpu, KeepsExtremesAndShowsWhatIsWrong) {
  auto logits = torch::zeros({6, 64}, at::kCUDA);
  logits[0].fill_(-30000), logits[1].fill_(30000), logits[1][3] = -INFINITY;
  logits[2][5] = NAN, logits[3][5] = INFINITY;
  const auto targets = torch::tensor({1, 1, 1, 1, 64, 1}, at::kLong).cuda();
  const auto losses = torch::empty({6}, at::kCUDA);
  kernels::cross_entropy_step(logits, targets, losses, {.classes = 64});
  EXPECT_NEAR(losses[0].item<double>(), std::log(64.0), 1e-2);
  EXPECT_NEAR(losses[1].item<double>(), std::log(63.0), 1e-2);
  EXPECT_EQ(logits[1][3].item<double>(), 0);
  EXPECT_TRUE(losses[2].isnan().item<bool>());
  EXPECT_TRUE(losses[3].isnan().item<bool>());
  EXPECT_TRUE(losses[4].isnan().item<bool>());  // no class
  EXPECT_TRUE(logits[4].isnan().all().item<bool>());
  EXPECT_NEAR(losses[5].item<double>(), std::log(64.0), 1e-5);
}

TEST_F(CrossEntropyGpu, ScalesInPlaceLikeTorch) {
  torch::manual_seed(12);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble})
    for (const int64_t offset : {0, 1})
      for (const int64_t count : {0, 5, 4096, 3'000'003})
        for (const double number : {1.0, 0.3}) {
          const auto all = torch::randn({count + offset}, at::kCUDA).to(dtype), x = all.narrow(0, offset, count);
          const auto factor = torch::full({}, number, x.options()), expected = x * factor;
          kernels::scale_in_place(x, factor);
          EXPECT_TRUE(x.equal(expected)) << dtype << " " << offset << " " << count << " " << number;
        }
}

TEST_F(CrossEntropyGpu, ScalesRowsLikeTorch) {
  torch::manual_seed(14);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble})
    for (const int64_t columns : {1, 4, 768, 1030, 4100}) {
      const auto x = torch::randn({37, columns}, at::kCUDA), factors = torch::randn({37}, at::kCUDA);
      const auto out = torch::empty({37, columns}, x.options().dtype(dtype));
      kernels::scale_rows(out, x, factors);
      EXPECT_TRUE(out.equal((x * factors.unsqueeze(1)).to(dtype))) << dtype << " " << columns;
    }
}

TEST_F(CrossEntropyGpu, DoubleIsComputedInDouble) {
  const auto here = torch::randn({4, 20}, at::kDouble);
  auto expected = here.clone(), expected_losses = torch::empty({4}, at::kDouble);
  const auto targets = torch::randint(0, 20, {4});
  kernels::cross_entropy_step(expected, targets, expected_losses, {.classes = 20});
  const auto there = here.cuda(), losses = torch::empty({4}, torch::dtype(at::kDouble).device(at::kCUDA));
  kernels::cross_entropy_step(there, targets.cuda(), losses, {.classes = 20});
  EXPECT_LT(relative(there, expected), 1e-12);
  EXPECT_LT(relative(losses, expected_losses), 1e-12);
}

}  // namespace
}  // namespace levin::cross_entropy_gpu_tests
