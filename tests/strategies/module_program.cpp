#include "tests/strategies/module_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include "levin/testing/boring.h"
#include "tests/strategies/random_program.h"

namespace levin::testing {
namespace {

constexpr int64_t kWidth = 6, kRows = 12;
constexpr int kSlots = 5;

struct PartBlockImpl : torch::nn::Module {
  PartBlockImpl() { linear = register_module("linear", nn::Linear(kWidth, kWidth)); }
  Tensor forward(const Tensor& x) { return x + torch::tanh(linear(x)); }
  nn::Linear linear{nullptr};
};
LEVIN_MODULE(PartBlock);

/// Two units and a rest, which is the root's: a layer of torch's, or a unit where a forward resumes after a backward.
struct PartImpl : torch::nn::Module {
  explicit PartImpl(bool resumes = false) {
    if (resumes)
      own_stem = register_module("stem", nn::Linear(kWidth, kWidth));
    else
      stem = register_module("stem", torch::nn::Linear(kWidth, kWidth));
    first = register_module("first", PartBlock());
    second = register_module("second", PartBlock());
  }
  Tensor forward(const Tensor& x) { return second(first(torch::tanh(stem ? stem(x) : own_stem(x)))); }
  torch::nn::Linear stem{nullptr};
  nn::Linear own_stem{nullptr};
  PartBlock first{nullptr}, second{nullptr};
};
TORCH_MODULE(Part);

Tensor own_rows(const Tensor& rows, int rank, int world) {
  return rows.narrow(0, rank * (kRows / world), kRows / world);
}

/// Runs a step of the program. `run` is a module's forward, `backward` takes a loss, `apply` steps an optimizer.
struct StepOfProgram {
  const ModuleProgram& program;
  int rank, world;
  std::vector<Tensor>& slots;
  std::vector<Tensor>& losses;

  template <class Run, class Backward, class Apply>
  void operator()(int step, Run&& run, Backward&& backward, Apply&& apply) {
    for (size_t i = 0; i < program.step.size(); ++i) {
      const auto& op = program.step[i];
      const auto seed = static_cast<uint64_t>(step) * 100 + i;
      if (op.kind == ModuleOp::kStep) {
        apply(op.module);
      } else if (op.kind == ModuleOp::kRun) {
        auto x = op.from < 0 ? own_rows(boring_data(kRows, kWidth, seed).first, rank, world)
                             : slots[static_cast<size_t>(op.from)];
        const at::AutoGradMode mode(!op.no_grad);
        slots[static_cast<size_t>(op.to)] = run(op.module, op.detached ? x.detach() : x);
      } else {
        Tensor loss = at::zeros({});
        for (const int slot : op.slots) loss = loss + (slots[static_cast<size_t>(slot)] - 0.1 * slot).pow(2).mean();
        losses.push_back(loss.detach());
        backward(loss, op.retain_graph);
      }
    }
  }
};

/// What torch allows, followed op by op: a graph is used up by its backward, and void when a module of it was stepped.
class Book {
 public:
  explicit Book(int modules) : slots_(kSlots), reached_(static_cast<size_t>(modules), false) {}

  bool usable(int slot) const {
    const auto& calls = slots_[static_cast<size_t>(slot)];
    return !calls.empty() && std::ranges::all_of(calls, [&](int call) { return alive_[static_cast<size_t>(call)]; });
  }
  bool filled(int slot) const { return !slots_[static_cast<size_t>(slot)].empty() || bare_[static_cast<size_t>(slot)]; }
  bool reached(int module) const { return reached_[static_cast<size_t>(module)]; }

  void run(const ModuleOp& op) {
    std::vector<int> calls;
    if (op.from >= 0 && !op.detached) calls = slots_[static_cast<size_t>(op.from)];
    calls.push_back(static_cast<int>(alive_.size()));
    alive_.push_back(true);
    module_.push_back(op.module);
    if (op.no_grad) calls.clear();
    bare_[static_cast<size_t>(op.to)] = op.no_grad;
    slots_[static_cast<size_t>(op.to)] = std::move(calls);
  }
  void backward(const ModuleOp& op) {
    for (const int slot : op.slots)
      for (const int call : slots_[static_cast<size_t>(slot)]) {
        reached_[static_cast<size_t>(module_[static_cast<size_t>(call)])] = true;
        if (!op.retain_graph) alive_[static_cast<size_t>(call)] = false;
      }
  }
  void step(int module) {
    for (size_t call = 0; call < alive_.size(); ++call)
      if (module_[call] == module) alive_[call] = false;
    reached_[static_cast<size_t>(module)] = false;
  }

