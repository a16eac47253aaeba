#include <set>

#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/data/fashion_mnist.h"
#include "levin/data/loader.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

using testing::error_of;

TensorDataset numbers(int64_t count) {
  return TensorDataset({{"x", torch::arange(count)}});
}

template <class L>
std::vector<std::vector<int64_t>> pass(L& loader, int64_t at_most = 1000) {
  std::vector<std::vector<int64_t>> batches;
  for (auto& batch : loader) {
    const auto x = batch["x"];
    batches.emplace_back(x.template data_ptr<int64_t>(), x.template data_ptr<int64_t>() + x.numel());
    if (static_cast<int64_t>(batches.size()) == at_most) break;
  }
  return batches;
}

struct Point {
  Tensor where;
  std::optional<Tensor> weight;
};
struct Points {
  int64_t size() const { return 5; }
  Point get(int64_t i) const { return {torch::full({2}, i), torch::ones({})}; }
};
struct Ragged {
  int64_t size() const { return 4; }
  Tensor get(int64_t i) const { return torch::ones({i + 1}); }
};

TEST(DataLoader, GivesEverySampleOnceInOrder) {
  auto loader = make_loader(numbers(7), {.batch_size = 3});
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(pass(loader), (std::vector<std::vector<int64_t>>{{0, 1, 2}, {3, 4, 5}, {6}}));
  auto full = make_loader(numbers(7), {.batch_size = 3, .drop_last = true});
  EXPECT_EQ(full.size(), 2);
  EXPECT_EQ(pass(full).size(), 2u);
}

TEST(DataLoader, ShufflesBySeedAndEpochAlone) {
  auto a = make_loader(numbers(50), {.batch_size = 8, .shuffle = true, .seed = 3});
  auto b = make_loader(numbers(50), {.batch_size = 8, .shuffle = true, .seed = 3});
  const auto first = pass(a);
  const auto second = pass(a);
  EXPECT_NE(first, second);
  EXPECT_EQ(pass(b), first);
  b.set_epoch(1);
  EXPECT_EQ(pass(b), second);
  std::set<int64_t> seen;
  for (const auto& batch : first) seen.insert(batch.begin(), batch.end());
  EXPECT_EQ(seen.size(), 50u);
  auto other = make_loader(numbers(50), {.batch_size = 8, .shuffle = true, .seed = 4});
  EXPECT_NE(pass(other), first);
}

TEST(DataLoader, RanksTogetherSeeWhatOneProcessSees) {
  auto whole = make_loader(numbers(24), {.batch_size = 8, .shuffle = true});
  const auto expected = pass(whole);
  std::vector<std::multiset<int64_t>> together(expected.size());
  for (int rank = 0; rank < 4; ++rank) {
    auto part = make_loader(numbers(24), {.batch_size = 2, .shuffle = true}).distributed(rank, 4);
    const auto batches = pass(part);
    ASSERT_EQ(batches.size(), expected.size());
    for (size_t i = 0; i < batches.size(); ++i) together[i].insert(batches[i].begin(), batches[i].end());
  }
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(together[i], std::multiset<int64_t>(expected[i].begin(), expected[i].end()));
}

TEST(DataLoader, UnevenRanksPadOrDrop) {
  std::multiset<int64_t> padded, dropped;
  for (int rank = 0; rank < 3; ++rank) {
    auto pad = make_loader(numbers(10), {.batch_size = 4}).distributed(rank, 3);
    auto drop = make_loader(numbers(10), {.batch_size = 3, .drop_last = true}).distributed(rank, 3);
    for (const auto& batch : pass(pad)) padded.insert(batch.begin(), batch.end());
    for (const auto& batch : pass(drop)) dropped.insert(batch.begin(), batch.end());
  }
  EXPECT_EQ(padded.size(), 12u);
  EXPECT_EQ(std::set<int64_t>(padded.begin(), padded.end()).size(), 10u);
  EXPECT_EQ(dropped.size(), 9u);
}

TEST(DataLoader, UnevenRanksShareWithoutRepeating) {
  for (const int64_t samples : {10, 11, 12, 2}) {
    std::multiset<int64_t> seen;
    for (int rank = 0; rank < 3; ++rank) {
      auto part = make_loader(numbers(samples), {.batch_size = 2}).distributed(rank, 3, /*repeat=*/false);
      const auto batches = pass(part);
      EXPECT_EQ(static_cast<int64_t>(batches.size()), part.size()) << samples << " on rank " << rank;
      EXPECT_EQ(pass(part), batches);  // the next pass, also of a rank that has nothing
      for (const auto& batch : batches) seen.insert(batch.begin(), batch.end());
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), samples);
    EXPECT_EQ(static_cast<int64_t>(std::set<int64_t>(seen.begin(), seen.end()).size()), samples);
  }
  auto last = make_loader(numbers(2), {.batch_size = 2}).distributed(2, 3, false);
  EXPECT_EQ(last.size(), 0);
  auto stepped = make_loader(numbers(10), {.batch_size = 1}).distributed(2, 3, false);
  EXPECT_EQ(pass(stepped), (std::vector<std::vector<int64_t>>{{2}, {5}, {8}}));
  // Whoever drops the rest repeats nothing anyway.
  EXPECT_EQ(make_loader(numbers(10), {.batch_size = 1, .drop_last = true}).distributed(0, 3, false).size(), 3);
}

