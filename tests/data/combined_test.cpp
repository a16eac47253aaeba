#include "levin/data/combined.h"

#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin {
namespace {

using Json = nlohmann::json;
using testing::error_of;

const std::vector<std::string> kModes{"min_size", "max_size", "max_size_cycle", "sequential"};

DataLoader<Batch> numbers(int64_t count, LoaderOptions options = {}) {
  return make_loader(TensorDataset({{"x", torch::arange(count)}}), options);
}

Json contents(const CombinedBatch<Batch>& batch) {
  Json result = Json::object();
  for (const auto& [name, part] : batch) {
    if (!part) {
      result[name] = nullptr;
      continue;
    }
    const auto x = (*part)["x"];
    result[name] = std::vector<int64_t>(x.data_ptr<int64_t>(), x.data_ptr<int64_t>() + x.numel());
  }
  return result;
}

std::vector<Json> pass(const CombinedLoader<Batch>& loader, size_t at_most = 1000) {
  std::vector<Json> batches;
  for (auto& batch : loader) {
    batches.push_back(contents(batch));
    if (batches.size() == at_most) break;
  }
  return batches;
}

CombinedLoader<Batch> three(const std::string& mode) {
  return combine({{"a", numbers(7, {.batch_size = 2, .shuffle = true, .seed = 1})},
                  {"b", numbers(11, {.batch_size = 1, .shuffle = true, .seed = 2})},
                  {"c", numbers(6, {.batch_size = 3, .shuffle = true, .seed = 3})}},
                 {.mode = mode});
}

// What the state says of each loader: its epoch and the samples given out.
Json places(const CombinedLoader<Batch>& loader) {
  const auto state = loader.state_dict();
  Json result = {{"epoch", state.at("epoch").to_int()}};
  for (const auto& [name, member] : state.at("members").to_dict())
    result[name] = {member.to_dict().at("epoch").to_int(), member.to_dict().at("samples").to_int()};
  return result;
}

TEST(CombinedLoader, GivesWhatLightningGives) {
  std::ifstream file(testing::source_dir() + "/tests/trainer/fixtures/counts.json");
  ASSERT_TRUE(file.good());
  const Json fixture = Json::parse(file);
  ASSERT_EQ(fixture["combined"].size(), 12u);
  for (const auto& expected : fixture["combined"]) {
    CombinedLoader<Batch>::Members members;
    for (const auto& [name, length] : expected["lengths"].items())
      members.emplace_back(name, numbers(length, {.batch_size = expected["batch_size"]}));
    const std::string mode = expected["mode"];
    const auto loader = combine(members, {.mode = mode});
    EXPECT_EQ(loader.size(), expected["size"].get<int64_t>()) << expected;
    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto batches = pass(loader);
      ASSERT_EQ(batches.size(), expected["batches"].get<size_t>()) << expected;
      if (!expected.contains("contents")) continue;
      for (size_t i = 0; i < batches.size(); ++i) {
        auto given = batches[i];
        if (mode == "sequential")  // Lightning gives the one batch alone
          for (auto it = given.begin(); it != given.end();) it = it->is_null() ? given.erase(it) : std::next(it);
        EXPECT_EQ(given, expected["contents"][i]) << mode << " batch " << i;
      }
    }
  }
}

TEST(CombinedLoader, ResumesAtAnyBatchOfAnyEpoch) {
  for (const auto& mode : kModes) {
    const auto reference = three(mode);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      const auto whole = pass(reference);
      ASSERT_EQ(static_cast<int64_t>(whole.size()), reference.size()) << mode;
      for (size_t stop = 1; stop <= whole.size(); ++stop) {
        const auto stopped = three(mode);
        stopped.set_epoch(epoch);
        pass(stopped, stop);
        const auto resumed = three(mode);
        resumed.load_state_dict(stopped.state_dict());
        EXPECT_EQ(resumed.batch(), static_cast<int64_t>(stop));
        EXPECT_EQ(places(resumed), places(stopped)) << mode << " epoch " << epoch << " batch " << stop;
        EXPECT_EQ(pass(resumed), std::vector<Json>(whole.begin() + static_cast<std::ptrdiff_t>(stop), whole.end()))
            << mode << " epoch " << epoch << " batch " << stop;
        EXPECT_EQ(resumed.epoch(), epoch + 1);
        const auto next = three(mode);
        next.set_epoch(epoch + 1);
        EXPECT_EQ(pass(resumed), pass(next)) << mode << ": the pass after the resumed one";
      }
    }
    // Between two passes.
    const auto resumed = three(mode);
    resumed.load_state_dict(reference.state_dict());
    EXPECT_EQ(pass(resumed), pass(reference)) << mode;
  }
}

