// Compiled steps under ddp on several ranks, without a GPU: a device that notes the operators of a capture and runs
// them again, on the same memory, as a CUDA graph does. Code of the host runs at the capture only. Against eager steps,
// bit by bit.
#include <cstring>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include "levin/core/dispatch.h"
#include "levin/fabric/compiled_step.h"
#include "levin/optim/zero_grad.h"
#include "levin/testing/scoped_variable.h"
#include "tests/strategies/training.h"

namespace levin::testing {
namespace {

struct TapeEntry {
  c10::OperatorHandle op;
  torch::jit::Stack inputs, outputs;
};
using Tape = std::vector<TapeEntry>;
Tape* tape_now = nullptr;

void note_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(levin::detail::kTopKey);
  const auto count = op.schema().arguments().size();
  torch::jit::Stack inputs(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  op.callBoxed(stack);
  if (!tape_now) return;
  const auto made = op.schema().returns().size();
  tape_now->push_back(
      {op, std::move(inputs), torch::jit::Stack(stack->end() - static_cast<std::ptrdiff_t>(made), stack->end())});
}

/// In the process of a rank, which ends with the test: operators stay taken for the life of a process.
void take_all_operators() {
  static const bool taken = [] {
    levin::detail::take_operators(
        levin::detail::kTopKey, [](const auto&) { return true; }, c10::BoxedKernel::makeFromFunction<&note_operator>());
    static torch::Library library(torch::Library::IMPL, "c10d", levin::detail::kTopKey, __FILE__, __LINE__);
    library.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&note_operator>());
    return true;
  }();
  (void)taken;
}

/// What an operator has made goes where its first result is.
void put(const Tensor& from, const Tensor& to) {
  if (!from.defined() || !to.defined() || from.data_ptr() == to.data_ptr()) return;
  to.detach().copy_(from);
}

void put(const c10::IValue& from, const c10::IValue& to) {
  if (from.isTensor()) return put(from.toTensor(), to.toTensor());
  if (from.isTensorList()) {
    const auto a = from.toTensorVector(), b = to.toTensorVector();
    for (size_t i = 0; i < a.size(); ++i) put(a[i], b[i]);
  } else if (from.isCustomClass()) {
    from.toCustomClass<c10d::Work>()->wait();
  }
}

class TapeDevice final : public levin::detail::GraphDevice {
 public:
  explicit TapeDevice(std::vector<Tensor> params) : params_(std::move(params)) {}

  struct Graph final : levin::detail::DeviceGraph {
    void replay() override {
      const at::NoGradGuard no_grad;
      for (auto& [op, inputs, outputs] : tape) {
        auto stack = inputs;
        op.callBoxed(stack);
        for (size_t i = 0; i < stack.size(); ++i) put(stack[i], outputs[i]);
      }
    }
    Tape tape;
  };

  c10::Device device() const override { return at::kCPU; }
  std::shared_ptr<levin::detail::DeviceGraph> capture(const std::function<void()>& body) override {
    std::vector<std::pair<Tensor, Tensor>> before;
    for (const auto& param : params_)
      for (const auto& tensor : {param.detach(), param.grad()})
        if (tensor.defined()) before.emplace_back(tensor, tensor.clone());
    struct Undo {
      const std::vector<std::pair<Tensor, Tensor>>& before;
      ~Undo() {
        tape_now = nullptr;
        // Nothing was executed. Behind autograd's back: versions show what the step does to gradients.
        for (const auto& [tensor, copy] : before)
          std::memcpy(tensor.mutable_data_ptr(), copy.const_data_ptr(), tensor.nbytes());
      }
    } undo{before};
    auto graph = std::make_shared<Graph>();
    tape_now = &graph->tape;
    const c10::impl::IncludeDispatchKeyGuard noted(levin::detail::kTopKey);
    body();
    return graph;
  }
  void upload(const Tensor& to, const void* host, size_t bytes) override {
    std::memcpy(to.mutable_data_ptr(), host, bytes);
  }
  Tensor alias(const Tensor& tensor, std::shared_ptr<levin::detail::DeviceGraph>) override { return tensor.detach(); }
  void empty_cache() override {}
  bool captures(const std::optional<c10::Stream>&) const override { return true; }

 private:
  std::vector<Tensor> params_;
};

/// Operators of which autograd keeps inputs and results only, so that the tape has all that backward reads.
struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    const auto weight = [&](const char* name, at::IntArrayRef sizes) {
      return register_parameter(name, torch::randn(sizes) / 2);
    };
    body = weight("body", {6, 5});
    one = weight("one", {5, 2});
    two = weight("two", {5, 2});
  }
  Tensor forward(const Tensor& x, bool both) const {
    const auto h = torch::tanh(torch::mm(x, body));
    return both ? torch::mm(h, one) + torch::mm(h, two) : torch::mm(h, one);
  }
  Tensor body, one, two;
};
TORCH_MODULE(TwoHeads);

