// A load that is refused by anything that is bound leaves everything as it was, on one rank and on all.
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/devices/memory_counter.h"
#include "levin/io/weights/safetensors.h"
#include "levin/optim/optim.h"
#include "levin/testing/error_of.h"
#include "levin/testing/ranks.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

/// Refuses after it has changed, as careless ones do.
struct Careless {
  StateDict state_dict() const { return {{"n", n}}; }
  void load_state_dict(const StateDict& state) {
    n = state.at("n").to_int();
    if (refuses) throw Error("[careless] refused");
  }
  int64_t n = 0;
  bool refuses = false;
};

struct Training {
  explicit Training(float fill) : first(net->parameters(), {.lr = 0.1}), second(net->parameters(), {.lr = 0.2}) {
    const at::NoGradGuard no_grad;
    net->weight.fill_(fill);
  }
  void step() {
    net(at::ones({1, 3})).sum().backward();
    first.step();
    second.step();
    net->zero_grad();
  }
  State state() {
    return {{"model", net}, {"first", first}, {"second", second}, {"epoch", epoch}, {"tensor", tensor}, {"more", more}};
  }
  std::string text() const {
    std::string out;
    const auto add = [&](const Tensor& t) {
      const auto flat = t.detach().to(at::kDouble).flatten();
      for (int64_t i = 0; i < flat.numel(); ++i) out += std::to_string(flat[i].item<double>()) + " ";
    };
    add(net->weight);
    for (const auto* optimizer : {static_cast<const Optimizer*>(&first), static_cast<const Optimizer*>(&second)}) {
      out += std::to_string(optimizer->lr()) + " ";
      const auto state = optimizer->state_dict();
      for (const auto& [name, values] : state.at("state").to_dict())
        for (const auto& [slot, value] : values.to_dict())
          if (value.is_tensor()) add(value.to_tensor());
    }
    add(tensor);
    return out + std::to_string(epoch) + " " + std::to_string(more.n);
  }

  torch::nn::Linear net{3, 2};
  optim::Adam first, second;
  int64_t epoch = 0;
  Tensor tensor = at::zeros({2});
  Careless more;
};

fs::path saved(const TemporaryFolder& folder) {
  Training from(1);
  from.step();
  from.epoch = 4;
  from.tensor = at::ones({2});
  from.more.n = 9;
  save_checkpoint(folder / "good", from.state());
  return folder / "good";
}

TEST(RefusedLoad, ByTheLastOfManyChangesNothing) {
  const TemporaryFolder folder;
  const auto path = saved(folder);
  for (const bool stepped : {false, true}) {
    Training to(2);
    if (stepped) to.step();
    const auto before = to.text();
    to.more.refuses = true;
    EXPECT_THAT(error_of([&] { load_checkpoint(path, to.state()); }), HasSubstr("[careless] refused"));
    to.more.refuses = false;
    EXPECT_EQ(to.text(), before) << stepped;
    load_checkpoint(path, to.state());
    EXPECT_EQ(to.epoch, 4);
    EXPECT_EQ(to.more.n, 9);
    EXPECT_NE(to.text(), before);
  }
}

TEST(RefusedLoad, ByAnOptimizerChangesNothing) {
  const TemporaryFolder folder;
  const auto path = saved(folder);
  Training to(2);
  to.step();
  const auto before = to.text();
  optim::SGD sgd(to.net->parameters(), {.lr = 0.3, .momentum = 0.9});
  const State state{{"model", to.net}, {"epoch", to.epoch}, {"first", to.first}, {"second", sgd}};
  EXPECT_THAT(error_of([&] { load_checkpoint(path, state); }), HasSubstr("\"second\""));
  EXPECT_EQ(to.text(), before);
}

TEST(RefusedLoad, ByAVariableOfAnotherKindChangesNothing) {
  const TemporaryFolder folder;
  const auto path = saved(folder);
  Training to(2);
  const auto before = to.text();
  std::string epoch = "none";
  const State state{{"model", to.net}, {"first", to.first}, {"tensor", to.tensor}, {"epoch", epoch}};
  EXPECT_NE(error_of([&] { load_checkpoint(path, state); }), "no error");
  EXPECT_EQ(to.text(), before);
  EXPECT_EQ(epoch, "none");
}

