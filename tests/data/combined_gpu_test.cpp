// Batches of combined loaders on a GPU.
#include <gtest/gtest.h>

#include "levin/data/combined.h"
#include "levin/testing/gpu.h"

namespace levin {
namespace {

class CombinedGpu : public levin::testing::GpuTest {};

// The device is far behind the program: what copies the next batches must not use memory that is still to be read.
TEST_F(CombinedGpu, ABatchIsNotOverwrittenBeforeItIsRead) {
  const auto rows = torch::arange(48).to(at::kFloat).unsqueeze(1).repeat({1, 1 << 20});
  const auto make = [&] { return make_loader(TensorDataset({{"x", rows}}), {.batch_size = 1}); };
  const auto loader = combine({{"a", make()}, {"b", make()}}).placed({.device = c10::Device(c10::kCUDA, 0)});
  auto busy = at::full({4096, 4096}, 1.0 / 4096, at::device(at::kCUDA).dtype(at::kFloat));
  std::vector<Tensor> means;
  for (auto& batch : loader) {
    for (int i = 0; i < 4; ++i) busy = at::mm(busy, busy);
    means.push_back(batch["a"]["x"].mean() + batch["b"]["x"].mean());
  }
  ASSERT_EQ(means.size(), 48u);
  for (size_t i = 0; i < means.size(); ++i) EXPECT_EQ(means[i].item<float>(), 2 * static_cast<float>(i));
}

}  // namespace
}  // namespace levin
