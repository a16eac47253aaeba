#include "levin/data/stages.h"

#include <set>

#include <gtest/gtest.h>

namespace levin {
namespace {

struct Numbers {
  int64_t count = 0;
  int64_t size() const { return count; }
  Tensor get(int64_t index) const { return torch::tensor(index); }
};

/// Counts up, from another start in every epoch.
struct Counter {
  int64_t count = 0;
  int64_t at = 0, end = 0;
  void start(int64_t epoch) {
    at = epoch * 100;
    end = at + count;
  }
  std::optional<Tensor> next() { return at < end ? std::optional(torch::tensor(at++)) : std::nullopt; }
};
struct SkippingCounter : Counter {
  int64_t skipped = 0;
  void skip(int64_t items) { at += items; }
};

template <class L>
std::vector<std::vector<int64_t>> numbers(L&& loader, int64_t at_most = 1000) {
  std::vector<std::vector<int64_t>> batches;
  for (auto& batch : loader) {
    const auto x = batch.to(torch::kLong).contiguous();
    batches.emplace_back(x.template data_ptr<int64_t>(), x.template data_ptr<int64_t>() + x.numel());
    if (static_cast<int64_t>(batches.size()) == at_most) break;
  }
  return batches;
}

TEST(Stages, ComposeDatasets) {
  const auto odd = stages::map(stages::subset(Numbers{10}, {1, 3, 5, 7, 9}), [](Tensor x) { return x * 10; });
  EXPECT_EQ(numbers(make_loader(odd, {.batch_size = 2, .num_workers = 2})),
            (std::vector<std::vector<int64_t>>{{10, 30}, {50, 70}, {90}}));
  const auto both = stages::concat(std::vector<Numbers>{{2}, {0}, {3}});
  EXPECT_EQ(numbers(make_loader(both, {.batch_size = 5, .num_workers = 1})),
            (std::vector<std::vector<int64_t>>{{0, 1, 0, 1, 2}}));
  const auto noisy = stages::map(Numbers{8}, [](Tensor x, Random& random) { return x * 1000 + random.integer(0, 9); });
  EXPECT_EQ(numbers(make_loader(noisy, {.batch_size = 3, .num_workers = 0})),
            numbers(make_loader(noisy, {.batch_size = 3, .num_workers = 4})));
  std::multiset<int64_t> seen;
  for (const auto& part : stages::random_split(Numbers{10}, {7, 3}, 4))
    for (const auto& batch : numbers(make_loader(part, {.batch_size = 10}))) seen.insert(batch.begin(), batch.end());
  EXPECT_EQ(seen, (std::multiset<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_THROW(stages::subset(Numbers{3}, {3}), Error);
  EXPECT_THROW(stages::random_split(Numbers{3}, {1, 1}), Error);
}

TEST(Stream, GivesTheSameForAnyNumberOfThreads) {
  const auto stream = [] {
    return stages::map(
        stages::shuffle(stages::filter(Counter{50}, [](const Tensor& x) { return x.item<int64_t>() % 3 != 0; }), 8, 7),
        [](Tensor x, Random& random) { return x * 100 + random.integer(0, 99); });
  };
  auto alone = make_loader(stream(), {.batch_size = 4, .num_workers = 0});
  const auto first = numbers(alone), second = numbers(alone);
  EXPECT_EQ(first.size(), 9u);
  EXPECT_NE(first, second);
  std::set<int64_t> seen;
  for (const auto& batch : first)
    for (const auto x : batch) seen.insert(x / 100);
  EXPECT_EQ(seen.size(), 33u);
  for (const int workers : {1, 4}) {
    auto loader = make_loader(stream(), {.batch_size = 4, .num_workers = workers});
    EXPECT_EQ(numbers(loader), first);
    EXPECT_EQ(numbers(loader), second);
  }
}

TEST(Stream, ResumesAndIsSplitAmongRanks) {
  const auto check = [](auto stream) {
    auto loader = make_loader(stream, {.batch_size = 4, .num_workers = 2});
    const auto whole = numbers(loader);
    EXPECT_EQ(whole.size(), 5u);
    auto stopped = make_loader(stream, {.batch_size = 4, .num_workers = 2});
    numbers(stopped, 2);
    auto resumed = make_loader(stream, {.batch_size = 4, .num_workers = 1});
    resumed.load_state_dict(stopped.state_dict());
    EXPECT_EQ(numbers(resumed), std::vector<std::vector<int64_t>>(whole.begin() + 2, whole.end()));
    EXPECT_EQ(resumed.epoch(), 1);
  };
  check(Counter{18});
  check(SkippingCounter{{18}});
  // The last step has an item for one of three ranks: the others repeat it, unless nothing may come twice.
  const auto seven = make_loader(stages::take(Counter{30}, 7), {.batch_size = 2});
  EXPECT_EQ(numbers(seven.distributed(1, 3)), (std::vector<std::vector<int64_t>>{{1, 4}, {6}}));
  EXPECT_EQ(numbers(seven.distributed(1, 3, /*repeat=*/false)), (std::vector<std::vector<int64_t>>{{1, 4}}));
  EXPECT_THROW(make_loader(Counter{3}, {.shuffle = true}), Error);
}

}  // namespace
}  // namespace levin