TEST(CombinedLoader, AnEarlyBreakStartsTheNextEpoch) {
  for (const auto& mode : kModes) {
    const auto left = three(mode);
    pass(left, 2);
    const auto fresh = three(mode);
    fresh.set_epoch(1);
    EXPECT_EQ(pass(left), pass(fresh)) << mode;
  }
}

TEST(CombinedLoader, SeeksAnyBatchOfAnyEpoch) {
  for (const auto& mode : kModes) {
    const auto reference = three(mode);
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      const auto whole = pass(reference);
      for (size_t at = 0; at <= whole.size(); ++at) {
        const auto loader = three(mode);
        pass(loader, 3);
        loader.seek(epoch, static_cast<int64_t>(at));
        EXPECT_EQ(loader.batch(), static_cast<int64_t>(at));
        EXPECT_EQ(pass(loader), std::vector<Json>(whole.begin() + static_cast<std::ptrdiff_t>(at), whole.end()))
            << mode << " epoch " << epoch << " batch " << at;
      }
    }
  }
}

/// Fails once, at one of its samples.
struct FailsOnce {
  std::shared_ptr<int64_t> at;
  int64_t size() const { return 6; }
  Batch get(int64_t index) const {
    if (index == *at) {
      *at = -1;
      throw Error("[test] as asked");
    }
    return Batch{{"x", torch::tensor(index)}};
  }
};

TEST(CombinedLoader, ABatchThatFailsComesAgain) {
  for (const auto& mode : kModes) {
    const auto make = [&](int64_t fails_at) {
      return combine({{"a", numbers(6)},
                      {"b", make_loader(FailsOnce{std::make_shared<int64_t>(fails_at)}, {.num_workers = 0})},
                      {"c", numbers(4)}},
                     {.mode = mode});
    };
    const auto whole = pass(make(-1));
    const auto loader = make(2);
    std::vector<Json> given;
    EXPECT_THROW(
        {
          for (auto& batch : loader) given.push_back(contents(batch));
        },
        Error);
    EXPECT_EQ(loader.batch(), static_cast<int64_t>(given.size())) << mode;
    const auto resumed = make(-1);
    resumed.load_state_dict(loader.state_dict());
    for (const auto& batch : pass(resumed)) given.push_back(batch);
    EXPECT_EQ(given, whole) << mode;
  }
}

TEST(CombinedLoader, EveryCycleHasItsOwnOrder) {
  const auto loader = combine({{"short", numbers(5, {.batch_size = 5, .shuffle = true})}, {"long", numbers(3)}});
  EXPECT_EQ(loader.mode(), "max_size_cycle");
  std::set<Json> orders;
  for (int epoch = 0; epoch < 4; ++epoch)
    for (const auto& batch : pass(loader)) orders.insert(batch["short"]);
  EXPECT_GE(orders.size(), 10u);  // of 12 cycles; 120 orders are possible
}

TEST(CombinedLoader, DistributesEveryMember) {
  for (const bool repeat : {true, false}) {
    std::multiset<int64_t> a, b;
    for (int rank = 0; rank < 3; ++rank) {
      const auto part = combine({{"a", numbers(10, {.shuffle = true})}, {"b", numbers(4)}}, {.mode = "max_size"})
                            .distributed(rank, 3, repeat);
      EXPECT_TRUE(part.shuffles());
      EXPECT_FALSE(part.sequential().shuffles());
      for (const auto& batch : pass(part)) {
        if (!batch["a"].is_null()) a.insert(batch["a"][0].get<int64_t>());
        if (!batch["b"].is_null()) b.insert(batch["b"][0].get<int64_t>());
      }
    }
    EXPECT_EQ(a.size(), repeat ? 12u : 10u);
    EXPECT_EQ(b.size(), repeat ? 6u : 4u);
    EXPECT_EQ(std::set<int64_t>(a.begin(), a.end()).size(), 10u);
  }
  // A member without a sample on this rank cannot be cycled; the pass continues without it.
  const auto last = combine({{"a", numbers(9)}, {"b", numbers(2)}}).distributed(2, 3, false);
  EXPECT_EQ(pass(last), (std::vector<Json>{
                            {{"a", {2}}, {"b", nullptr}}, {{"a", {5}}, {"b", nullptr}}, {{"a", {8}}, {"b", nullptr}}}));
}