 private:
  std::vector<std::vector<int>> slots_;
  std::array<bool, kSlots> bare_{};
  std::vector<bool> alive_;
  std::vector<int> module_;
  std::vector<bool> reached_;
};

ModuleOp run_of(int module, int from, int to, bool detached = false) {
  return {.kind = ModuleOp::kRun, .module = module, .from = from, .detached = detached, .to = to};
}
ModuleOp backward_of(std::vector<int> slots, bool retain_graph = false) {
  return {.kind = ModuleOp::kBackward, .slots = std::move(slots), .retain_graph = retain_graph};
}
ModuleOp step_of(int module) {
  return {.kind = ModuleOp::kStep, .module = module};
}

UnitPolicy blocks() {
  return policy::by_class<PartBlock>();
}

}  // namespace

std::string ModuleProgram::describe() const {
  std::vector<std::string> words;
  for (const auto& op : step) {
    if (op.kind == ModuleOp::kStep) words.push_back(fmt::format("step {}", op.module));
    if (op.kind == ModuleOp::kBackward)
      words.push_back(fmt::format("backward {}{}", fmt::join(op.slots, "+"), op.retain_graph ? " retained" : ""));
    if (op.kind == ModuleOp::kRun)
      words.push_back(fmt::format("{} = m{}({}{}){}", op.to, op.module, op.from < 0 ? "x" : std::to_string(op.from),
                                  op.detached ? " detached" : "", op.no_grad ? " no grad" : ""));
  }
  return fmt::format("{}: {} modules, {} x [{}]", name, modules, steps, fmt::join(words, "; "));
}

std::vector<ModuleProgram> known_module_programs() {
  auto lagging = run_of(1, -1, 0);
  lagging.no_grad = true;
  return {
      {"GAN",
       2,
       {run_of(0, -1, 0), run_of(1, 0, 1, true), backward_of({1}), step_of(1), run_of(1, 0, 2), backward_of({2}),
        step_of(0)}},
      {"actor and critic",
       2,
       {run_of(0, -1, 0), run_of(1, -1, 1), run_of(1, 0, 2), backward_of({2}), step_of(0), backward_of({1}),
        step_of(1)}},
      {"cached encoder",
       3,
       {run_of(0, -1, 0), run_of(1, 0, 1, true), backward_of({1}), step_of(1), run_of(2, 0, 2, true), backward_of({2}),
        step_of(2), run_of(1, 0, 3), backward_of({3}), step_of(0), step_of(1)}},
      {"lagging target",
       2,
       {lagging, run_of(0, 0, 1), run_of(0, -1, 2), backward_of({1}), backward_of({2}), step_of(0), run_of(1, -1, 3),
        backward_of({3}), step_of(1)}},
      {"two losses on one forward",
       3,
       {run_of(0, -1, 0), run_of(1, 0, 1), run_of(2, 0, 2), backward_of({1}, true), backward_of({2}), step_of(0),
        step_of(1), step_of(2)}},
      {"ring",
       3,
       {run_of(0, -1, 0), run_of(1, 0, 1), run_of(2, 1, 2), run_of(0, 2, 3), run_of(1, 3, 4, true), backward_of({4}),
        step_of(1), run_of(2, -1, 4), backward_of({4}), run_of(0, -1, 1), backward_of({1}), step_of(0), step_of(2)}},
      {"never differentiated",
       2,
       {run_of(0, -1, 0), run_of(1, -1, 1), backward_of({1}), step_of(1), run_of(0, -1, 2), backward_of({2}),
        step_of(0)}},
  };
}

ModuleProgram drawn_module_program(uint64_t seed, bool retains) {
  Dice dice(seed);
  ModuleProgram program{.name = fmt::format("seed {}", seed), .modules = static_cast<int>(dice.between(2, 4))};
  Book book(program.modules);
  const auto add = [&](const ModuleOp& op) {
    if (op.kind == ModuleOp::kRun) book.run(op);
    if (op.kind == ModuleOp::kBackward) book.backward(op);
    if (op.kind == ModuleOp::kStep) book.step(op.module);
    program.step.push_back(op);
  };
  const auto module = [&] { return static_cast<int>(dice.below(program.modules)); };
  for (int left = static_cast<int>(dice.between(10, 24)); left > 0; --left) {
    const auto what = dice.below(10);
    if (what < 6) {
      auto op = run_of(module(), static_cast<int>(dice.between(-1, kSlots - 1)), static_cast<int>(dice.below(kSlots)));
      op.no_grad = dice.chance(10);
      if (op.from >= 0 && !book.filled(op.from)) op.from = -1;
      op.detached = op.from >= 0 && (dice.chance(40) || !book.usable(op.from));
      add(op);
    } else if (what < 9) {
      std::vector<int> ready;
      for (int slot = 0; slot < kSlots; ++slot)
        if (book.usable(slot) && dice.chance(50)) ready.push_back(slot);
      if (!ready.empty()) add(backward_of(ready, dice.chance(25) && retains));
    } else if (const int one = module(); book.reached(one)) {
      add(step_of(one));
    }
  }
  for (int one = 0; one < program.modules; ++one) {
    add(run_of(one, -1, 0));
    add(backward_of({0}));
    add(step_of(one));
  }
  return program;
}

std::vector<std::pair<std::string, StrategyChoice>> module_strategies() {
  constexpr auto kTimeout = std::chrono::seconds(60);
  std::vector<std::pair<std::string, StrategyChoice>> all{
      {"ddp", DdpOptions{.timeout = kTimeout}},
      {"ddp_find_unused", DdpOptions{.find_unused_parameters = true, .timeout = kTimeout}},
      {"colossalai", GeminiOptions{.chunk_size = 128, .auto_wrap_policy = blocks(), .timeout = kTimeout}}};
  for (const char* kind : {"full", "grad_op", "none"})
    all.emplace_back(std::string("fsdp ") + kind,
                     FsdpOptions{.auto_wrap_policy = blocks(), .sharding_strategy = kind, .timeout = kTimeout});
  all.emplace_back("fsdp in host memory",
                   FsdpOptions{.auto_wrap_policy = blocks(), .cpu_offload = true, .timeout = kTimeout});
  for (const int stage : {1, 2, 3})
    all.emplace_back(fmt::format("stage {}", stage),
                     ZeroOptions{.stage = stage, .auto_wrap_policy = blocks(), .timeout = kTimeout});
  return all;
}

std::vector<Tensor> train_modules(const ModuleProgram& program, const StrategyChoice& choice,
                                  const std::string& folder) {
  at::set_num_threads(1);
  Fabric fabric({.accelerator = "cpu", .strategy = choice});
  fabric.launch();
  torch::manual_seed(7);
  std::vector<FabricModule<Part>> nets;
  std::vector<levin::Optimizer> optimizers;
  State state;
  for (int i = 0; i < program.modules; ++i) {
    Part part;
    auto [net, optimizer] = fabric.setup(part, optim::SGD(part->parameters(), {.lr = 0.1, .momentum = 0.9}));
    nets.push_back(net);
    optimizers.push_back(optimizer);
    state.add("m" + std::to_string(i), net);
  }
  std::vector<Tensor> losses, slots(kSlots);
  StepOfProgram one{program, fabric.global_rank(), fabric.world_size(), slots, losses};
  for (int step = 0; step < program.steps; ++step)
    one(
        step, [&](int module, const Tensor& x) { return nets[static_cast<size_t>(module)](x); },
        [&](const Tensor& loss, bool retain) { fabric.backward(loss, {.retain_graph = retain}); },
        [&](int module) {
          optimizers[static_cast<size_t>(module)].step();
          optimizers[static_cast<size_t>(module)].zero_grad();
        });
  fabric.save(folder, state, SaveOptions{.full = true});
  return {fabric.all_reduce(at::stack(losses))};
}

namespace {

/// The same program in a training_step.
struct ManualParts : TrainModule {
  explicit ManualParts(const ModuleProgram& p) : program(p), slots(kSlots) {
    automatic_optimization = false;
    torch::manual_seed(7);
    for (int i = 0; i < p.modules; ++i) parts.push_back(register_module("m" + std::to_string(i), Part(true)));
  }
  StepOutput training_step(const Batch&, const StepInfo& at) override {
    StepOfProgram one{program, trainer().fabric().global_rank(), trainer().fabric().world_size(), slots, losses};
    one(
        static_cast<int>(at.batch_idx),
        [&](int module, const Tensor& x) { return parts[static_cast<size_t>(module)](x); },
        [&](const Tensor& loss, bool) { manual_backward(loss); },
        [&](int module) {
          optimizer(static_cast<size_t>(module)).step();
          optimizer(static_cast<size_t>(module)).zero_grad();
        });
    for (auto& slot : slots) slot = Tensor();
    return {};
  }
  Optimizers configure_optimizers() override {
    std::vector<OptimizerConfig> all;
    for (auto& part : parts) all.push_back({.optimizer = optim::SGD(part->parameters(), {.lr = 0.1, .momentum = 0.9})});
    return Optimizers(std::move(all));
  }

  const ModuleProgram& program;
  std::vector<Part> parts;
  std::vector<Tensor> slots, losses;
};

}  // namespace

std::vector<Tensor> train_modules_manually(const ModuleProgram& program, const StrategyChoice& choice, int devices,
                                           const std::string& folder) {
  at::set_num_threads(1);
  ManualParts module(program);
  Trainer trainer({.accelerator = "cpu",
                   .strategy = choice,
                   .devices = devices,
                   .logger = false,
                   .max_epochs = 1,
                   .enable_checkpointing = false,
                   .enable_progress_bar = false,
                   .enable_model_summary = false,
                   .default_root_dir = folder});
  const auto rows = static_cast<int64_t>(program.steps) * devices;
  trainer.fit(module, make_loader(TensorDataset({{"x", at::zeros({rows, 1})}}), {.batch_size = 1}));
  return {trainer.fabric().all_reduce(at::stack(module.losses))};
}

}  // namespace levin::testing
