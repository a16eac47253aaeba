// Files of LibTorch's torch::save as checkpoints: optimizers of every kind, and archives that a program filled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/save_raw.h"
#include "levin/optim/optim.h"
#include "levin/optim/torch/adapter.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin::libtorch_tests {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using torch::serialize::OutputArchive;
using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

torch::nn::Sequential make_net() {
  torch::manual_seed(2);
  return torch::nn::Sequential(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 2));
}

/// Steps `first` to `last`, each with its own data.
void train(torch::nn::Sequential& net, torch::optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    torch::manual_seed(100 + static_cast<uint64_t>(step));
    const auto x = torch::randn({6, 4}), y = torch::randn({6, 2});
    optimizer.step([&] {
      optimizer.zero_grad();
      auto loss = torch::mse_loss(net->forward(x), y);
      loss.backward();
      return loss;
    });
  }
}

struct TorchKind {
  std::string name;
  std::function<std::shared_ptr<torch::optim::Optimizer>(const ParamGroups&)> make;
  size_t groups = 2;
};

template <class O, class Options>
TorchKind kind(std::string name, Options options, size_t groups = 2) {
  return {std::move(name), [options](const ParamGroups& all) { return std::make_shared<O>(all, options); }, groups};
}

std::vector<TorchKind> kinds() {
  namespace to = torch::optim;
  return {kind<to::Adam>("Adam", to::AdamOptions(0.01)),
          kind<to::Adam>("Adam amsgrad", to::AdamOptions(0.01).amsgrad(true).weight_decay(0.1)),
          kind<to::AdamW>("AdamW", to::AdamWOptions(0.01).betas({0.8, 0.99})),
          kind<to::SGD>("SGD", to::SGDOptions(0.1)),
          kind<to::SGD>("SGD momentum", to::SGDOptions(0.1).momentum(0.9).nesterov(true)),
          kind<to::RMSprop>("RMSprop", to::RMSpropOptions(0.01).centered(true).momentum(0.5)),
          kind<to::Adagrad>("Adagrad", to::AdagradOptions(0.1).lr_decay(0.1).initial_accumulator_value(0.1)),
          kind<to::LBFGS>("LBFGS", to::LBFGSOptions(0.5).history_size(3).max_iter(3), 1)};
}

ParamGroups groups_of(torch::nn::Sequential& net, size_t groups) {
  ParamGroups all;
  if (groups == 1) {
    all.emplace_back(net->parameters());
  } else {
    all.emplace_back(net[0]->parameters());
    all.emplace_back(net[2]->parameters());
  }
  return all;
}

class LibtorchTest : public testing::FolderTest {
 protected:
  std::string path(const char* name) const { return (folder_ / name).string(); }
};

void expect_same(const torch::nn::Sequential& a, const torch::nn::Sequential& b) {
  const auto left = a->parameters(), right = b->parameters();
  for (size_t i = 0; i < left.size(); ++i) EXPECT_TRUE(left[i].equal(right[i])) << i;
}

TEST_F(LibtorchTest, OptimizersOfEveryKindContinue) {
  for (const auto& each : kinds()) {
    SCOPED_TRACE(each.name);
    auto plain = make_net();
    auto optimizer = each.make(groups_of(plain, each.groups));
    train(plain, *optimizer, 0, 3);
    torch::save(plain, path("net.pt"));
    torch::save(*optimizer, path("optimizer.pt"));
    train(plain, *optimizer, 3, 6);

    auto again = make_net();
    auto fresh = each.make(groups_of(again, each.groups));
    train(again, *fresh, 7, 8);  // what is loaded replaces it
    auto adapted = optim::adapt(*fresh);
    load_raw(path("net.pt"), again);
    load_raw(path("optimizer.pt"), adapted);
    train(again, *fresh, 3, 6);
    expect_same(plain, again);
  }
}

TEST_F(LibtorchTest, TorchLoadOpensOptimizersOfEveryKind) {
  for (const auto& each : kinds()) {
    SCOPED_TRACE(each.name);
    auto plain = make_net();
    auto optimizer = each.make(groups_of(plain, each.groups));
    train(plain, *optimizer, 0, 4);
    torch::save(plain, path("net.pt"));
    save_raw(path("optimizer.pt"), optim::adapt(*optimizer), {.libtorch = true});
    train(plain, *optimizer, 4, 6);

    auto again = make_net();
    auto fresh = each.make(groups_of(again, each.groups));
    torch::load(again, path("net.pt"));
    torch::load(*fresh, path("optimizer.pt"));
    train(again, *fresh, 4, 6);
    expect_same(plain, again);
  }
}

