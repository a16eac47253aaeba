// Batches are put together by the names of fields, in torch's common type; what does not go together is an error that
// names sample and field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/batch.h"
#include "levin/core/error.h"
#include "levin/data/combined.h"
#include "levin/data/loader.h"
#include "levin/data/stages.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

template <class S>
struct Samples {
  std::vector<S> all;
  int64_t size() const { return static_cast<int64_t>(all.size()); }
  S get(int64_t index) const { return all[static_cast<size_t>(index)]; }
};
template <class S>
Samples(std::vector<S>) -> Samples<S>;

template <class S>
std::vector<S> batches_of(std::vector<S> samples, int64_t batch_size, int workers, std::string bad = "stop") {
  std::vector<S> result;
  for (auto& batch : make_loader(Samples<S>{std::move(samples)},
                                 {.batch_size = batch_size, .num_workers = workers, .bad_samples = std::move(bad)}))
    result.push_back(std::move(batch));
  return result;
}

template <class S>
std::string refused(std::vector<S> samples, int workers = 0) {
  const auto count = static_cast<int64_t>(samples.size());
  return error_of([&] { batches_of(std::move(samples), count, workers); });
}

Tensor number(int64_t value) {
  return torch::tensor(value);
}

TEST(BatchAccess, AReadOfAnUnknownNameIsAnErrorAndAddsNothing) {
  Batch batch{{"image", torch::ones({2})}, {"label", torch::ones({2})}};
  const std::string known = "[batch] name \"lable\" is not known; did you mean \"label\"? (known: image, label)";
  EXPECT_EQ(error_of([&] { (void)batch["lable"]; }), known);
  EXPECT_EQ(error_of([&] { (void)std::as_const(batch)["lable"]; }), known);
  EXPECT_EQ(error_of([&] { batch["lable"] = torch::zeros({1}); }), known);
  EXPECT_EQ(batch.size(), 2u);
  EXPECT_EQ(error_of([&] { batch["mixing_weight"] = torch::zeros({1}); }),
            "[batch] name \"mixing_weight\" is not known (known: image, label); batch.set(\"mixing_weight\", tensor) "
            "adds one");
  EXPECT_EQ(batch.size(), 2u);
}

TEST(BatchAccess, AssignsAndAdds) {
  Batch batch{{"image", torch::ones({2})}};
  batch["image"] = torch::zeros({3});
  EXPECT_EQ(batch["image"].size(0), 3);
  batch.set("label", torch::ones({4}));
  batch.set("image", torch::ones({5}));
  EXPECT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch["image"].size(0), 5);
  EXPECT_EQ(batch["label"].size(0), 4);
  EXPECT_THAT(error_of([] { Batch({{"x", Tensor()}, {"x", Tensor()}}); }), HasSubstr("stands twice"));
}

TEST(Stacking, GoesByNameNotByPlace) {
  for (const int workers : {0, 1, 4}) {
    std::vector<Batch> samples;
    for (int64_t i = 0; i < 24; ++i)
      samples.push_back(i % 3 == 1 ? Batch{{"b", number(100 + i)}, {"a", number(i)}}
                                   : Batch{{"a", number(i)}, {"b", number(100 + i)}});
    int64_t next = 0;
    for (auto& batch : batches_of(samples, 6, workers)) {
      // The order of the fields is that of the first sample.
      EXPECT_EQ(batch.begin()->first, "a");
      for (int64_t row = 0; row < 6; ++row, ++next) {
        EXPECT_EQ(batch["a"][row].item<int64_t>(), next);
        EXPECT_EQ(batch["b"][row].item<int64_t>(), 100 + next);
      }
    }
    EXPECT_EQ(next, 24);
  }
}

TEST(Stacking, AlsoWhenFieldsHaveDifferentShapes) {
  const Tensor wide = torch::arange(3), high = torch::arange(4).to(torch::kFloat);
  const auto batch = batches_of<Batch>({{{"w", wide}, {"h", high}}, {{"h", high + 1}, {"w", wide + 1}}}, 2, 0).at(0);
  EXPECT_TRUE(batch["w"].equal(torch::stack({wide, wide + 1})));
  EXPECT_TRUE(batch["h"].equal(torch::stack({high, high + 1})));
}

