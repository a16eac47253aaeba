#include "tests/strategies/random_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include "levin/testing/boring.h"

namespace levin::testing {
namespace {

/// Which step and failure the modules of this process are to follow; a process trains one program.
struct Situation {
  int64_t step = 0;
  bool throw_forward = false;
  bool throw_backward = false;
};
Situation situation;  // NOLINT: modules of a drawn tree have no other way to learn of the step

/// Passes gradients on, or throws.
struct Fuse : torch::autograd::Function<Fuse> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.view_as(x); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    if (situation.throw_backward) throw DrawnFailure("drawn failure in backward");
    return grads;
  }
};

struct RandomNodeImpl : torch::nn::Module {
  RandomNodeImpl(const NodePlan& p, int64_t width) : plan(p) {
    if (p.kind == "linear") first = register_module("first", nn::Linear(width, width));
    if (p.kind == "mlp") {
      first = register_module("first", nn::Linear(width, p.hidden));
      second = register_module("second", nn::Linear(p.hidden, width));
    }
    if (p.kind == "norm") norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    if (p.kind == "gate") {
      scale = register_parameter("scale", torch::full({}, 0.7));
      shift = register_parameter("shift", 0.1 * torch::randn({width}));
      register_buffer("offset", 0.1 * torch::randn({width}));
    }
    if (p.spare) register_parameter("spare", torch::randn({3, 4}));
    if (p.empty) register_parameter("empty", torch::zeros({0, 5}));
    if (p.frozen)
      for (auto& parameter : parameters()) parameter.requires_grad_(false);
    for (size_t i = 0; i < p.children.size(); ++i) children_.push_back(register_child(i, p.children[i], width));
  }
  Tensor forward(const Tensor& x) {
    if (plan.kind == "linear") return torch::tanh(first(x));
    if (plan.kind == "mlp") return second(torch::gelu(first(x)));
    if (plan.kind == "norm") return norm(x);
    if (plan.kind == "gate") return x * scale + shift + named_buffers()["offset"];
    if (plan.kind == "rare" && situation.step % 2) return x;
    auto h = x;
    for (int times = plan.kind == "twice" ? 2 : 1; times > 0; --times)
      for (auto& child : children_) h = child->forward(h);
    return plan.kind == "residual" || plan.kind == "rare" ? x + h : h;
  }

  NodePlan plan;
  nn::Linear first{nullptr}, second{nullptr};
  nn::LayerNorm norm{nullptr};
  Tensor scale, shift;

 private:
  std::shared_ptr<Hooked<RandomNodeImpl>> register_child(size_t index, const NodePlan& p, int64_t width);
  std::vector<std::shared_ptr<Hooked<RandomNodeImpl>>> children_;
};
LEVIN_MODULE(RandomNode);

std::shared_ptr<Hooked<RandomNodeImpl>> RandomNodeImpl::register_child(size_t index, const NodePlan& p, int64_t width) {
  return register_module("child" + std::to_string(index), RandomNode(p, width));
}

struct RandomModelImpl : torch::nn::Module {
  explicit RandomModelImpl(const RandomProgram& program) {
    const auto width = program.width;
    stem = register_module("stem", nn::Linear(width, width));
    for (size_t i = 0; i < program.nodes.size(); ++i)
      nodes.push_back(register_module("node" + std::to_string(i), RandomNode(program.nodes[i], width)));
    head = register_module("head", nn::Linear(width, width));
    if (program.tied) levin::tie(*this, head->weight, stem->weight);
  }
  Tensor forward(const Tensor& x) {
    auto h = stem(x);
    for (size_t i = 0; i < nodes.size(); ++i) {
      h = nodes[i](h);
      if (i != nodes.size() / 2) continue;
      if (situation.throw_forward) throw DrawnFailure("drawn failure in forward");
      h = Fuse::apply(h);
    }
    return head(h);
  }
  nn::Linear stem{nullptr}, head{nullptr};
  std::vector<RandomNode> nodes;
};
LEVIN_MODULE(RandomModel);

