// Loaders of torch::data's datasets.
#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

struct Squares : torch::data::datasets::Dataset<Squares> {
  explicit Squares(size_t count) : count_(count) {}
  torch::data::Example<> get(size_t index) override {
    last_ = at::scalar_tensor(static_cast<double>(index));  // as datasets that keep what they have read do
    return {last_ * last_ + 0 * torch::rand({}), last_};
  }
  std::optional<size_t> size() const override { return count_; }

 private:
  size_t count_;
  Tensor last_;
};

std::vector<double> targets(const torch::data::Example<>& batch) {
  std::vector<double> all;
  for (int64_t i = 0; i < batch.target.numel(); ++i) all.push_back(batch.target[i].item<double>());
  return all;
}

TEST(TorchDataset, GivesTheBatchesOfTorchsLoader) {
  const auto data = Squares(10).map(torch::data::transforms::Stack<>());
  auto theirs = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(data, 4);
  std::vector<Tensor> wanted;
  for (const auto& batch : *theirs) wanted.push_back(batch.data);
  for (const int64_t workers : {0, 1, 3}) {
    auto loader = make_loader(data, {.batch_size = 4, .num_workers = workers});
    EXPECT_EQ(loader.size(), 3);
    size_t i = 0;
    for (const torch::data::Example<>& batch : loader) EXPECT_TRUE(at::equal(batch.data, wanted.at(i++)));
    EXPECT_EQ(i, wanted.size());
  }
}

TEST(TorchDataset, WithoutStackABatchIsAVector) {
  auto loader = make_loader(Squares(5), {.batch_size = 2});
  std::vector<size_t> sizes;
  for (const std::vector<torch::data::Example<>>& batch : loader) sizes.push_back(batch.size());
  EXPECT_EQ(sizes, (std::vector<size_t>{2, 2, 1}));
}

TEST(TorchDataset, DrawsTheSameForAnyNumberOfThreads) {
  struct Noise : torch::data::datasets::Dataset<Noise> {
    torch::data::Example<> get(size_t) override { return {torch::rand({2}), torch::rand({1})}; }
    std::optional<size_t> size() const override { return 12; }
  };
  std::vector<Tensor> first;
  for (const int64_t workers : {0, 3}) {
    auto loader = make_loader(Noise().map(torch::data::transforms::Stack<>()),
                              {.batch_size = 3, .shuffle = true, .num_workers = workers});
    std::vector<Tensor> all;
    for (const auto& batch : loader) all.push_back(batch.data);
    if (first.empty())
      first = all;
    else
      EXPECT_TRUE(at::equal(at::cat(first), at::cat(all)));
  }
}

TEST(TorchDataset, ResumesInTheMiddleOfAnEpoch) {
  const auto data = Squares(20).map(torch::data::transforms::Stack<>());
  const LoaderOptions options{.batch_size = 3, .shuffle = true, .seed = 5};
  auto loader = make_loader(data, options);
  StateDict state;
  std::vector<std::vector<double>> rest, resumed;
  int64_t count = 0;
  for (const auto& batch : loader) {
    if (++count == 3)
      state = loader.state_dict();
    else if (count > 3)
      rest.push_back(targets(batch));
  }
  auto again = make_loader(data, options);
  again.load_state_dict(state);
  for (const auto& batch : again) resumed.push_back(targets(batch));
  EXPECT_EQ(resumed, rest);
  EXPECT_FALSE(rest.empty());
}

TEST(TorchDataset, FabricTakesTorchsPointerToALoader) {
  Fabric fabric({.accelerator = "cpu"});
  auto theirs = torch::data::make_data_loader(Squares(6).map(torch::data::transforms::Stack<>()), 3);
  auto loader = fabric.setup_dataloaders(theirs);
  int64_t rows = 0;
  for (auto& batch : loader) rows += batch.data.size(0);
  for (auto& batch : loader) rows += batch.data.size(0);
  EXPECT_EQ(rows, 12);
}

struct Endless : Squares {
  Endless() : Squares(1) {}
  std::optional<size_t> size() const override { return std::nullopt; }
};

TEST(TorchDataset, NeedsASize) {
  EXPECT_EQ(testing::error_of([] { make_loader(Endless(), {.batch_size = 2}); }),
            "[data] this torch dataset does not know its size(): override it");
}

}  // namespace
}  // namespace levin