TEST(Stacking, MissingAndAdditionalFieldsAreErrors) {
  for (const int workers : {0, 3}) {
    const Batch two{{"a", number(1)}, {"b", number(2)}};
    EXPECT_EQ(refused<Batch>({two, two, {{"a", number(1)}, {"bb", number(2)}}}, workers),
              "[data] sample 2 has the fields a, bb, sample 0 of the same batch has a, b (\"b\" is missing, \"bb\" is "
              "additional)");
    EXPECT_THAT(refused<Batch>({two, {{"a", number(1)}}}, workers), HasSubstr("\"b\" is missing"));
    EXPECT_THAT(refused<Batch>({two, {{"a", number(1)}, {"b", number(2)}, {"c", number(3)}}}, workers),
                HasSubstr("sample 1 has the fields a, b, c"));
    EXPECT_THAT(refused<Batch>({two, Batch()}, workers), HasSubstr("\"a\" is missing, \"b\" is missing"));
    EXPECT_THAT(refused<Batch>({Batch(), two}, workers), HasSubstr("\"a\" is additional, \"b\" is additional"));
  }
}

TEST(Stacking, TakesTorchsCommonType) {
  const std::vector<std::vector<Tensor>> cases{
      {number(1), torch::tensor(2.5)},
      {torch::tensor(2.5), number(1)},
      {number(1), torch::tensor(2.5, torch::kDouble)},
      {torch::tensor(1.5, torch::kFloat), torch::tensor(2.5, torch::kDouble), number(3)},
      {torch::tensor(true), number(7)},
      {torch::tensor({1, 2}, torch::kByte), torch::tensor({-1, 2}, torch::kChar)},
      {torch::tensor({1.5}, torch::kHalf), torch::tensor({2.5}, torch::kBFloat16)},
  };
  for (const auto& column : cases)
    for (const int workers : {0, 2}) {
      std::vector<Batch> samples;
      for (const auto& tensor : column) samples.push_back({{"x", tensor}});
      const auto batch = batches_of(samples, static_cast<int64_t>(samples.size()), workers).at(0);
      const auto expected = torch::stack(column);
      EXPECT_EQ(batch["x"].scalar_type(), expected.scalar_type());
      EXPECT_TRUE(batch["x"].equal(expected)) << batch["x"] << expected;
    }
}

TEST(Stacking, TypesOfOneBatchDoNotReachIntoTheNext) {
  const auto batches = batches_of<Batch>(
      {{{"x", number(1)}}, {{"x", torch::tensor(2.5)}}, {{"x", number(3)}}, {{"x", number(4)}}}, 2, 0);
  EXPECT_EQ(batches.at(0)["x"].scalar_type(), torch::kFloat);
  EXPECT_EQ(batches.at(1)["x"].scalar_type(), torch::kLong);
}

TEST(Stacking, TypesWithoutACommonOneAreAnError) {
  const auto line = refused<Batch>({{{"x", number(1)}}, {{"x", torch::ones({}, torch::kUInt64)}}});
  EXPECT_THAT(line, HasSubstr("sample 1: field \"x\""));
  EXPECT_THAT(line, HasSubstr("no common type"));
}

TEST(Stacking, ShapesThatDifferNameSampleAndField) {
  const auto line = refused<Batch>({{{"id", number(0)}, {"x", torch::ones({2, 3})}},
                                    {{"id", number(1)}, {"x", torch::ones({2, 3})}},
                                    {{"x", torch::ones({2, 4})}, {"id", number(2)}}});
  EXPECT_THAT(line, HasSubstr("differ in shape: [2, 3] and [2, 4] (field \"x\" of sample 0 and of sample 2)"));
  EXPECT_THAT(refused<Batch>({{{"x", torch::ones({1})}}, {{"x", Tensor()}}}),
              HasSubstr("sample 1: field \"x\" is an undefined"));
}

