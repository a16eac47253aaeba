#include "levin/data/loader.h"

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/testing/error_of.h"
#include "levin/testing/forked.h"

namespace levin {
namespace {

using testing::error_of;

/// Samples that draw from their own random numbers, and, when asked, from torch's generator.
struct Drawing {
  int64_t count = 0;
  bool by_torch = false;
  int64_t size() const { return count; }
  Batch get(int64_t index, Random& random) const {
    auto x = torch::empty({3, 4, 5}, torch::kByte);
    for (int64_t i = 0; i < x.numel(); ++i) x.data_ptr<uint8_t>()[i] = static_cast<uint8_t>(random.bits());
    Batch sample{{"index", torch::tensor(index)}, {"x", x}};
    if (by_torch) sample.set("noise", torch::rand({7}) + torch::randn({7}));
    return sample;
  }
};

/// Images written where the loader wants them, the channels last in memory.
struct Placed {
  int64_t count = 0;
  std::shared_ptr<std::atomic<int>> in_place = std::make_shared<std::atomic<int>>(0);
  int64_t size() const { return count; }
  Batch get(int64_t index, Random&, SamplePlace& place) const {
    auto image = place.image(3, 4, 6), second = place.image(3, 4, 6);
    if (image.storage().nbytes() > 72) ++*in_place;
    image.fill_(index % 251);
    second.fill_((index + 1) % 251);
    return {{"image", image}, {"second", second}, {"label", torch::tensor(index)}};
  }
};

/// Every seventh sample is broken.
struct Broken {
  int64_t size() const { return 40; }
  Batch get(int64_t index) const {
    LEVIN_CHECK(index % 7 != 3, "[image] \"pictures/", index, ".png\" ends too early");
    return {{"x", torch::tensor(index)}};
  }
};

template <class L>
std::vector<Batch> all(L&& loader, int64_t at_most = 1 << 20) {
  std::vector<Batch> batches;
  for (auto& batch : loader) {
    batches.push_back(batch);
    if (static_cast<int64_t>(batches.size()) == at_most) break;
  }
  return batches;
}

void expect_equal(const std::vector<Batch>& a, const std::vector<Batch>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    for (const auto& [name, tensor] : a[i]) EXPECT_TRUE(torch::equal(tensor, b[i][name])) << name << " of batch " << i;
}

int64_t entries(const char* folder) {
  int64_t count = 0;
  auto* open = opendir(folder);
  while (readdir(open)) ++count;
  closedir(open);
  return count;
}

TEST(Loader, GivesTheSameBatchesForAnyNumberOfThreads) {
  for (const bool by_torch : {false, true}) {
    LoaderOptions options{.batch_size = 8, .shuffle = true, .seed = 5, .num_workers = 0};
    const Drawing data{.count = 100, .by_torch = by_torch};
    auto alone = make_loader(data, options);
    const auto first = all(alone), second = all(alone);
    EXPECT_FALSE(torch::equal(first[0]["x"], second[0]["x"]));
    for (const int workers : {1, 4, 16}) {
      options.num_workers = workers;
      auto loader = make_loader(data, options);
      EXPECT_EQ(loader.size(), 13);
      expect_equal(all(loader), first);
      expect_equal(all(loader), second);
      EXPECT_EQ(loader.stats().workers, workers);
    }
  }
}

TEST(Loader, LeavesTheGeneratorOfTheProcessAlone) {
  torch::manual_seed(3);
  const auto expected = torch::rand({4});
  torch::manual_seed(3);
  all(make_loader(Drawing{.count = 20, .by_torch = true}, {.batch_size = 4, .num_workers = 0}));
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(Loader, GivesEverySampleOnceOverTheRanks) {
  std::multiset<int64_t> seen;
  for (int rank = 0; rank < 3; ++rank)
    for (const auto& batch : all(make_loader(Drawing{.count = 30}, {.batch_size = 4, .shuffle = true, .num_workers = 4})
                                     .distributed(rank, 3)))
      for (int64_t i = 0; i < batch["index"].size(0); ++i) seen.insert(batch["index"][i].item<int64_t>());
  EXPECT_EQ(seen.size(), 30u);
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 30u);
}

TEST(Loader, ResumesWithTheSameBatchesAfterAnyBatch) {
  const LoaderOptions options{.batch_size = 4, .shuffle = true, .num_workers = 4};
  const Drawing data{.count = 30, .by_torch = true};
  auto whole = make_loader(data, options);
  all(whole);
  const auto second = all(whole);
  for (int64_t stop = 1; stop < 8; ++stop) {
    auto stopped = make_loader(data, options);
    all(stopped);
    all(stopped, stop);
    auto resumed = make_loader(data, {.batch_size = 4, .shuffle = true, .num_workers = 1});
    resumed.load_state_dict(stopped.state_dict());
    expect_equal(all(resumed), std::vector<Batch>(second.begin() + stop, second.end()));
  }
  // Elsewhere in the middle of a pass.
  auto it = whole.begin();
  whole.seek(1, 3);
  ++it;
  EXPECT_TRUE(torch::equal((*it)["x"], second[3]["x"]));
}

TEST(Loader, NeverOverwritesWhatSomebodyKeeps) {
  auto loader = make_loader(Placed{.count = 96}, {.batch_size = 4, .num_workers = 4});
  std::vector<Tensor> kept;
  std::vector<Tensor> saved;
  const auto weight = torch::ones({}, torch::requires_grad());
  Tensor loss = torch::zeros({});
  for (int epoch = 0; epoch < 4; ++epoch)
    for (auto& batch : loader) {
      kept.push_back(batch["image"][2]);                                         // a view of a part
      loss = loss + (weight * batch["label"].to(torch::kFloat)).square().sum();  // saved by autograd
    }
  for (size_t i = 0; i < kept.size(); ++i)
    EXPECT_TRUE(kept[i].eq(static_cast<int64_t>(i % 24 * 4 + 2) % 251).all().item<bool>()) << i;
  loss.backward();
  double sum = 0;
  for (int i = 0; i < 96; ++i) sum += 2.0 * i * i;
  EXPECT_NEAR(weight.grad().item<double>(), 4 * sum, 1);
}

TEST(Loader, UsesItsMemoryAgain) {
  auto loader = make_loader(Placed{.count = 400}, {.batch_size = 4, .num_workers = 2});
  std::set<const void*> places;
  for (auto& batch : loader) places.insert(batch["image"].const_data_ptr());
  EXPECT_LE(places.size(), 12u);
}

TEST(Loader, LetsSamplesBeMadeInTheBatch) {
  const Placed data{.count = 64};
  for (const int workers : {0, 3}) {
    *data.in_place = 0;
    auto loader = make_loader(data, {.batch_size = 8, .num_workers = workers, .prefetch_factor = 1});
    for (auto& batch : loader) {
      ASSERT_EQ(batch["image"].sizes(), (std::vector<int64_t>{8, 3, 4, 6}));
      EXPECT_TRUE(batch["image"].is_contiguous(torch::MemoryFormat::ChannelsLast));
      const auto label = batch["label"];
      EXPECT_TRUE(batch["image"].select(1, 0).select(1, 0).select(1, 0).eq(label).all().item<bool>());
      EXPECT_TRUE(batch["second"].select(1, 0).select(1, 0).select(1, 0).eq(label + 1).all().item<bool>());
    }
    EXPECT_GT(*data.in_place, 24);
  }
}

TEST(Loader, LetsThePlacesBeUsedInAnyOrder) {
  struct Swapped {
    int64_t size() const { return 64; }
    Batch get(int64_t index, Random&, SamplePlace& place) const {
      auto first = place.image(3, 4, 6), second = place.image(3, 4, 6);
      first.fill_(index);
      second.fill_(index + 1);
      if (index % 2) return {{"a", second}, {"b", first}};
      return {{"a", second}, {"b", first.slice(1, 0, 4)}};
    }
  };
  for (const int workers : {0, 3})
    for (int round = 0; round < 50; ++round) {
      int64_t index = 0;
      for (auto& batch : make_loader(Swapped(), {.batch_size = 8, .num_workers = workers, .prefetch_factor = 1}))
        for (int64_t row = 0; row < 8; ++row, ++index) {
          ASSERT_TRUE(batch["a"][row].eq(index + 1).all().item<bool>()) << index;
          ASSERT_TRUE(batch["b"][row].eq(index).all().item<bool>()) << index;
        }
    }
}

TEST(Loader, TellsWhichSampleIsBad) {
  for (const int workers : {0, 1, 8}) {
    auto loader = make_loader(Broken(), {.batch_size = 8, .num_workers = workers});
    EXPECT_EQ(error_of([&] { all(loader); }), "[data] sample 3: [image] \"pictures/3.png\" ends too early");
    // Batches before a bad one come.
    auto later = make_loader(Broken(), {.batch_size = 1, .num_workers = workers});
    int64_t count = 0;
    EXPECT_NE(error_of([&] {
                for ([[maybe_unused]] auto& batch : later) ++count;
              }).find("sample 3"),
              std::string::npos);
    EXPECT_EQ(count, 3);
    EXPECT_EQ(later.batch(), 3);
  }
}

TEST(Loader, LeavesBadSamplesOutWhenAsked) {
  for (const int workers : {0, 4}) {
    auto loader = make_loader(Broken(), {.batch_size = 8, .num_workers = workers, .bad_samples = "skip"});
    std::vector<int64_t> seen;
    for (auto& batch : loader)
      for (int64_t i = 0; i < batch["x"].size(0); ++i) seen.push_back(batch["x"][i].item<int64_t>());
    EXPECT_EQ(seen.size(), 34u);
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(loader.stats().skipped, 6);
    // Alone in its batch, it takes the batch along.
    auto alone = make_loader(Broken(), {.batch_size = 1, .num_workers = workers, .bad_samples = "skip"});
    EXPECT_EQ(all(alone).size(), 34u);
    EXPECT_EQ(alone.stats().skipped, 6);
  }
}

TEST(Loader, MakesBatchesByAFunctionOfTheProgram) {
  struct Ragged {
    int64_t size() const { return 6; }
    Tensor get(int64_t i) const { return torch::full({i + 1}, i); }
  };
  auto loader = make_loader(Ragged(), {.batch_size = 3, .num_workers = 2}, [](std::vector<Tensor> samples) {
    return torch::nn::utils::rnn::pad_sequence(samples, true);
  });
  std::vector<std::vector<int64_t>> sizes;
  for (auto& batch : loader) sizes.push_back(batch.sizes().vec());
  EXPECT_EQ(sizes, (std::vector<std::vector<int64_t>>{{3, 3}, {3, 6}}));
  auto plain = make_loader(Ragged(), {.batch_size = 3, .num_workers = 2});
  EXPECT_NE(error_of([&] {
              for ([[maybe_unused]] auto& batch : plain) {
              }
            }).find("differ in shape: [1] and [2]"),
            std::string::npos);
  // Of different shapes from batch to batch is fine.
  auto single = make_loader(Ragged(), {.batch_size = 1, .num_workers = 2});
  int64_t next = 1;
  for (auto& batch : single) EXPECT_EQ(batch.sizes(), (std::vector<int64_t>{1, next++}));
}

TEST(Loader, TransformsWholeBatches) {
  const auto noisy = [](int workers) {
    return make_loader(Drawing{.count = 20}, {.batch_size = 4, .shuffle = true, .num_workers = workers})
        .transformed([](Batch& batch, Random& random) {
          batch.set("lambda", torch::full({}, random.uniform()) + torch::rand({}));
        })
        .transformed([](Batch& batch, Random&) { batch["x"] = batch["x"].to(torch::kFloat) / 255; });
  };
  auto a = noisy(0), b = noisy(4);
  const auto first = all(a);
  expect_equal(first, all(b));
  EXPECT_EQ(first[0]["x"].scalar_type(), torch::kFloat);
  EXPECT_NE(first[0]["lambda"].item<float>(), first[1]["lambda"].item<float>());
  expect_equal(all(b.distributed(0, 1)), first);
}

TEST(Loader, SaysWhatItWaitsFor) {
  struct Stuck {
    int64_t size() const { return 2; }
    Tensor get(int64_t) const {
      released.wait_for(std::chrono::seconds(10));
      return torch::ones({});
    }
    std::shared_future<void> released;
  };
  std::promise<void> release;
  auto loader = make_loader(Stuck{release.get_future().share()}, {.batch_size = 1, .num_workers = 1, .timeout = 0.02});
  EXPECT_NE(error_of([&] { loader.begin(); }).find("batch 0 of epoch 0 did not come within 0.02 s"), std::string::npos);
  release.set_value();
}

TEST(Loader, LeavesNothingBehind) {
  const auto cycle = [] {
    auto loader = make_loader(Placed{.count = 40}, {.batch_size = 4, .num_workers = 4});
    for (auto& batch : loader)
      if (batch["label"][0].item<int64_t>() > 12) break;
  };
  cycle();
  const auto threads = entries("/proc/self/task"), files = entries("/proc/self/fd");
  for (int i = 0; i < 100; ++i) cycle();
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_EQ(entries("/proc/self/fd"), files);
  auto kept = make_loader(Placed{.count = 8}, {.batch_size = 4, .num_workers = 3, .persistent_workers = false});
  all(kept);
  EXPECT_EQ(entries("/proc/self/task"), threads);
  all(kept);
}

TEST(Loader, RefusesOptionsInOneLine) {
  const auto refuse = [](const LoaderOptions& options) {
    return error_of([&] { make_loader(Drawing{.count = 4}, options); });
  };
  EXPECT_NE(refuse({.prefetch_factor = 0}).find("prefetch_factor 0"), std::string::npos);
  EXPECT_NE(refuse({.timeout = -1}).find("timeout -1"), std::string::npos);
  EXPECT_NE(refuse({.bad_samples = "ship"}).find("\"skip\""), std::string::npos);
  EXPECT_NE(refuse({.shuffle = true, .sampler = Sampler::sequential()}).find("exclude each other"), std::string::npos);
  EXPECT_NE(error_of([] { NumWorkers("many"); }).find("num_workers \"many\""), std::string::npos);
  EXPECT_NE(error_of([] { NumWorkers(-1); }).find("num_workers -1"), std::string::npos);
}

TEST(Sampler, DrawsByWeight) {
  std::vector<double> weights(10, 1.0);
  weights[3] = 11;
  weights[0] = 0;
  const auto sampler = Sampler::weighted(weights, 20000);
  const auto order = sampler.order(10, 1, 0);
  ASSERT_EQ(order.size(), 20000u);
  std::vector<int64_t> counts(10);
  for (const auto index : order) ++counts[static_cast<size_t>(index)];
  EXPECT_EQ(counts[0], 0);
  EXPECT_NEAR(static_cast<double>(counts[3]), 20000 * 11.0 / 19, 300);
  EXPECT_NEAR(static_cast<double>(counts[7]), 20000 / 19.0, 150);
  EXPECT_NE(order, sampler.order(10, 1, 1));
  const auto once = Sampler::weighted(weights, 9, false).order(10, 1, 0);
  EXPECT_EQ(std::set<int64_t>(once.begin(), once.end()), (std::set<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_NE(error_of([&] { Sampler::weighted(weights, 10, false); }).find("10 samples without replacement"),
            std::string::npos);
  auto loader =
      make_loader(Drawing{.count = 10}, {.batch_size = 8, .num_workers = 0, .sampler = Sampler::weighted(weights, 20)});
  EXPECT_EQ(loader.size(), 3);
  EXPECT_TRUE(loader.shuffles());
}

TEST(Sampler, ShufflesInABuffer) {
  const auto order = Sampler::buffered(16).order(500, 2, 0);
  EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 500u);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  for (size_t i = 0; i < order.size(); ++i) EXPECT_LE(order[i], static_cast<int64_t>(i) + 16);
  EXPECT_EQ(Sampler::buffered(1).count(5), 5);
  const Sampler wrong(
      "wrong", [](int64_t size, uint64_t, int64_t) { return std::vector<int64_t>(static_cast<size_t>(size), 7); });
  EXPECT_NE(error_of([&] { wrong.order(5, 0, 0); }).find("gave sample 7 of a dataset with 5"), std::string::npos);
}

TEST(Random, BelongsToItsKey) {
  Random a(1, 2, 3), b(1, 2, 3), c(1, 2, 4), d(1, 3, 3);
  const auto first = a.bits64();
  EXPECT_EQ(first, b.bits64());
  EXPECT_NE(first, c.bits64());
  EXPECT_NE(first, d.bits64());
  double sum = 0, squares = 0, betas = 0;
  for (int i = 0; i < 20000; ++i) {
    const double x = a.normal();
    sum += x;
    squares += x * x;
    betas += a.beta(0.5, 1.5);
    const auto n = a.below(7);
    ASSERT_LT(n, 7u);
  }
  EXPECT_NEAR(sum / 20000, 0, 0.03);
  EXPECT_NEAR(squares / 20000, 1, 0.04);
  EXPECT_NEAR(betas / 20000, 0.25, 0.01);
}

int64_t sum_of(DataLoader<Batch>& loader) {
  int64_t sum = 0;
  for (auto& batch : loader) sum += batch["index"].sum().item<int64_t>();
  return sum;
}

using testing::in_a_child;

TEST(LoaderAfterFork, AChildBeginsPassesWithThreadsOfItsOwn) {
  auto loader = make_loader(Drawing{64}, {.batch_size = 4, .num_workers = 2, .persistent_workers = true});
  auto it = loader.begin();  // a pass is under way, and threads wait
  for (int again = 0; again < 3; ++again)
    EXPECT_EQ(in_a_child([&] { return std::to_string(sum_of(loader)) + " " + std::to_string(sum_of(loader)); }),
              "2016 2016");
  EXPECT_EQ((*it)["index"].size(0), 4);
  EXPECT_EQ(sum_of(loader), 2016);
}

TEST(LoaderAfterFork, APassOfTheParentIsAnError) {
  auto loader = make_loader(Drawing{64}, {.batch_size = 4, .num_workers = 2});
  auto it = loader.begin();
  EXPECT_THAT(in_a_child([&] {
                for (int i = 0; i < 20; ++i) ++it;
                return std::string("no error");
              }),
              ::testing::HasSubstr("begun before fork()"));
}

TEST(LoaderAfterFork, ALoaderOfTheParentCanBeDestroyedInAChild) {
  auto loader = std::make_unique<DataLoader<Batch>>(
      make_loader(Drawing{64}, {.batch_size = 4, .num_workers = 2, .persistent_workers = true}));
  EXPECT_EQ(sum_of(*loader), 2016);
  EXPECT_EQ(in_a_child([&] {
              loader.reset();
              return std::string("gone");
            }),
            "gone");
}

// Torch's pool of threads is made again after fork() when it is first used, by all workers at once.
TEST(LoaderAfterFork, ManyChildrenStartManyWorkers) {
  (void)at::ones({1 << 16}).exp();
  for (int child = 0; child < 20; ++child)
    ASSERT_EQ(in_a_child([&] {
                auto loader = make_loader(Drawing{64}, {.batch_size = 4, .num_workers = 8});
                return std::to_string(sum_of(loader));
              }),
              "2016");
}

/// Work whose bookkeeping fails in a thread of the engine, outside of the making of samples.
class FailingWork final : public detail::BatchWork {
 public:
  int64_t samples() const override { throw Error("[test] no number of samples"); }
  void make(int64_t) noexcept override {}
  void finish() override {}
  std::string name() const override { return "work"; }
};

TEST(LoaderEngine, AnErrorInItsThreadReachesTheConsumer) {
  detail::LoaderEngine engine({.workers = 2});
  for (int pass = 0; pass < 2; ++pass) {
    engine.start([] { return std::make_shared<FailingWork>(); });
    EXPECT_EQ(error_of([&] { engine.next(); }), "[test] no number of samples");
    EXPECT_EQ(error_of([&] { engine.next(); }), "[test] no number of samples");
  }
}

}  // namespace
}  // namespace levin