UnitPolicy policy_of(const RandomProgram& program) {
  if (program.policy == "class") return policy::by_class<RandomNode>();
  if (program.policy == "all") return policy::all_units();
  if (program.policy == "size") return policy::by_size(program.policy_size);
  return policy::predicate([salt = program.seed](const std::string& name, const torch::nn::Module& module) {
    uint64_t hash = salt;
    for (const char c : name) hash = hash * 1099511628211u + static_cast<unsigned char>(c);
    return name == "node0" || (hash % 3 == 0 && !module.parameters().empty());
  });
}

Optimizer optimizer_of(const RandomProgram& program, const std::vector<Tensor>& params) {
  // A large eps: near-zero gradients must not become whole steps by their last bits.
  const auto& name = program.optimizer;
  if (name == "sgd") return optim::SGD(params, {.lr = 0.05});
  if (name == "sgd_momentum") return optim::SGD(params, {.lr = 0.02, .momentum = 0.9, .nesterov = true});
  if (name == "adamw") return optim::AdamW(params, {.lr = 1e-2, .eps = 1e-2, .weight_decay = 0});
  if (name == "adam") return optim::Adam(params, {.lr = 1e-2, .eps = 1e-2});
  if (name == "adagrad") return optim::Adagrad(params, {.lr = 1e-2, .eps = 1e-2});
  if (name == "torch_sgd") return optim::adapt(torch::optim::SGD(params, torch::optim::SGDOptions(0.05)));
  if (name == "torch_momentum")
    return optim::adapt(torch::optim::SGD(params, torch::optim::SGDOptions(0.02).momentum(0.9)));
  if (name == "torch_adam") return optim::adapt(torch::optim::Adam(params, torch::optim::AdamOptions(1e-2).eps(1e-2)));
  return optim::adapt(torch::optim::RMSprop(params, torch::optim::RMSpropOptions(1e-2).eps(1e-2)));
}

/// Runs the body; a drawn failure that every rank meets is written down.
template <class F>
bool passes(const RandomProgram& program, TrainedProgram& result, F&& body) {
  try {
    body();
    return true;
  } catch (const std::exception& error) {
    const bool expected = program.failure == "forward" || program.failure == "backward";
    if (!expected || std::string_view(error.what()).find("drawn failure") == std::string_view::npos) throw;
    result.caught.push_back(error.what());
    return false;
  }
}

}  // namespace

RandomProgram::RandomProgram(uint64_t drawn) : seed(drawn) {
  Dice dice(seed);
  width = dice.between(3, 11);
  for (auto count = dice.between(2, 4); count > 0; --count) nodes.push_back(draw_node(dice, 0));
  tied = dice.chance(20);
  draw_run(dice);
}

NodePlan RandomProgram::draw_node(Dice& dice, int depth) {
  NodePlan node;
  const bool leaf = depth >= 2 || dice.chance(45);
  node.kind = leaf ? dice.one_of<const char*>({"linear", "mlp", "norm", "gate"})
                   : dice.one_of<const char*>({"sequence", "residual", "twice", "rare"});
  node.hidden = dice.between(2, 17);
  node.spare = dice.chance(8);
  node.empty = dice.chance(8);
  node.frozen = leaf && dice.chance(8);
  for (auto count = leaf ? 0 : dice.between(1, 3); count > 0; --count)
    node.children.push_back(draw_node(dice, depth + 1));
  return node;
}