TEST(Stacking, SamplesOfOtherTypesHaveNamesToo) {
  using Map = std::map<std::string, Tensor>;
  EXPECT_THAT(refused<Map>({{{"a", number(1)}}, {{"b", number(1)}}}),
              HasSubstr("\"a\" is missing, \"b\" is additional"));
  using List = std::vector<Tensor>;
  EXPECT_THAT(refused<List>({{number(1), number(2)}, {number(1)}}), HasSubstr("\"[1]\" is missing"));
  using Pair = std::pair<Tensor, std::optional<Tensor>>;
  EXPECT_THAT(refused<Pair>({{number(1), number(2)}, {number(1), std::nullopt}}), HasSubstr("\"1\" is missing"));
  // Alternatives with one tensor each are not the same thing.
  struct Text {
    Tensor ids;
  };
  using Either = std::variant<Tensor, Text>;
  EXPECT_THAT(refused<Either>({number(1), Text{number(1)}}), HasSubstr("is missing"));
  struct Inner {
    Batch fields;
    Tensor weight;
  };
  const auto inner = batches_of<Inner>(
      {{{{"a", number(1)}, {"b", number(2)}}, number(3)}, {{{"b", number(5)}, {"a", number(4)}}, number(6)}}, 2, 0);
  EXPECT_TRUE(inner.at(0).fields["a"].equal(torch::tensor({1, 4})));
  EXPECT_TRUE(inner.at(0).fields["b"].equal(torch::tensor({2, 5})));
  EXPECT_TRUE(inner.at(0).weight.equal(torch::tensor({3, 6})));
  EXPECT_THAT(refused<Tensor>({torch::ones({1}), torch::ones({2})}),
              HasSubstr("the tensor of sample 0 and of sample 1"));
}

/// Items of a stream that come in other orders of names.
struct Stream4 {
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<Batch> next() {
    if (at == 4) return {};
    const int64_t i = at++;
    return i % 2 ? Batch{{"b", number(10 + i)}, {"a", number(i)}} : Batch{{"a", number(i)}, {"b", number(10 + i)}};
  }
};

TEST(Stacking, StreamsAndStagesGoByNameToo) {
  for (auto& batch : make_loader(Stream4(), {.batch_size = 4})) {
    EXPECT_TRUE(batch["a"].equal(torch::arange(4)));
    EXPECT_TRUE(batch["b"].equal(torch::arange(10, 14)));
  }
  const Samples<Batch> left{{{{"a", number(0)}, {"b", number(10)}}}}, right{{{{"b", number(11)}, {"a", number(1)}}}};
  for (auto& batch : make_loader(stages::concat(std::vector{left, right}), {.batch_size = 2}))
    EXPECT_TRUE(batch["b"].equal(torch::tensor({10, 11})));
}