struct Case {
  const char* name;
  DdpOptions options = {};
  int world = 2;
  int accumulate = 1;
  bool declared = false;
  bool zeroes_first = false;
  /// Uses of the second head, by the number of the step.
  std::function<bool(int)> both = [](int) { return true; };
  /// The least number of replays in 18 steps.
  int64_t replays = 14;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

struct Outcome {
  std::vector<Tensor> seen;
  levin::detail::StepCompiler::Counts counts;
};

Outcome train(Collective& group, const Case& c, bool compile) {
  torch::manual_seed(4);
  TwoHeads net;
  std::unique_ptr<Strategy> strategy = make_strategy(c.options, group.size());
  strategy->connect({&group, [](auto*) {}}, at::kCPU);
  strategy->set_captured(compile);
  const std::shared_ptr<ModuleSync> sync = strategy->setup_module(*net);
  const auto parameters = net->parameters();
  const levin::detail::StepSurroundings around{
      .modules = {net.ptr()},
      .optimizers = {},
      .syncs = {sync},
      .exchange = [&](int64_t number) { return group.exchange("compile", number); },
      .share = [&](const std::string& text, int rank) { return broadcast_string(group, text, rank); }};
  std::shared_ptr<levin::detail::StepCompiler> compiler;
  if (compile)
    compiler = std::make_shared<levin::detail::StepCompiler>(
        std::make_shared<TapeDevice>(parameters), [&] { return around; }, 8);
  CompiledStep step(
      [&](const Tensor& x, bool both, bool last) {
        if (c.zeroes_first) optim::zero_grad(parameters, true);
        sync->set_sync(last);
        sync->before_forward();
        auto output = net(x, both);
        sync->leave_forward();
        sync->after_forward({&output, 1});
        const auto loss = output.pow(2).mean();
        const auto syncs = std::vector<ModuleSync*>{sync.get()};
        run_backward(syncs, loss, [&] { loss.backward(); });
        if (!last) return loss;
        const at::NoGradGuard no_grad;
        for (auto& parameter : parameters)
          if (parameter.grad().defined()) parameter.mul_(0.99).sub_(parameter.grad() * 0.1);
        if (!c.zeroes_first) optim::zero_grad(parameters, true);
        return loss;
      },
      compiler, {.accumulates_gradients = c.declared});
  Outcome outcome;
  for (int i = 0; i < 18 * c.accumulate; ++i) {
    const int number = i / c.accumulate;
    // A batch of another size, at the end, and on one rank in between.
    const int64_t rows = number == 17 || (number == 11 && group.rank() == 1) ? 3 : 4;
    const auto [x, y] = boring_data(rows, 6, static_cast<uint64_t>(100 * i + group.rank()));
    outcome.seen.push_back(step(x, c.both(number), (i + 1) % c.accumulate == 0).detach());
    if (c.zeroes_first)
      for (const auto& parameter : parameters)
        outcome.seen.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::zeros({}));
  }
  for (const auto& parameter : parameters) outcome.seen.push_back(parameter.detach().clone());
  if (compile) outcome.counts = compiler->counts();
  return outcome;
}

class CompileDdp : public ::testing::TestWithParam<Case> {
 protected:
  const ScopedVariable with_itself_{"LEVIN_TEST_GROUP_OF_ONE", "1"};
};

TEST_P(CompileDdp, EqualsEager) {
  const auto& c = GetParam();
  run_ranks(c.world, [&](Collective& group) {
    take_all_operators();
    const auto eager = train(group, c, false), compiled = train(group, c, true);
    ASSERT_EQ(eager.seen.size(), compiled.seen.size());
    size_t first = eager.seen.size();
    for (size_t i = eager.seen.size(); i-- > 0;)
      if (!at::equal(eager.seen[i], compiled.seen[i])) first = i;
    EXPECT_EQ(first, eager.seen.size()) << "the first that differs";
    EXPECT_GE(compiled.counts.replayed, c.replays);
  });
}

bool in_turns(int step) {
  return step % 3 != 1;
}
bool never(int) {
  return false;
}

INSTANTIATE_TEST_SUITE_P(
    Ddp, CompileDdp,
    ::testing::Values(
        Case{.name = "plain"}, Case{.name = "three_ranks", .world = 3},
        Case{.name = "small_buckets", .options = {.bucket_cap_mb = 0.00001}},
        Case{.name = "no_views", .options = {.gradient_as_bucket_view = false}},
        Case{.name = "static_graph", .options = {.static_graph = true}, .replays = 13},
        Case{.name = "static_graph_unused", .options = {.static_graph = true}, .both = never, .replays = 13},
        Case{.name = "accumulation", .accumulate = 3, .declared = true, .replays = 38},
        Case{.name = "accumulation_is_found_out", .accumulate = 2, .replays = 20},
        Case{.name = "accumulation_is_found_out_no_views",
             .options = {.gradient_as_bucket_view = false},
             .accumulate = 3,
             .replays = 30},
        Case{.name = "gradients_can_be_read", .zeroes_first = true},
        Case{.name = "used_in_turns",
             .options = {.find_unused_parameters = true},
             .world = 1,
             .both = in_turns,
             .replays = 10},
        // What one step uses and the next does not is exchanged by the host.
        Case{.name = "used_in_turns_on_two_ranks",
             .options = {.find_unused_parameters = true},
             .both = in_turns,
             .replays = 6}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace levin::testing