TEST(DataLoader, GivesVariantsOfItself) {
  auto loader = make_loader(numbers(9), {.batch_size = 2, .shuffle = true, .seed = 5});
  EXPECT_TRUE(loader.shuffles());
  auto plain = loader.sequential();
  EXPECT_FALSE(plain.shuffles());
  EXPECT_EQ(pass(plain), (std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8}}));
  auto wide = loader.with_batch_size(4);
  EXPECT_EQ(wide.batch_size(), 4);
  EXPECT_EQ(loader.batch_size(), 2);
  auto reference = make_loader(numbers(9), {.batch_size = 4, .shuffle = true, .seed = 5});
  EXPECT_EQ(pass(wide), pass(reference));
  // The samples of a rank stay its own.
  auto part = loader.distributed(1, 2, false).sequential().with_batch_size(3);
  EXPECT_EQ(pass(part), (std::vector<std::vector<int64_t>>{{1, 3, 5}, {7}}));
  EXPECT_NE(error_of([&] { loader.with_batch_size(0); }).find("batch_size 0"), std::string::npos);
}

TEST(DataLoader, SeeksToAnyBatchOfAnyEpoch) {
  auto loader = make_loader(numbers(12), {.batch_size = 3, .shuffle = true});
  pass(loader);
  const auto second = pass(loader);
  loader.seek(1, 2);
  EXPECT_EQ(loader.batch(), 2);
  EXPECT_EQ(pass(loader), std::vector<std::vector<int64_t>>(second.begin() + 2, second.end()));
  EXPECT_EQ(loader.epoch(), 2);
  EXPECT_EQ(loader.batch(), 0);
}

TEST(DataLoader, ResumesAtAnyBatch) {
  auto loader = make_loader(numbers(40), {.batch_size = 4, .shuffle = true});
  pass(loader);
  const auto second = pass(loader);
  for (int64_t stop = 1; stop <= 10; ++stop) {
    auto stopped = make_loader(numbers(40), {.batch_size = 4, .shuffle = true});
    pass(stopped);
    pass(stopped, stop);
    auto resumed = make_loader(numbers(40), {.batch_size = 4, .shuffle = true});
    resumed.load_state_dict(stopped.state_dict());
    const auto rest = pass(resumed);
    if (stop == 10) {  // stopped after the last batch, before the pass was found to be over
      EXPECT_TRUE(rest.empty());
      continue;
    }
    EXPECT_EQ(rest, std::vector<std::vector<int64_t>>(second.begin() + stop, second.end())) << stop;
  }
  // On two ranks: the same place of the epoch.
  auto stopped = make_loader(numbers(40), {.batch_size = 4, .shuffle = true});
  pass(stopped, 3);
  auto rank = make_loader(numbers(40), {.batch_size = 2, .shuffle = true}).distributed(0, 2);
  rank.load_state_dict(stopped.state_dict());
  EXPECT_EQ(pass(rank).size(), 7u);
}

TEST(DataLoader, AnEarlyBreakStartsTheNextEpoch) {
  auto loader = make_loader(numbers(20), {.batch_size = 5, .shuffle = true});
  const auto first = pass(loader, 2);
  auto fresh = make_loader(numbers(20), {.batch_size = 5, .shuffle = true});
  pass(fresh);
  EXPECT_EQ(pass(loader), pass(fresh));
}

TEST(DataLoader, CollatesTypesOfTheUsers) {
  auto loader = make_loader(Points(), {.batch_size = 5});
  int count = 0;
  for (auto [i, batch] : enumerate(loader)) {
    EXPECT_EQ(i, count++);
    EXPECT_EQ(batch.where.sizes(), (std::vector<int64_t>{5, 2}));
    EXPECT_EQ(batch.weight->numel(), 5);
  }
  EXPECT_EQ(count, 1);
  auto ragged = make_loader(Ragged(), {.batch_size = 2});
  EXPECT_NE(error_of([&] { ragged.begin(); }).find("differ in shape"), std::string::npos);
}

TEST(DataLoader, RefusesInOneLine) {
  EXPECT_NE(error_of([] { make_loader(numbers(3), {.batch_size = 0}); }).find("batch_size 0"), std::string::npos);
  EXPECT_NE(
      error_of([] { make_loader(numbers(3), {.batch_size = 5, .drop_last = true}); }).find("drop_last leaves nothing"),
      std::string::npos);
  EXPECT_NE(error_of([] {
              TensorDataset({{"a", torch::ones({3})}, {"b", torch::ones({4})}});
            }).find("\"b\" has 4 samples, \"a\" has 3"),
            std::string::npos);
  auto loader = make_loader(numbers(9), {.batch_size = 2});
  auto state = loader.state_dict();
  state["dataset_size"] = 8;
  EXPECT_NE(error_of([&] { loader.load_state_dict(state); }).find("8 samples, this one has 9"), std::string::npos);
}

TEST(ImageData, DrawsTenKindsOfShapes) {
  const auto data = draw_shapes(200, 50);
  EXPECT_EQ(data.train.tensors()["image"].sizes(), (std::vector<int64_t>{200, 1, 28, 28}));
  EXPECT_EQ(data.train.tensors()["label"].max().item<int64_t>(), 9);
  EXPECT_TRUE(torch::equal(data.train.tensors()["image"], draw_shapes(200, 50).train.tensors()["image"]));
  EXPECT_NE(error_of([] { load_fashion_mnist("/nonexistent"); }).find("train-images-idx3-ubyte"), std::string::npos);
}

}  // namespace
}  // namespace levin
