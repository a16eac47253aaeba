// The state of an optimizer to and from Python (make_optimizer_fixtures.py), tied and sharded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/save_raw.h"
#include "levin/io/weights/safetensors.h"
#include "levin/io/weights/torch_file.h"
#include "levin/optim/optim.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"
#include "levin/testing/ranks.h"
#include "sharded.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 3;

/// The formula of the script.
Tensor filled(at::IntArrayRef shape, int64_t tensor, int64_t time) {
  auto out = at::empty(shape);
  auto flat = out.flatten();
  for (int64_t i = 0; i < flat.numel(); ++i)
    flat[i] = static_cast<double>((i * 7 + tensor * 3 + time * 5) % 11 - 5) / 8;
  return out;
}

/// The embedding is the head, too.
struct Tied : torch::nn::Module {
  Tied() {
    embedding = register_parameter("embedding", filled({6, 4}, 0, 0));
    weight = register_parameter("weight", filled({4, 4}, 1, 0));
    bias = register_parameter("bias", filled({4}, 2, 0));
    register_parameter("head", embedding);
  }
  std::vector<Tensor> own() const { return {embedding, weight, bias}; }
  Tensor embedding, weight, bias;
};

Optimizer optimizer_of(const std::string& name, const Tied& net) {
  const std::vector<Tensor> first{net.embedding, net.weight}, second{net.bias};
  const StateDict other{{"lr", 0.05}, {"weight_decay", 0.0}};
  if (name == "adamw") {
    optim::AdamW adamw(first, {.lr = 0.1, .betas = {0.8, 0.95}});
    adamw.add_param_group(second, other);
    return adamw;
  }
  optim::SGD sgd(first, {.lr = 0.1, .momentum = 0.9});
  sgd.add_param_group(second, other);
  return sgd;
}

void step(const Tied& net, Optimizer& optimizer, int64_t time) {
  int64_t i = 0;
  for (auto& param : net.own()) {
    const_cast<Tensor&>(param).mutable_grad() = filled(param.sizes(), i, time);
    ++i;
  }
  optimizer.step();
}

struct Trained {
  explicit Trained(const std::string& name) : net(std::make_shared<Tied>()), optimizer(optimizer_of(name, *net)) {
    for (int64_t time = 1; time <= kSteps; ++time) step(*net, optimizer, time);
  }
  std::shared_ptr<Tied> net;
  Optimizer optimizer;
};

fs::path fixture(const std::string& name) {
  return fs::path(testing::source_dir()) / "tests/checkpoint/fixtures/optimizer" / name;
}

/// The weights after another step, from torch.
void expect_next(const Tied& net, const std::string& name) {
  const TorchFile next(fixture(name + "_next.pt"));
  for (const auto& item : net.named_parameters())
    if (item.key() != "head")
      EXPECT_TRUE(item.value().allclose(next.read(item.key()), 1e-6, 1e-7)) << name << " " << item.key();
}

class OptimizerState : public testing::FolderTest {};

TEST_F(OptimizerState, OfTorchContinuesHere) {
  for (const std::string name : {"adamw", "sgd"}) {
    Trained trained(name);
    auto fresh = optimizer_of(name, *trained.net);
    load_raw(fixture(name + ".pt"), fresh);
    EXPECT_EQ(fresh.hyper("lr", 1), 0.05);
    step(*trained.net, fresh, kSteps + 1);
    expect_next(*trained.net, name);
  }
}

TEST_F(OptimizerState, IsFoundInCheckpointsOfLightning) {
  Trained trained("adamw");
  auto fresh = optimizer_of("adamw", *trained.net);
  load_raw(fixture("lightning.ckpt"), fresh);
  step(*trained.net, fresh, kSteps + 1);
  expect_next(*trained.net, "adamw");

  Trained again("adamw");
  auto second = optimizer_of("adamw", *again.net);
  EXPECT_THAT(error_of([&] { load_raw(fixture("two.ckpt"), second); }),
              HasSubstr("has the states of 2 optimizers; .key says which: \"optimizer_states.0\" to"));
  load_raw(fixture("two.ckpt"), second, {.key = "optimizer_states.1"});
  step(*again.net, second, kSteps + 1);
  expect_next(*again.net, "adamw");
}

TEST_F(OptimizerState, RefusesWhatIsNone) {
  Trained trained("adamw");
  EXPECT_THAT(error_of([&] { load_raw(fixture("adamw_next.pt"), trained.optimizer); }),
              HasSubstr("has no state of an optimizer: a dict with \"state\" and \"param_groups\""));
  EXPECT_THAT(error_of([&] { load_raw(fixture("two.ckpt"), trained.optimizer, {.key = "optimizer_states.2"}); }),
              HasSubstr("at \"optimizer_states.2\""));
  write_safetensors(folder_ / "w.safetensors", {{"w", at::ones({2})}});
  EXPECT_THAT(error_of([&] { load_raw(folder_ / "w.safetensors", trained.optimizer); }),
              HasSubstr("has no state of an optimizer; it comes from a checkpoint"));
  EXPECT_THAT(error_of([&] { load_raw(fixture("sgd.pt"), trained.optimizer); }), HasSubstr("momentum_buffer"));
}

TEST_F(OptimizerState, GoesToTorchAndBack) {
  Trained trained("adamw");
  save_raw(folder_ / "adamw.pt", trained.optimizer);
  auto fresh = optimizer_of("adamw", *trained.net);
  load_raw(folder_ / "adamw.pt", fresh);
  step(*trained.net, fresh, kSteps + 1);
  expect_next(*trained.net, "adamw");

  std::vector<std::pair<std::string, Tensor>> weights;
  for (const auto& item : trained.net->named_parameters())
    if (item.key() != "head") weights.emplace_back(item.key(), item.value().detach());
  write_torch_file(folder_ / "weights.pt", weights);
  const auto python = testing::python_with("torch");
  if (!python) GTEST_SKIP() << "no Python with torch (LEVIN_PEER_PYTHON names one)";
  const auto script = fs::path(testing::source_dir()) / "tests/checkpoint/make_optimizer_fixtures.py";
  const auto ran = testing::run_program(
      {*python, script.string(), (folder_ / "adamw.pt").string(), (folder_ / "weights.pt").string()});
  EXPECT_EQ(ran.status, 0) << ran.text();
  EXPECT_THAT(ran.text(), HasSubstr("3 parameters: equal"));
}

TEST_F(OptimizerState, IsTakenInShardsAndGathered) {
  ShardedModule whole(nullptr);
  whole.train(1);
  save_raw(folder_ / "whole.pt", whole.opt);
  const auto results = testing::run_ranks(3, [&](Collective& group) -> std::string {
    ShardedModule here(&group);
    load_raw(folder_ / "whole.pt", here.opt, {.shards = here.shards.get()});
    save_raw(folder_ / "again.pt", here.opt, {.shards = here.shards.get()});
    return difference(here.opt.state_dict(), whole.opt.state_dict(), here.shards.get());
  });
  for (const auto& result : results) EXPECT_EQ(result.text, "");
  ShardedModule again(nullptr);
  load_raw(folder_ / "again.pt", again.opt);
  EXPECT_EQ(difference(again.opt.state_dict(), whole.opt.state_dict()), "");
}

}  // namespace
}  // namespace levin