void RandomProgram::draw_run(Dice& dice) {
  ranks = static_cast<int>(dice.between(1, 4));
  strategy = dice.one_of<const char*>({"ddp", "ddp", "fsdp", "fsdp", "fsdp_grad_op", "fsdp_none", "fsdp_hybrid",
                                       "stage_1", "stage_2", "stage_3", "gemini", "gemini"});
  if (strategy == "fsdp_hybrid") ranks = 4;
  policy = dice.one_of<const char*>({"class", "all", "size", "predicate"});
  policy_size = dice.between(3, 30);
  precision = dice.one_of<const char*>({"32-true", "32-true", "32-true", "64-true", "bf16-mixed", "bf16-true"});
  optimizer = dice.one_of<const char*>({"sgd", "sgd_momentum", "adamw", "adam", "adagrad", "torch_sgd",
                                        "torch_momentum", "torch_adam", "torch_rmsprop"});
  // A parameter that takes no part in a step is passed over by one process, and gets a zero gradient where it is
  // sharded: the same only without state.
  if (has("rare")) optimizer = dice.one_of<const char*>({"sgd", "torch_sgd"});
  steps = static_cast<int>(dice.between(3, 6));
  accumulate = dice.chance(30) ? static_cast<int>(dice.between(2, 3)) : 1;
  no_sync = dice.chance(50);
  clip = dice.chance(30) ? 0.5 : 0;
  checkpointing = dice.chance(25);
  offload = dice.chance(30);
  in_backward = dice.chance(10);
  if (dice.chance(40)) {
    failure = dice.one_of<const char*>({"forward", "backward", "one_forward", "one_backward"});
    throw_step = static_cast<int>(dice.between(0, steps - 1));
    // A backward that throws has stepped some parameters in this mode, which one process has not.
    if (in_backward && failure == "backward") failure = "forward";
  }
}

bool RandomProgram::has(const std::string& kind) const {
  const std::function<bool(const NodePlan&)> found = [&](const NodePlan& node) {
    return node.kind == kind || std::any_of(node.children.begin(), node.children.end(), found);
  };
  return std::any_of(nodes.begin(), nodes.end(), found);
}

bool RandomProgram::has_spare() const {
  const std::function<bool(const NodePlan&)> found = [&](const NodePlan& node) {
    return node.spare || node.empty || std::any_of(node.children.begin(), node.children.end(), found);
  };
  return std::any_of(nodes.begin(), nodes.end(), found);
}

std::string RandomProgram::describe() const {
  const std::function<std::string(const NodePlan&)> tree = [&](const NodePlan& node) {
    auto text =
        node.kind + (node.spare ? "+spare" : "") + (node.empty ? "+empty" : "") + (node.frozen ? "+frozen" : "");
    if (node.children.empty()) return text;
    std::vector<std::string> below;
    for (const auto& child : node.children) below.push_back(tree(child));
    return text + fmt::format("({})", fmt::join(below, " "));
  };
  std::vector<std::string> trees;
  for (const auto& node : nodes) trees.push_back(tree(node));
  return fmt::format("seed {}: {} x {}, {} by {}{}, {}, {}{}{}{}{}{}{}{}; width {}: {}", seed, strategy, ranks,
                     precision, policy, policy == "size" ? fmt::format(" {}", policy_size) : "", optimizer,
                     fmt::format("{} steps", steps),
                     accumulate > 1 ? fmt::format(" of {}{}", accumulate, no_sync ? " (no_sync)" : "") : "",
                     clip > 0 ? ", clipped" : "", checkpointing ? ", checkpointed" : "", offload ? ", offload" : "",
                     in_backward ? ", optimizer in backward" : "", tied ? ", tied" : "",
                     failure.empty() ? "" : fmt::format(", {} throws in step {}", failure, throw_step), width,
                     fmt::join(trees, " | "));
}

