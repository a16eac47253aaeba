// The compiler of a step: what is recorded, what passes leave of it, and what stops it. docs/compile.md.
#include "levin/compile/program.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/testing/capture.h"

namespace levin::compile {
namespace {

std::vector<std::string> names_of(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& node : graph.nodes) names.push_back(node.name());
  return names;
}

/// The step recorded once.
template <class F>
std::pair<Graph, std::string> recorded(F step, const std::vector<Tensor>& params = {}) {
  Recorder recorder({.params = params});
  auto kept = step();
  recorder.finish();
  return {recorder.graph(), recorder.refusal()};
}

/// The step recorded, proven and ready; `kept` is what it returned, which gets the values of each run.
template <class F>
std::unique_ptr<Program> compiled(F step, std::vector<Tensor>& kept, const FusionOptions& options = {.min_numel = 0}) {
  Graph first;
  std::unique_ptr<Program> program;
  {
    Recorder recorder({});
    kept = step();
    recorder.finish();
    EXPECT_EQ(recorder.refusal(), "");
    first = recorder.graph();
    program = std::make_unique<Program>(recorder, std::vector<Tensor>{}, options);
  }
  kept.clear();
  Prover prover(*program, first);
  kept = step();
  EXPECT_EQ(prover.finish(), "");
  return program;
}

TEST(Recorder, ViewsAreNoNodesAndWritesMakeVersions) {
  auto x = torch::randn({4, 3});
  const auto [graph, refusal] = recorded([&] {
    auto y = x * 2;
    y.t().add_(1);
    return y.view({12}).exp();
  });
  EXPECT_EQ(refusal, "");
  EXPECT_EQ(names_of(graph), (std::vector<std::string>{"aten::mul.Scalar", "aten::add_.Scalar", "aten::exp", "end"}));
  EXPECT_EQ(graph.nodes[1].results[0].version, 1);
  EXPECT_EQ(graph.nodes[2].args[0].values[0].version, 1);
  EXPECT_EQ(graph.nodes[2].args[0].values[0].layout.sizes, (std::vector<int64_t>{12}));
  EXPECT_NE(graph.to_string().find("aten::mul.Scalar(%0.0: Float [4, 3], 2)"), std::string::npos) << graph.to_string();
}

TEST(Recorder, BackwardIsRecorded) {
  auto w = torch::randn({3, 3}, torch::requires_grad());
  const auto [graph, refusal] = recorded(
      [&] {
        auto loss = torch::tanh(torch::ones({2, 3}).mm(w)).sum();
        loss.backward();
        return loss;
      },
      {w});
  EXPECT_EQ(refusal, "");
  const auto names = names_of(graph);
  EXPECT_NE(std::find(names.begin(), names.end(), "aten::tanh_backward"), names.end());
  ASSERT_EQ(graph.nodes.back().gradients.size(), 1u);
  EXPECT_EQ(graph.nodes.back().gradients[0].kind, Gradient::Kind::kValue);
}

TEST(Recorder, SaysWhyAStepCannotBeRepeated) {
  auto x = torch::randn({4});
  const auto reason = [](auto step) { return recorded(step).second; };
  EXPECT_NE(reason([&] { return x * x.sum().item<float>(); }).find("item()"), std::string::npos);
  EXPECT_NE(reason([&] { return x.masked_select(x > 0); }).find("depends on values in its shape"), std::string::npos);
  EXPECT_NE(reason([&] { return x.index({x > 0}); }).find("depends on values in its shape"), std::string::npos);
  EXPECT_NE(reason([&] { return x * torch::tensor({1.0f, 2.0f, 3.0f, 4.0f}); }).find("numbers of the host"), std::string::npos);
  auto state = torch::zeros({4});
  EXPECT_NE(reason([&] {
              state = state + x;
              return Tensor();
            }).find("change it in place"),
            std::string::npos);
  auto w = torch::randn({4}, torch::requires_grad());
  EXPECT_NE(recorded(
                [&] {
                  const torch::NoGradGuard no_grad;
                  w.mul_(0.9);
                  return Tensor();
                },
                {w})
                .second.find("writes a parameter"),
            std::string::npos);
}

TEST(Passes, DeadAndCommonValues) {
  auto x = torch::randn({4});
  auto graph = recorded([&] {
                 auto unused = x.cos().exp();
                 return x.sin() + x.sin();
               }).first;
  share_common_values(graph);
  drop_dead_values(graph);
  EXPECT_EQ(names_of(graph), (std::vector<std::string>{"aten::sin", "aten::add.Tensor", "end"}));
}

TEST(Passes, WhatIsWrittenLaterIsNotShared) {
  auto x = torch::randn({4});
  std::vector<Tensor> kept;
  const auto program = compiled(
      [&] {
        auto a = x.sin(), b = x.sin();
        a.add_(1);
        return std::vector{a + b};
      },
      kept);
  x.copy_(torch::randn({4}));
  program->run();
  EXPECT_TRUE(torch::allclose(kept[0], x.sin() * 2 + 1));
}

TEST(Passes, GroupsGoThroughSoftmaxAndLeaveOutWhatNobodyReads) {
  auto scores = torch::randn({6, 8, 8}), mask = torch::ones({8, 8}).tril() == 0;
  std::vector<Tensor> kept;
  const auto step = [&] {
    auto a = (scores * 0.5).masked_fill(mask, -std::numeric_limits<double>::infinity());
    return std::vector{torch::softmax(a, -1)};
  };
  const auto program = compiled(step, kept);
  ASSERT_EQ(program->schedule().groups.size(), 1u);
  const auto& group = program->schedule().groups[0];
  EXPECT_EQ(group.members.size(), 3u);
  EXPECT_EQ(group.leaves.size(), 1u) << "only the softmax is in memory";
  EXPECT_EQ(program->describe(0), "aten::mul.Scalar, aten::masked_fill.Scalar, aten::_softmax");
  for (int i = 0; i < 3; ++i) {
    scores.copy_(torch::randn({6, 8, 8}));
    program->run();
    EXPECT_TRUE(torch::allclose(kept[0], step()[0]));
  }
}

TEST(Passes, ALargeNormByHandIsOneGroupOfManyBlocks) {
  auto x = torch::randn({300, 700}), w = torch::randn({700});
  std::vector<Tensor> kept;
  const auto step = [&] { return std::vector{x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * w}; };
  const auto program = compiled(step, kept, {});
  EXPECT_EQ(program->counts().groups, 1);
  EXPECT_EQ(program->counts().calls, 1);
  x.copy_(torch::randn({300, 700}));
  program->run();
  EXPECT_TRUE(torch::allclose(kept[0], step()[0], 1e-5, 1e-6));
}

TEST(Passes, ChannelsLastAndBroadcastOverChannels) {
  auto x = torch::randn({2, 16, 33, 35}).contiguous(at::MemoryFormat::ChannelsLast);
  auto scale = torch::randn({1, 16, 1, 1});
  std::vector<Tensor> kept;
  const auto step = [&] { return std::vector{torch::silu(x * scale) + x}; };
  const auto program = compiled(step, kept, {});
  EXPECT_EQ(program->counts().groups, 1);
  x.copy_(torch::randn({2, 16, 33, 35}));
  program->run();
  EXPECT_TRUE(torch::allclose(kept[0], step()[0], 1e-5, 1e-6));
  EXPECT_TRUE(kept[0].is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(Program, RandomNumbersAreThoseOfEager) {
  auto x = torch::randn({64});
  std::vector<Tensor> kept;
  const auto step = [&] { return std::vector{torch::dropout(x.exp(), 0.5, true) * 2}; };
  const auto program = compiled(step, kept);
  torch::manual_seed(7);
  program->run();
  const auto fused = kept[0].clone();
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(fused, step()[0]));
}

TEST(Program, StateIsChangedOnceWhereItIsProven) {
  auto total = torch::zeros({4}), x = torch::ones({4});
  std::vector<Tensor> kept;
  const auto program = compiled(
      [&] {
        total += x;
        return std::vector{total * 2};
      },
      kept);
  EXPECT_EQ(total[0].item<float>(), 2) << "two calls ran";
  program->run();
  EXPECT_EQ(total[0].item<float>(), 3);
  EXPECT_EQ(kept[0][0].item<float>(), 6);
}

TEST(Program, BatchNormsRunningMeansMoveOnceACall) {
  torch::nn::BatchNorm1d norm(3), same(3);
  auto x = torch::randn({8, 3});
  std::vector<Tensor> kept;
  const auto step = [&](torch::nn::BatchNorm1d& of) {
    const torch::NoGradGuard no_grad;
    return std::vector{of(x) * 2};
  };
  const auto program = compiled([&] { return step(norm); }, kept);
  program->run();
  for (int i = 0; i < 3; ++i) step(same);
  EXPECT_TRUE(torch::allclose(norm->running_mean, same->running_mean));
  EXPECT_TRUE(torch::allclose(norm->running_var, same->running_var));
}

TEST(Program, NumbersOfTheHostThatChangeAreFound) {
  auto x = torch::randn({4});
  double factor = 1;
  const auto step = [&] { return x * (factor += 1); };
  Graph first;
  std::unique_ptr<Program> program;
  {
    Recorder recorder({});
    const auto kept = step();
    recorder.finish();
    first = recorder.graph();
    program = std::make_unique<Program>(recorder, std::vector<Tensor>{});
  }
  Prover prover(*program, first);
  const auto kept = step();
  EXPECT_EQ(prover.finish(), "\"other\" of aten::mul.Scalar was 2. and is 3.");
}

/// An operator whose work the dispatcher does not see.
Tensor by_pointer(const Tensor& x) {
  auto y = torch::zeros_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<float>()[i] = 2 * x.const_data_ptr<float>()[i];
  return y;
}

TEST(Program, WorkOutOfSightIsFound) {
  auto x = torch::randn({4});
  Graph first;
  std::unique_ptr<Program> program;
  const auto step = [&] { return by_pointer(x) + 1; };
  {
    Recorder recorder({});
    const auto kept = step();
    recorder.finish();
    first = recorder.graph();
    program = std::make_unique<Program>(recorder, std::vector<Tensor>{});
  }
  Prover prover(*program, first);
  const auto kept = step();
  EXPECT_NE(prover.finish().find("out of the sight of the dispatcher"), std::string::npos);
  EXPECT_TRUE(torch::allclose(kept, 2 * x + 1)) << "the eager call has its numbers";
}

}  // namespace
}  // namespace levin::compile
