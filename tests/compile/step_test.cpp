// Steps that are traced, optimized and run as lists of calls on the CPU, against eager ones. docs/compile.md.
#include <cmath>
#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/compile/device.h"
#include "levin/compile/optimize.h"
#include "levin/compile/run.h"
#include "levin/compile/trace.h"
#include "levin/core/compile/step_watch.h"

namespace levin::compile {
namespace {

/// Attention as in many tutorials.
struct HandAttentionImpl : torch::nn::Module {
  HandAttentionImpl(int64_t width, int64_t heads_, int64_t tokens) : heads(heads_) {
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    mask = register_buffer("mask", torch::tril(torch::ones({tokens, tokens})).view({1, 1, tokens, tokens}));
  }
  Tensor forward(const Tensor& x, const Tensor& seen) {
    const auto B = x.size(0), T = x.size(1), C = x.size(2);
    const auto parts = qkv(x).split(C, 2);
    const auto split = [&](const Tensor& t) { return t.view({B, T, heads, C / heads}).transpose(1, 2); };
    auto scores = torch::matmul(split(parts[0]), split(parts[1]).transpose(-2, -1));
    scores = scale_by_division ? scores / std::sqrt(static_cast<double>(C / heads))
                               : scores * (1.0 / std::sqrt(static_cast<double>(C / heads)));
    if (seen.defined()) scores = scores.masked_fill(seen == 0, -INFINITY);
    const auto y = torch::matmul(torch::softmax(scores, -1), split(parts[2]));
    return out(y.transpose(1, 2).contiguous().view({B, T, C}));
  }
  int64_t heads;
  bool scale_by_division = false;
  torch::nn::Linear qkv{nullptr}, out{nullptr};
  Tensor mask;
};
TORCH_MODULE(HandAttention);

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

/// Losses of `calls` steps; from the third on they are replays of `device`, where one is given.
template <class Step>
std::vector<double> losses_of(Step& step, int calls, const std::shared_ptr<levin::detail::GraphDevice>& device,
                              std::shared_ptr<levin::detail::DeviceGraph>* graph = nullptr) {
  std::vector<double> losses;
  std::shared_ptr<levin::detail::DeviceGraph> captured;
  for (int i = 0; i < calls; ++i) {
    if (!device || i < 2) {
      step();
    } else {
      if (!captured) captured = device->capture([&] { step(); });
      captured->replay();
      EXPECT_EQ(captured->why_unfit(), "");
    }
    losses.push_back(step.loss.template item<double>());
  }
  if (graph) *graph = captured;
  return losses;
}

/// A small transformer block with its loss and SGD.
struct AttentionStep {
  AttentionStep()
      : x(torch::randn({2, 16, 32})),
        target(torch::randint(0, 32, {32})),
        net(32, 2, 16),
        opt(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)) {}
  void operator()() {
    auto y = net->forward(x, seen.defined() ? seen : net->mask);
    auto made = torch::nn::functional::cross_entropy(y.view({-1, 32}), target);
    made.backward();
    opt.step();
    opt.zero_grad();
    loss = made.detach();
  }
  Tensor x, target, seen, loss;
  HandAttention net;
  torch::optim::SGD opt;
};

TEST(CompiledLists, AttentionByHandBecomesOneOperatorAndFollowsEagerSteps) {
  for (const bool division : {false, true}) {
    torch::manual_seed(0);
    AttentionStep eager;
    eager.net->scale_by_division = division;
    const auto expected = losses_of(eager, 6, nullptr);
    torch::manual_seed(0);
    AttentionStep step;
    step.net->scale_by_division = division;
    std::string lines, text;
    const auto device = fused_graphs_on_cpu([&](Graph& graph) {
      auto all = optimize(graph, {});
      lines = joined_lines(all);
      text = graph.print();
      return all;
    });
    const auto losses = losses_of(step, 6, device);
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-4 * expected[i]) << i;
    EXPECT_NE(lines.find("attention by hand: 1 times"), std::string::npos) << lines;
    EXPECT_NE(lines.find("cross entropy: 1 times"), std::string::npos) << lines;
    EXPECT_NE(text.find("causal_attention_backward"), std::string::npos) << text;
    EXPECT_EQ(text.find("aten::_softmax"), std::string::npos) << text;
  }
}