TEST(RefusedLoad, TheUsersExceptionKeepsItsType) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  struct Throws {
    StateDict state_dict() const { return {{"n", 1}}; }
    void load_state_dict(const StateDict&) { throw Mine("mine"); }
  };
  const TemporaryFolder folder;
  const auto path = saved(folder);
  Training to(2);
  const auto before = to.text();
  Throws more;
  const State state{{"model", to.net}, {"first", to.first}, {"more", more}};
  EXPECT_THROW(load_checkpoint(path, state), Mine);
  EXPECT_EQ(to.text(), before);
}

TEST(RefusedLoad, OnOneRankChangesNothingOnAny) {
  const TemporaryFolder folder;
  const auto path = saved(folder);
  const auto results = testing::run_ranks(2, [&](Collective& group) {
    Training to(2);
    const auto before = to.text();
    to.more.refuses = group.rank() == 1;
    const auto line = error_of([&] { load_checkpoint(path, to.state(), {.group = &group}); });
    EXPECT_THAT(line, HasSubstr("[careless] refused (rank 1)"));
    EXPECT_EQ(to.text(), before);
  });
}

/// Of its first parameter.
Tensor slot_of(const Optimizer& optimizer, const char* slot) {
  return optimizer.state_dict().at("state").to_dict().at("0").to_dict().at(slot).to_tensor();
}

void expect_same_state(const Optimizer& a, const Optimizer& b) {
  for (const auto* slot : {"step", "exp_avg", "exp_avg_sq"}) EXPECT_TRUE(at::equal(slot_of(a, slot), slot_of(b, slot)));
}

/// A linear layer whose Adam has made a step.
struct Stepped {
  explicit Stepped(bool steps = true) {
    if (!steps) return;
    net(at::ones({1, 512})).sum().backward();
    optimizer.step();
  }
  torch::nn::Linear net{512, 512};
  optim::Adam optimizer{net->parameters()};
  static constexpr int64_t kBytes = 2 * (512 * 512 + 512) * 4;
};

TEST(RefusedLoad, OptimizersThatFitAreReadIntoPlace) {
  const TemporaryFolder folder;
  Stepped saved;
  save_checkpoint(folder / "good", State{{"optimizer", saved.optimizer}});
  {
    const auto moments = slot_of(saved.optimizer, "exp_avg");
    const auto values = moments.clone();
    moments.zero_();
    MemoryCounter counter;
    load_checkpoint(folder / "good", State{{"optimizer", saved.optimizer}});
    EXPECT_LT(counter.peak(), Stepped::kBytes / 8) << "the memory that is there is written to";
    EXPECT_TRUE(at::equal(moments, values));
  }
  Stepped fresh(/*steps=*/false);
  MemoryCounter counter;
  load_checkpoint(folder / "good", State{{"optimizer", fresh.optimizer}});
  EXPECT_GE(counter.peak(), Stepped::kBytes);
  EXPECT_LT(counter.peak(), Stepped::kBytes + Stepped::kBytes / 8) << "its state, and nothing else";
  expect_same_state(fresh.optimizer, saved.optimizer);
}

TEST(RefusedLoad, StateOfAnotherDtypeOrOrderIsConverted) {
  const TemporaryFolder folder;
  const auto make = [](c10::ScalarType dtype, at::MemoryFormat format) {
    auto param = at::arange(2 * 3 * 4 * 5, at::kFloat).view({2, 3, 4, 5}).to(dtype).contiguous(format);
    return param.set_requires_grad(true);
  };
  const auto plain = make(at::kDouble, at::MemoryFormat::Contiguous);
  optim::Adam from({plain});
  plain.mutable_grad() = plain.detach() * 0.5;
  from.step();
  save_checkpoint(folder / "double", State{{"optimizer", from}});
  const auto last = make(at::kFloat, at::MemoryFormat::ChannelsLast);
  optim::Adam to({last});
  load_checkpoint(folder / "double", State{{"optimizer", to}});
  for (const auto* slot : {"exp_avg", "exp_avg_sq"}) {
    EXPECT_EQ(slot_of(to, slot).scalar_type(), at::kFloat);
    EXPECT_EQ(slot_of(to, slot).strides(), last.strides());
    EXPECT_TRUE(at::allclose(slot_of(to, slot).to(at::kDouble), slot_of(from, slot)));
  }
  EXPECT_EQ(slot_of(to, "step").item<float>(), 1);
}