TEST(Stacking, ErrorsOfACollateFunctionNameTheSamples) {
  auto loader = make_loader(Samples<Tensor>{{torch::ones({1}), torch::ones({2}), torch::ones({3})}}, {.batch_size = 2},
                            [](std::vector<Tensor> samples) { return torch::stack(samples); });
  const auto line = error_of([&] { loader.begin(); });
  EXPECT_THAT(line, HasSubstr("[data] collate of batch 0 of epoch 0 (samples 0, 1): "));
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

/// Samples 3, 4 and 9 of ten cannot be made.
struct SomeBad {
  int64_t size() const { return 10; }
  Batch get(int64_t i) const {
    LEVIN_CHECK(i != 3 && i != 4 && i != 9, "no ", i);
    return {{"x", torch::tensor(i)}};
  }
};

template <class L>
std::vector<int64_t> values(const L& loader) {
  std::vector<int64_t> seen;
  for (auto& batch : loader)
    for (int64_t i = 0; i < batch["x"].size(0); ++i) seen.push_back(batch["x"][i].template item<int64_t>());
  return seen;
}
const std::vector<int64_t> kGood{0, 1, 2, 5, 6, 7, 8};

TEST(SkippedSamples, ABatchWithoutAGoodOneIsLeftOut) {
  for (const int workers : {0, 1, 4})
    for (const int64_t batch_size : {1, 2, 3}) {
      auto loader = make_loader(SomeBad(), {.batch_size = batch_size, .num_workers = workers, .bad_samples = "skip"});
      EXPECT_EQ(values(loader), kGood);
      EXPECT_EQ(loader.stats().skipped, 3);
      EXPECT_EQ(loader.epoch(), 1);
      EXPECT_EQ(values(loader), kGood) << "the next epoch";
    }
  auto collated = make_loader(SomeBad(), {.batch_size = 1, .bad_samples = "skip"}, [](std::vector<Batch> samples) {
    return Batch{{"x", samples.at(0)["x"].unsqueeze(0)}};
  });
  EXPECT_EQ(values(collated), kGood);
}

TEST(SkippedSamples, AResumedEpochContinuesBehindThem) {
  auto loader = make_loader(SomeBad(), {.batch_size = 1, .bad_samples = "skip"});
  auto it = loader.begin();
  for (int i = 0; i < 3; ++i) ++it;  // gives 5, past 3 and 4
  auto again = make_loader(SomeBad(), {.batch_size = 1, .bad_samples = "skip"});
  again.load_state_dict(loader.state_dict());
  EXPECT_EQ(values(again), (std::vector<int64_t>{6, 7, 8}));
}

TEST(SkippedSamples, AFixedNumberOfBatchesTakesTheNextGoodSample) {
  for (const int workers : {0, 3}) {
    auto loader = make_loader(SomeBad(), {.batch_size = 1, .num_workers = workers, .bad_samples = "skip"}).fixed_size();
    EXPECT_EQ(values(loader), (std::vector<int64_t>{0, 1, 2, 5, 5, 5, 6, 7, 8, 0}));
    auto rank = make_loader(SomeBad(), {.batch_size = 1, .num_workers = workers, .bad_samples = "skip"});
    EXPECT_EQ(values(rank.distributed(1, 2)), (std::vector<int64_t>{1, 5, 5, 7, 1}));
  }
  auto both = combine({{"a", make_loader(SomeBad(), {.batch_size = 1, .bad_samples = "skip"})}});
  int64_t count = 0;
  for (auto& batch : both) count += batch["a"]["x"].size(0);
  EXPECT_EQ(count, 10);
}

struct AllBad {
  int64_t size() const { return 4; }
  Batch get(int64_t i) const { throw Error("no " + std::to_string(i)); }
};

TEST(SkippedSamples, NothingButBadSamples) {
  auto loader = make_loader(AllBad(), {.batch_size = 2, .bad_samples = "skip"});
  EXPECT_EQ(values(loader), std::vector<int64_t>());
  EXPECT_EQ(loader.stats().skipped, 4);
  EXPECT_THAT(error_of([&] { values(loader.fixed_size()); }), HasSubstr("no other sample is good"));
}

struct WholeBad : SomeBad {
  Batch get_batch(std::span<const int64_t> indices) const {
    std::vector<Tensor> all;
    for (const int64_t i : indices) all.push_back(get(i)["x"]);
    return {{"x", torch::stack(all)}};
  }
};

TEST(SkippedSamples, OfDatasetsThatMakeWholeBatches) {
  for (const int64_t batch_size : {1, 4, 10}) {
    auto loader = make_loader(WholeBad(), {.batch_size = batch_size, .bad_samples = "skip"});
    EXPECT_EQ(values(loader), kGood);
    EXPECT_EQ(loader.stats().skipped, 3);
  }
}

struct BadStream {
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<int64_t> next() { return at < 10 ? std::optional(at++) : std::nullopt; }
};

TEST(SkippedSamples, OfStreams) {
  auto loader = make_loader(stages::map(BadStream(), [](int64_t i) { return SomeBad().get(i); }),
                            {.batch_size = 1, .bad_samples = "skip"});
  EXPECT_EQ(values(loader), kGood);
  EXPECT_EQ(loader.epoch(), 1);
}

}  // namespace
}  // namespace levin