TEST_F(LibtorchTest, LevinsOptimizersTakeTheStateOfTorchs) {
  auto plain = make_net();
  torch::optim::AdamW theirs(plain->parameters(), torch::optim::AdamWOptions(0.01));
  train(plain, theirs, 0, 3);
  torch::save(theirs, path("adamw.pt"));
  optim::AdamW ours(plain->parameters(), {.lr = 0.5});
  load_raw(path("adamw.pt"), ours);
  EXPECT_EQ(ours.lr(), 0.01);
  const auto state = ours.state_dict(), wanted = optim::adapt(theirs).state_dict();
  for (const char* name : {"exp_avg", "exp_avg_sq"})
    EXPECT_TRUE(state.at("state").to_dict().at("2").to_dict().at(name).to_tensor().equal(
        wanted.at("state").to_dict().at("2").to_dict().at(name).to_tensor()));
}

TEST_F(LibtorchTest, LoadsArchivesThatAProgramFilled) {
  auto net = make_net(), critic = make_net();
  critic->parameters()[0].detach().add_(1);
  torch::optim::Adam adam(net->parameters(), 0.01);
  train(net, adam, 0, 2);
  OutputArchive all, of_net, of_critic, of_adam;
  net->save(of_net);
  critic->save(of_critic);
  adam.save(of_adam);
  all.write("model", of_net);
  all.write("critic", of_critic);
  all.write("adam", of_adam);
  all.write("epoch", c10::IValue(7));
  all.write("note", c10::IValue("best"));
  all.save_to(path("all.pt"));

  auto again = make_net(), critic_again = make_net();
  torch::optim::Adam fresh(again->parameters(), 0.5);
  auto optimizer = optim::adapt(fresh);
  int64_t epoch = 0;
  const auto rest = load_checkpoint(path("all.pt"), State{{"model", again}, {"adam", optimizer}, {"epoch", epoch}});
  EXPECT_EQ(epoch, 7);
  EXPECT_EQ(rest.at("note").to_string(), "best");
  EXPECT_TRUE(rest.contains("critic"));
  train(net, adam, 2, 4);
  train(again, fresh, 2, 4);
  expect_same(net, again);
  // Single parts; the optimizer is found.
  load_raw(path("all.pt"), critic_again, {.key = "critic"});
  expect_same(critic, critic_again);
  load_raw(path("all.pt"), optimizer);
  load_raw(path("all.pt"), critic_again);  // the model of the file
  EXPECT_FALSE(critic->parameters()[0].equal(critic_again->parameters()[0]));
}

TEST_F(LibtorchTest, SaysWhatToWrite) {
  auto net = make_net();
  torch::optim::Adam adam(net->parameters(), 0.01);
  auto optimizer = optim::adapt(adam);
  torch::save(net, path("net.pt"));
  torch::save(adam, path("adam.pt"));
  EXPECT_THAT(error_of([&] {
                load_checkpoint(path("net.pt"), State{{"model", net}});
              }),
              HasSubstr("is loaded by load_raw(path, net) or load_raw(path, optimizer)"));
  EXPECT_THAT(error_of([&] { load_raw(path("net.pt"), optimizer); }), HasSubstr("torch::save(optimizer, path)"));
  EXPECT_THAT(error_of([&] { load_raw(path("adam.pt"), net); }), HasSubstr("load_raw"));
  auto smaller = torch::nn::Sequential(torch::nn::Linear(4, 5));
  torch::optim::Adam other(smaller->parameters(), 0.01);
  auto misfit = optim::adapt(other);
  EXPECT_THAT(error_of([&] { load_raw(path("adam.pt"), misfit); }),
              HasSubstr("group 0 has 4 parameters saved and 2 here"));
  OutputArchive damaged, state, groups;
  damaged.write("state", state);
  groups.write("param_groups/size", torch::tensor(int64_t{1} << 40));
  damaged.write("param_groups", groups);
  damaged.save_to(path("damaged.pt"));
  EXPECT_THAT(error_of([&] { load_raw(path("damaged.pt"), optimizer); }),
              HasSubstr("a state of an optimizer that is damaged: \"param_groups/size\" says 1099511627776"));
}

}  // namespace
}  // namespace levin::libtorch_tests