StrategyChoice RandomProgram::choice(bool alone) const {
  constexpr auto kTimeout = std::chrono::seconds(20);
  if (alone) return "auto";
  if (strategy == "ddp") return DdpOptions{.find_unused_parameters = has("rare") || has_spare(), .timeout = kTimeout};
  const auto units = policy_of(*this);
  const std::optional<UnitPolicy> recomputed =
      checkpointing ? std::optional(policy::by_class<RandomNode>()) : std::nullopt;
  if (strategy.starts_with("fsdp")) {
    const auto kind = strategy == "fsdp" ? "full" : strategy.substr(5);
    return FsdpOptions{.auto_wrap_policy = units,
                       .sharding_strategy = kind,
                       .hybrid_size = kind == "hybrid" ? 2 : 0,
                       .cpu_offload = offload,
                       .activation_checkpointing_policy = recomputed,
                       .optimizer_in_backward = in_backward,
                       .timeout = kTimeout};
  }
  if (strategy.starts_with("stage")) {
    const int stage = strategy.back() - '0';
    return ZeroOptions{.stage = stage,
                       .offload_optimizer = {.device = offload ? "cpu" : "none"},
                       .offload_param = {.device = offload && stage == 3 ? "cpu" : "none"},
                       .stage3_param_persistence_threshold = static_cast<int64_t>(seed % 40),
                       .auto_wrap_policy = units,
                       .activation_checkpointing_policy = recomputed,
                       .optimizer_in_backward = in_backward,
                       .timeout = kTimeout};
  }
  return GeminiOptions{.placement_policy = offload ? "cpu" : "auto",
                       .chunk_size = static_cast<int64_t>(256 + seed % 512),
                       .auto_wrap_policy = units,
                       .activation_checkpointing_policy = recomputed,
                       .optimizer_in_backward = in_backward,
                       .timeout = kTimeout};
}

TrainedProgram train_program(const RandomProgram& program, bool alone, const std::string& folder) {
  at::set_num_threads(1);
  Fabric fabric({.accelerator = "cpu", .strategy = program.choice(alone), .precision = program.precision});
  fabric.launch();
  const int rank = fabric.global_rank(), world = fabric.world_size();
  torch::manual_seed(rank == 0 ? program.seed : program.seed + 1000 + static_cast<uint64_t>(rank));
  RandomModel model(program);
  if (program.checkpointing && (alone || program.strategy == "ddp"))
    checkpoint_activations(model, policy::by_class<RandomNode>());
  auto [net, optimizer] = fabric.setup(model, optimizer_of(program, model->parameters()));

  TrainedProgram result;
  for (int step = 0; step < program.steps; ++step) {
    situation = {.step = step};
    const bool throws = step == program.throw_step && (!program.failure.starts_with("one_") || rank == world - 1);
    situation.throw_forward = throws && program.failure.ends_with("forward");
    situation.throw_backward = throws && program.failure.ends_with("backward");
    Tensor total = at::zeros({}, at::kDouble);
    const bool whole = passes(program, result, [&] {
      for (int micro = 0; micro < program.accumulate; ++micro) {
        // 12 rows: as many for each of 1 to 4 ranks.
        const auto [x, y] = boring_data(12, program.width, program.seed + static_cast<uint64_t>(step * 10 + micro));
        const auto target = y.narrow(1, 0, 1).expand({12, program.width});
        const auto rows = 12 / world;
        const auto mine = x.narrow(0, rank * rows, rows);
        const auto quiet = fabric.no_backward_sync(net, program.no_sync && micro + 1 < program.accumulate);
        const auto output = net(mine.to(program.precision == "64-true" ? at::kDouble : at::kFloat));
        const auto loss = torch::mse_loss(output.to(at::kDouble), target.narrow(0, rank * rows, rows).to(at::kDouble));
        fabric.backward(loss / program.accumulate);
        total += loss.detach() / program.accumulate;
      }
    });
    if (whole) {
      if (program.clip > 0) fabric.clip_gradients(optimizer, {.max_norm = program.clip});
      optimizer.step();
      result.losses.push_back(fabric.all_reduce(total).item<double>());
    }
    optimizer.zero_grad();
  }
  State state{{"model", net}};
  fabric.save(folder, state, SaveOptions{.full = true});
  return result;
}

}  // namespace levin::testing
