#include "levin/nn/weight_stream.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/nn/unit.h"
#include "levin/testing/error_of.h"

namespace levin::weight_stream_tests {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(double value) {
    weight = register_parameter("weight", at::full({300}, value));
    codes = register_buffer("codes", at::full({5}, static_cast<int64_t>(value), at::kByte));
  }
  Tensor forward(const Tensor& x) {
    if (during) during();
    return x * weight + codes.sum();
  }

  Tensor weight, codes;
  std::function<void()> during;
};
LEVIN_MODULE(Scale);

/// Units 1, 2, 3, ... with sources that count what is read.
struct Streamed {
  explicit Streamed(int count) : reads(static_cast<size_t>(count)) {
    for (int i = 0; i < count; ++i) {
      units.emplace_back(static_cast<double>(i + 1));
      const FlatTensors flat({units.back().ptr().get()});
      const auto kept = at::empty({flat.bytes}, at::kByte);
      flat.copy_to(kept);
      stream->add("u" + std::to_string(i), {units.back().ptr().get()}, flat,
                  {.read = [this, i, kept](const Tensor& into) {
                    ++reads[static_cast<size_t>(i)];
                    into.copy_(kept);
                  }});
    }
  }
  double run(const std::vector<size_t>& order) {
    const at::NoGradGuard no_grad;
    auto x = at::ones({300});
    for (const auto i : order) x = units[i](x);
    return x[299].item<double>();
  }

  std::vector<std::atomic<int>> reads;
  std::vector<Scale> units;
  std::shared_ptr<WeightStream> stream = std::make_shared<WeightStream>(c10::kCPU);
};

TEST(FlatTensors, BeginWhereMemoryWouldBegin) {
  Scale unit(3), other(4);
  other->weight = unit->weight;
  const FlatTensors flat({unit.ptr().get()});
  EXPECT_EQ(flat.offsets, (std::vector<int64_t>{0, 1280}));  // 1200 bytes of float
  EXPECT_EQ(flat.bytes, 1280 + 256);
  const auto memory = at::zeros({flat.bytes}, at::kByte);
  flat.copy_to(memory);
  EXPECT_TRUE(at::equal(flat.views(memory)[0], unit->weight));
  EXPECT_TRUE(at::equal(flat.views(memory)[1], unit->codes));
}

TEST(WeightStream, GivesUnitsTheirWeightsForTheirCalls) {
  Streamed model(4);
  const auto expected = [](std::vector<size_t> order) {
    double x = 1;
    for (const auto i : order) x = x * static_cast<double>(i + 1) + 5 * static_cast<double>(i + 1);
    return x;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(model.run({0, 1, 2, 3}), expected({0, 1, 2, 3}));
  EXPECT_EQ(model.stream->misses(), 1);  // the first of all
  EXPECT_EQ(model.run({2, 0, 0, 3, 1}), expected({2, 0, 0, 3, 1}));
  const auto before = model.stream->misses();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(model.run({3, 2, 1, 0}), expected({3, 2, 1, 0}));
  EXPECT_LE(model.stream->misses(), before + 4);  // another order is learned in one pass
  EXPECT_FALSE(model.units[0]->weight.storage().data());
}

TEST(WeightStream, TheNextUnitIsReadWhileOneComputes) {
  Streamed model(3);
  model.run({0, 1, 2});
  for (size_t i = 0; i < 3; ++i)
    model.units[i]->during = [&model, i] {
      const auto next = (i + 1) % 3;
      const auto begin = std::chrono::steady_clock::now();
      while (model.reads[next] < model.reads[i] && std::chrono::steady_clock::now() - begin < std::chrono::seconds(10))
        std::this_thread::yield();
      EXPECT_GE(model.reads[next].load(), model.reads[i].load()) << i;
    };
  model.run({0, 1, 2});
  EXPECT_EQ(model.stream->misses(), 1);
}

TEST(WeightStream, TwoUnitsStayWhereTheyAre) {
  Streamed model(2);
  for (int i = 0; i < 4; ++i) model.run({0, 1});
  EXPECT_EQ(model.reads[0], 1);
  EXPECT_EQ(model.reads[1], 1);
  EXPECT_EQ(model.stream->streamed_bytes(), model.stream->buffer_bytes());
}

TEST(WeightStream, AReadThatFailsIsAnErrorOfTheCallAndNotOfTheNext) {
  Scale unit(2);
  const FlatTensors flat({unit.ptr().get()});
  const auto kept = at::empty({flat.bytes}, at::kByte);
  flat.copy_to(kept);
  bool fails = true;
  const auto stream = std::make_shared<WeightStream>(c10::kCPU);
  stream->add("unit", {unit.ptr().get()}, flat, {.read = [&](const Tensor& into) {
                if (fails) throw Error("[test] the disk is gone");
                into.copy_(kept);
              }});
  const at::NoGradGuard no_grad;
  EXPECT_THAT(error_of([&] { unit(at::ones({300})); }), HasSubstr("the disk is gone"));
  fails = false;
  EXPECT_EQ(unit(at::ones({300}))[0].item<double>(), 12);
}

TEST(WeightStream, RefusesWhatItCannotDo) {
  Scale unit(2);
  const FlatTensors flat({unit.ptr().get()});
  const auto stream = std::make_shared<WeightStream>(c10::kCPU);
  EXPECT_THAT(error_of([&] { stream->add("u", {unit.ptr().get()}, flat, {}); }), HasSubstr("needs one source"));
  EXPECT_THAT(error_of([&] { stream->add("u", {unit.ptr().get()}, flat, {.host = at::empty({3}, at::kByte)}); }),
              HasSubstr("its source 3"));
  EXPECT_EQ(unit->weight[0].item<double>(), 2);
}

}  // namespace
}  // namespace levin::weight_stream_tests