TEST(CombinedLoader, ResumesOnAnotherNumberOfRanks) {
  const auto make = [](int64_t batch_size) {
    return combine({{"a", numbers(8, {.batch_size = batch_size})}, {"b", numbers(24, {.batch_size = batch_size})}});
  };
  const auto one = make(4);
  pass(one, 3);
  const auto two = make(2).distributed(0, 2);
  two.load_state_dict(one.state_dict());
  const auto rest = pass(two);
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(rest[0], (Json{{"a", {4, 6}}, {"b", {12, 14}}}));
  EXPECT_EQ(rest[1], (Json{{"a", {0, 2}}, {"b", {16, 18}}}));
}

// A member that is through may have ended with a short batch.
TEST(CombinedLoader, ResumesInTheMiddleOfASequenceOnOtherBatches) {
  const auto make = [](int64_t batch_size) {
    return combine({{"a", numbers(10, {.batch_size = batch_size})}, {"b", numbers(8, {.batch_size = batch_size})}},
                   {.mode = "sequential"});
  };
  const auto first = make(4);
  pass(first, 4);  // 3 of a, 1 of b
  for (const int64_t batch_size : {2, 4, 1}) {
    const auto resumed = make(batch_size);
    resumed.load_state_dict(first.state_dict());
    std::vector<int64_t> rest;
    for (const auto& batch : pass(resumed)) {
      EXPECT_TRUE(batch["a"].is_null());
      for (const int64_t x : batch["b"]) rest.push_back(x);
    }
    EXPECT_EQ(rest, (std::vector<int64_t>{4, 5, 6, 7})) << batch_size;
  }
}

TEST(CombinedBatch, IsWalkedAndAsked) {
  const auto loader = combine({{"a", numbers(3)}, {"b", numbers(1)}}, {.mode = "max_size"});
  int64_t seen = 0;
  for (auto& batch : loader) {
    int64_t tensors = 0;
    each_tensor(batch, [&](Tensor& t) {
      t = t + 100;
      ++tensors;
    });
    EXPECT_EQ(tensors, seen == 0 ? 2 : 1);
    EXPECT_EQ(batch["a"]["x"].item<int64_t>(), 100 + seen);
    EXPECT_EQ(batch.contains("b"), seen == 0);
    EXPECT_FALSE(batch.contains("z"));
    EXPECT_EQ(batch.names(), (std::vector<std::string>{"a", "b"}));
    if (++seen < 2) continue;
    const auto& fixed = batch;
    EXPECT_NE(error_of([&] { fixed["b"]; }).find("loader \"b\" has no batch here"), std::string::npos);
    EXPECT_NE(error_of([&] { batch["aa"]; }).find("\"aa\" is not known; did you mean \"a\"?"), std::string::npos);
  }
  EXPECT_EQ(seen, 3);
  static_assert(TensorNest<CombinedBatch<Batch>>);
  static_assert(std::input_iterator<CombinedLoader<Batch>::iterator>);
}

struct Point {
  Tensor where;
};
struct Points {
  int64_t size() const { return 3; }
  Point get(int64_t i) const { return {torch::full({2}, i)}; }
};

TEST(CombinedLoader, TakesBatchesOfTheUsers) {
  const auto loader = combine<Point>({{"a", make_loader(Points())}, {"b", make_loader(Points(), {.batch_size = 2})}});
  double sum = 0;
  for (auto& batch : loader) sum += batch["b"].where.sum().item<double>();
  EXPECT_EQ(sum, 2 + 4 + 2);  // {0, 1}, {2}, {0, 1}: two numbers a point
}

TEST(CombinedLoader, RefusesInOneLine) {
  EXPECT_NE(error_of([] {
              combine({{"a", numbers(2)}}, {.mode = "maxsize"});
            }).find("mode \"maxsize\" is not known; did you mean \"max_size\""),
            std::string::npos);
  EXPECT_NE(error_of([] {
              combine({{"a", numbers(2)}, {"a", numbers(3)}});
            }).find("the name \"a\""),
            std::string::npos);
  EXPECT_NE(error_of([] { combine(CombinedLoader<Batch>::Members{}); }).find("no loader to combine"),
            std::string::npos);
  const auto state = three("min_size").state_dict();
  EXPECT_NE(error_of([&] { three("max_size").load_state_dict(state); }).find("combined by \"min_size\""),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              combine({{"a", numbers(2)}}, {.mode = "min_size"}).load_state_dict(state);
            }).find("loaders a, b, c, these are a"),
            std::string::npos);
}

}  // namespace
}  // namespace levin