// state_dict() numbers parameters in the order of their groups; a file need not.
TEST(RefusedLoad, StateNumberedInAnotherOrderGoesToItsParameters) {
  const TemporaryFolder folder;
  const auto make = [] { return at::ones({40, 40}).set_requires_grad(true); };
  const auto a = make(), b = make();
  optim::Adam from({a, b});
  a.mutable_grad() = at::full_like(a, 2);
  b.mutable_grad() = at::full_like(b, 3);
  from.step();
  auto state = from.state_dict();
  auto& states = state["state"].to_dict();
  std::swap(states["0"], states["1"]);
  auto group = state.at("param_groups").to_list().at(0).to_dict();
  group["params"] = StateList{1, 0};
  state["param_groups"] = StateList{group};
  save_checkpoint(folder / "swapped", State{{"optimizer", state}});
  optim::Adam to({make(), make()});
  load_checkpoint(folder / "swapped", State{{"optimizer", to}});
  const auto expected = from.state_dict(), found = to.state_dict();
  for (const auto* index : {"0", "1"})
    for (const auto* slot : {"exp_avg", "exp_avg_sq"}) {
      const auto of = [&](const StateDict& dict) {
        return dict.at("state").to_dict().at(index).to_dict().at(slot).to_tensor();
      };
      EXPECT_TRUE(at::equal(of(found), of(expected))) << slot << " of parameter " << index;
    }
}

TEST(RefusedLoad, StateOnDiskStaysThere) {
  const TemporaryFolder folder;
  Stepped saved, fresh(/*steps=*/false);
  save_checkpoint(folder / "good", State{{"optimizer", saved.optimizer}});
  int64_t placed = 0;
  ASSERT_TRUE(fresh.optimizer.impl()->set_slot_memory([&](const Tensor& like) {
    placed += static_cast<int64_t>(like.nbytes());
    return at::empty_like(like);
  }));
  load_checkpoint(folder / "good", State{{"optimizer", fresh.optimizer}});
  EXPECT_EQ(placed, Stepped::kBytes);
  expect_same_state(fresh.optimizer, saved.optimizer);
}

TEST(RefusedLoad, NamesTheFirstOfManyDamagedTensors) {
  const TemporaryFolder folder;
  StateDict state;
  for (int i = 0; i < 64; ++i) state[fmt::format("t{:02}", i)] = at::full({1000}, i, at::kFloat);
  save_checkpoint(folder / "many", State{{"all", state}});
  const auto path = folder / "many/all.safetensors";
  auto bytes = read_file(path);
  for (const int from_end : {2000, 100'000, 50'000}) bytes[bytes.size() - static_cast<size_t>(from_end)] ^= 1;
  std::ofstream(path, std::ios::binary) << bytes;
  const auto first = SafetensorsFile(path).entries()[(64 * 4000 - 100'000) / 4000].name;
  for (int i = 0; i < 20; ++i)
    EXPECT_THAT(error_of([&] { verify_checkpoint(folder / "many"); }), HasSubstr("tensor \"all." + first + "\""));
}

TEST(RefusedLoad, OfOneThingToo) {
  const TemporaryFolder folder;
  const auto path = saved(folder);
  Training to(2);
  to.step();
  const auto before = to.text();
  optim::SGD sgd(to.net->parameters(), {.lr = 0.3, .momentum = 0.9});
  EXPECT_NE(error_of([&] { load_raw(path, sgd, {.key = "first"}); }), "no error");
  EXPECT_EQ(sgd.lr(), 0.3);
  to.more.refuses = true;
  EXPECT_NE(error_of([&] { load_raw(path, to.more, {.key = "more"}); }), "no error");
  EXPECT_EQ(to.text(), before);
}

}  // namespace
}  // namespace levin