TEST(CompiledLists, OnlyAMaskThatIsCausalAndStaysIsRecognized) {
  const auto lines_of = [](const std::function<void(AttentionStep&)>& change, bool is_input) {
    torch::manual_seed(0);
    AttentionStep step;
    change(step);
    std::set<StorageId> changing;
    auto traced = trace([&] { step(); });
    EXPECT_EQ(traced.reason, "");
    if (is_input)
      for (size_t s = 0; s < traced.graph.storages.size(); ++s)
        if (traced.graph.storages[s].enters &&
            traced.graph.storages[s].memory.unsafeGetStorageImpl() == step.net->mask.storage().unsafeGetStorageImpl())
          changing.insert(static_cast<StorageId>(s));
    return joined_lines(optimize(traced.graph, changing));
  };
  const std::string matched = "attention by hand";
  EXPECT_NE(lines_of([](AttentionStep&) {}, false).find(matched), std::string::npos);
  EXPECT_EQ(lines_of([](AttentionStep&) {}, true).find(matched), std::string::npos) << "an input changes";
  EXPECT_EQ(lines_of([](AttentionStep& step) { step.net->mask[0][0][0][1] = 1; }, false).find(matched),
            std::string::npos);
  EXPECT_EQ(lines_of(
                [](AttentionStep& step) {
                  step.seen = torch::tril(torch::ones({2, 1, 16, 16}));
                },
                false)
                .find(matched),
            std::string::npos)
      << "one mask for each of the batch";
}

TEST(CompiledLists, AMaskThatIsWrittenLaterOutdatesTheGraph) {
  torch::manual_seed(0);
  AttentionStep step;
  const auto device = fused_graphs_on_cpu();
  step();
  const auto graph = device->capture([&] { step(); });
  graph->replay();
  EXPECT_FALSE(graph->is_outdated());
  step.net->mask.fill_(1);
  EXPECT_TRUE(graph->is_outdated());
}

TEST(CompiledLists, ACaptureExecutesNothing) {
  torch::manual_seed(0);
  AttentionStep step;
  step();
  const auto before = step.net->qkv->weight.detach().clone();
  const auto random = at::globalContext().defaultGenerator(at::kCPU).get_state();
  const auto graph = fused_graphs_on_cpu()->capture([&] { step(); });
  EXPECT_TRUE(at::equal(before, step.net->qkv->weight));
  EXPECT_TRUE(at::equal(random, at::globalContext().defaultGenerator(at::kCPU).get_state()));
  graph->replay();
  EXPECT_FALSE(at::equal(before, step.net->qkv->weight));
}

TEST(CompiledLists, DropoutDrawsTheNumbersOfEagerSteps) {
  const auto run = [](bool compiled) {
    torch::manual_seed(3);
    struct Step {
      void operator()() {
        auto made = (torch::dropout(x * w, 0.5, true) + torch::randn({64})).pow(2).mean();
        made.backward();
        const torch::NoGradGuard no_grad;
        w -= 0.1 * w.grad();
        w.mutable_grad().reset();
        loss = made.detach();
      }
      Tensor x = torch::randn({64}), w = torch::randn({64}).requires_grad_(), loss;
    } step;
    return losses_of(step, 6, compiled ? fused_graphs_on_cpu() : nullptr);
  };
  const auto eager = run(false), compiled = run(true);
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_NEAR(eager[i], compiled[i], 1e-5 * std::abs(eager[i])) << i;
}

TEST(CompiledLists, WhatTheHostReadsOrDoesPastTheDispatcherIsRefused) {
  const auto device = fused_graphs_on_cpu();
  const auto refusal = [&](const std::function<void()>& step) -> std::string {
    try {
      device->capture(step);
    } catch (const levin::detail::CaptureRefused& error) {
      return error.what();
    }
    return "";
  };
  auto x = torch::ones({8});
  EXPECT_EQ(refusal([&] {
              if (x.sum().item<float>() > 0) x.mul_(1);
            }),
            "[compile] the host looks at what aten::_local_scalar_dense gives");
  EXPECT_EQ(refusal([&] { x.masked_select(x > 0); }), "[compile] the host looks at what aten::masked_select gives");
  EXPECT_EQ(refusal([&] {
              x.mul(2).sum();
              x.data_ptr<float>()[0] = 5;
            }),
            "[compile] it writes tensors past the dispatcher");
  EXPECT_TRUE(at::equal(x, torch::ones({8}))) << "it was undone";
}

TEST(CompiledLists, WorkThatIsToldIsPartOfTheStep) {
  auto x = torch::ones({4});
  const auto add_one = [&] {
    levin::detail::tell_work(
        {.name = "add_one", .reads = {x}, .writes = {x}, .work = [](auto, std::span<const Tensor> writes) {
           for (int i = 0; i < 4; ++i) writes[0].data_ptr<float>()[i] += 1;
         }});
    x.mul_(2);
  };
  const auto graph = fused_graphs_on_cpu()->capture(add_one);
  EXPECT_TRUE(at::equal(x, torch::ones({4})));
  graph->replay();
  EXPECT_TRUE(at::equal(x, torch::full({4}, 4.f)));
  graph->replay();
  EXPECT_TRUE(at::equal(x, torch::full({4}, 10.f)));
}

TEST(CompiledLists, AWrongPassIsFoundAndNotUsed) {
  auto x = torch::ones({16});
  const auto graph = fused_graphs_on_cpu([](Graph& g) {
                       for (auto& node : g.nodes)
                         if (node.is("aten::mul_.Scalar")) node.args[1] = c10::IValue(3.0);
                       g.has_other_bits = true;
                       return std::vector<std::string>();
                     })->capture([&] { x.mul_(2); });
  graph->replay();
  EXPECT_TRUE(at::equal(x, torch::full({16}, 2.f)));
  graph->replay();
  EXPECT_TRUE(at::equal(x, torch::full({16}, 4.f)));
}

TEST(Passes, EqualCallsAreMadeOnceAndDeadOnesNever) {
  auto x = torch::rand({8}), out = torch::zeros({8});
  auto traced = trace([&] {
    auto a = x.exp(), b = x.exp();
    auto unused = x.log();
    out.copy_(a + b);
    auto changed = x.exp();
    changed.add_(1);  // a value of its own
    out.add_(changed);
  });
  auto& graph = traced.graph;
  EXPECT_NE(share_equal(graph), "");
  EXPECT_NE(remove_dead(graph), "");
  graph.check();
  int exponentials = 0;
  for (const auto& node : graph.nodes) {
    exponentials += node.is("aten::exp");
    EXPECT_FALSE(node.is("aten::log"));
  }
  EXPECT_EQ(exponentials, 2);
  const auto expected = out.clone();
  out.zero_();
  Program(std::move(graph)).run();
  EXPECT_TRUE(at::equal(out, expected));
}

/// Random programs on a few tensors that stay: views of views, in-place, out=, broadcasts, dtypes, empty tensors.
class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : random_(seed) {
    torch::manual_seed(seed);
    for (int i = 0; i < 4; ++i) kept.push_back(torch::randn({pick(3) ? 6 : 0, 4}, i == 3 ? at::kDouble : at::kFloat));
    for (int i = 0, count = 4 + pick(10); i < count; ++i) plan_.push_back(random_());
  }
  void operator()() const {
    auto pool = kept;
    for (const auto number : plan_) act(pool, number);
    for (auto& tensor : kept) tensor.clamp_(-50, 50);
  }
  std::vector<Tensor> kept;

 private:
  int pick(int most) { return static_cast<int>(random_() % static_cast<unsigned>(most)); }
  static void act(std::vector<Tensor>& pool, unsigned number) {
    const auto next = [&](unsigned most) {
      const auto value = number % most;
      number = number / most * 31 + 17;
      return value;
    };
    auto a = pool[next(static_cast<unsigned>(pool.size()))], b = pool[next(static_cast<unsigned>(pool.size()))];
    const bool fits = a.dim() == 2 && b.dim() == 2 && a.sizes() == b.sizes();
    switch (next(14)) {
      case 0:
        pool.push_back(a.t());
        break;
      case 1:
        if (a.dim() && a.size(0) > 1) pool.push_back(a.slice(0, 1));
        break;
      case 2:
        if (fits) pool.push_back(a + b * 0.5);
        break;
      case 3:
        if (fits && !a.is_same(b)) a.copy_(b);
        break;
      case 4:
        a.mul_(0.5);
        break;
      case 5:
        if (fits) pool.push_back(at::where(a > 0, a, b));
        break;
      case 6:
        pool.push_back(a.to(a.scalar_type() == at::kFloat ? at::kDouble : at::kFloat));
        break;
      case 7:
        if (a.dim() && a.numel()) pool.push_back(a.select(0, 0));
        break;
      case 8:
        if (fits && a.scalar_type() == b.scalar_type()) {
          auto out = at::empty_like(a);
          at::add_out(out, a, b);
          pool.push_back(out);
        }
        break;
      case 9:
        if (a.dim() == 2) pool.push_back(a.sum(1, true));
        break;
      case 10:
        pool.push_back(at::log(a));
        break;
      case 11:
        if (a.dim() == 2 && b.dim() == 2 && b.size(1) == 1 && b.size(0) == a.size(0)) a.add_(b);
        break;
      case 12:
        pool.push_back(a.contiguous().view({-1}));
        break;
      default:
        if (a.dim() == 2) pool.push_back(torch::softmax(a, 1));
        break;
    }
  }
  std::mt19937 random_;
  std::vector<unsigned> plan_;
};

TEST(RandomSteps, ListsGiveTheBitsOfEagerSteps) {
  const auto* asked = std::getenv("LEVIN_RANDOM_PROGRAMS");
  const int count = asked ? std::atoi(asked) : 200;
  for (int seed = 0; seed < count; ++seed) {
    RandomProgram eager(static_cast<unsigned>(seed)), listed(static_cast<unsigned>(seed));
    auto traced = trace([&] { listed(); });
    ASSERT_EQ(traced.reason, "") << "seed " << seed;
    eager();
    share_equal(traced.graph);
    fold_copies(traced.graph);
    remove_dead(traced.graph);
    traced.graph.check();
    Program program(std::move(traced.graph));
    for (int step = 0; step < 2; ++step) {
      eager();
      program.run();
      for (size_t i = 0; i < eager.kept.size(); ++i)
        ASSERT_TRUE(at::allclose(eager.kept[i], listed.kept[i], 0, 0, /*equal_nan=*/true))
            << "seed " << seed << " tensor " << i;
    }
  }
}

}  // namespace
}  // namespace levin::compile
