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
  draw_interludes(dice);
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
  precision = dice.one_of<const char*>(
      {"32-true", "32-true", "64-true", "bf16-mixed", "bf16-mixed", "bf16-mixed", "bf16-true"});
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
  offload = dice.chance(50);
  in_backward = dice.chance(10);
  if (dice.chance(40)) {
    failure = dice.one_of<const char*>({"forward", "backward", "one_forward", "one_backward"});
    throw_step = static_cast<int>(dice.between(0, steps - 1));
    // A backward that throws has stepped some parameters in this mode, which one process has not.
    if (in_backward && failure == "backward") failure = "forward";
  }
}

void RandomProgram::draw_interludes(Dice& dice) {
  using Point = Interlude::Point;
  using Kind = Interlude::Kind;
  two_optimizers = dice.chance(25);
  const int percent = dice.one_of({0, 40, 80});
  for (int step = 0; step < steps; ++step)
    for (const auto point : {Point::kBeforeBackward, Point::kBeforeStep, Point::kBetweenOptimizers, Point::kAfterStep,
                             Point::kAfterZeroGrad}) {
      if (!dice.chance(percent) || (point == Point::kBetweenOptimizers && !two_optimizers)) continue;
      auto kind = dice.one_of({Kind::kForward, Kind::kForward, Kind::kEvaluation, Kind::kEvaluation, Kind::kState,
                               Kind::kRead, Kind::kSave, Kind::kWrite, Kind::kLoad});
      // A write between forward and backward has no meaning, and what follows backward may have been stepped already.
      if (point < Point::kAfterStep && (kind == Kind::kWrite || kind == Kind::kLoad)) kind = Kind::kEvaluation;
      interludes.push_back({step, point, kind});
    }
}

bool RandomProgram::has_observations() const {
  return std::ranges::any_of(interludes, &Interlude::observes);
}

bool RandomProgram::loads() const {
  return std::ranges::any_of(interludes, [](const auto& each) { return each.kind == Interlude::Kind::kLoad; });
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
  return fmt::format("seed {}: {} x {}, {} by {}{}, {}, {}{}{}{}{}{}{}{}{}{}; width {}: {}", seed, strategy, ranks,
                     precision, policy, policy == "size" ? fmt::format(" {}", policy_size) : "", optimizer,
                     fmt::format("{} steps", steps),
                     accumulate > 1 ? fmt::format(" of {}{}", accumulate, no_sync ? " (no_sync)" : "") : "",
                     clip > 0 ? ", clipped" : "", checkpointing ? ", checkpointed" : "", offload ? ", offload" : "",
                     in_backward ? ", optimizer in backward" : "", two_optimizers ? ", two optimizers" : "",
                     interludes.empty() ? "" : fmt::format(", {} interludes", interludes.size()), tied ? ", tied" : "",
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
                       .offload_param = {.device = offload && stage == 3 && seed % 2 ? "cpu" : "none"},
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

namespace {

using Net = FabricModule<RandomModel>;

/// A run of a program, on this rank.
class Run {
 public:
  Run(const RandomProgram& program, Mode mode, std::string folder)
      : program_(program),
        mode_(mode),
        folder_(std::move(folder)),
        fabric_(
            {.accelerator = "cpu", .strategy = program.choice(mode == Mode::kAlone), .precision = program.precision}) {
    fabric_.launch();
    const int rank = fabric_.global_rank();
    torch::manual_seed(rank == 0 ? program.seed : program.seed + 1000 + static_cast<uint64_t>(rank));
    RandomModel model(program);
    if (program.checkpointing && (mode == Mode::kAlone || program.strategy == "ddp"))
      checkpoint_activations(model, policy::by_class<RandomNode>());
    params_ = unique_parameters(*model);
    std::vector<std::vector<Tensor>> parts(program.two_optimizers ? 2 : 1);
    for (size_t i = 0; i < params_.size(); ++i) parts[i % parts.size()].push_back(params_[i]);
    net_.emplace(fabric_.setup_module(model));
    for (const auto& part : parts) optimizers_.push_back(fabric_.setup_optimizers(optimizer_of(program, part)));
  }

  TrainedProgram train() {
    for (step_ = 0; step_ < program_.steps; ++step_) train_step();
    State state{{"model", *net_}};
    fabric_.save(folder_, state, SaveOptions{.full = true});
    return std::move(result_);
  }

 private:
  using Point = Interlude::Point;
  using Kind = Interlude::Kind;

  void train_step() {
    const int rank = fabric_.global_rank(), world = fabric_.world_size();
    situation = Situation{.step = step_};
    const bool throws = step_ == program_.throw_step && (!program_.failure.starts_with("one_") || rank == world - 1);
    situation.throw_forward = throws && program_.failure.ends_with("forward");
    situation.throw_backward = throws && program_.failure.ends_with("backward");
    Tensor total = at::zeros({}, at::kDouble);
    const bool whole = passes(program_, result_, [&] {
      for (int micro = 0; micro < program_.accumulate; ++micro) {
        const auto quiet = fabric_.no_backward_sync(*net_, program_.no_sync && micro + 1 < program_.accumulate);
        const auto [x, target] = rows(step_ * 10 + micro);
        const auto output = (*net_)(x);
        pause(Point::kBeforeBackward);
        const auto loss = torch::mse_loss(output.to(at::kDouble), target);
        fabric_.backward(loss / program_.accumulate);
        total += loss.detach() / program_.accumulate;
      }
    });
    if (whole) {
      if (program_.clip > 0)
        for (auto& optimizer : optimizers_) fabric_.clip_gradients(optimizer, {.max_norm = program_.clip});
      pause(Point::kBeforeStep);
      optimizers_.front().step();
      pause(Point::kBetweenOptimizers);
      if (program_.two_optimizers) optimizers_.back().step();
      result_.losses.push_back(fabric_.all_reduce(total).item<double>());
    }
    pause(Point::kAfterStep);
    for (auto& optimizer : optimizers_) optimizer.zero_grad();
    pause(Point::kAfterZeroGrad);
  }

  /// This rank's rows of a batch of 12: as many for each of 1 to 4 ranks.
  std::pair<Tensor, Tensor> rows(int batch) const {
    const auto [x, y] = boring_data(12, program_.width, program_.seed + static_cast<uint64_t>(batch));
    const auto count = 12 / fabric_.world_size(), first = fabric_.global_rank() * count;
    return {x.narrow(0, first, count).to(program_.precision == "64-true" ? at::kDouble : at::kFloat),
            y.narrow(1, 0, 1).expand({12, program_.width}).narrow(0, first, count).to(at::kDouble)};
  }

  void pause(Point point) {
    for (const auto& each : program_.interludes) {
      if (each.step != step_ || each.point != point) continue;
      // A checkpoint that is loaded later is part of the training.
      const bool skips = each.observes() && !(each.kind == Kind::kSave && program_.loads());
      if (mode_ == Mode::kUndisturbed && skips) continue;
      const auto before = std::exchange(situation, Situation{.step = step_});
      play(each);
      situation = before;
    }
  }

  void play(const Interlude& interlude) {
    // Parameters that were stepped in backward are ahead of those of one process until its step.
    const bool ahead =
        program_.in_backward && (interlude.point == Point::kBeforeStep || interlude.point == Point::kBetweenOptimizers);
    const auto observe = [&](double value) {
      if (!ahead) result_.observed.push_back(value);
    };
    switch (interlude.kind) {
      case Kind::kForward:
        observe(forward());
        break;
      case Kind::kEvaluation: {
        const at::NoGradGuard no_grad;
        observe(forward());
        break;
      }
      case Kind::kState:
        observe(squares_of_state());
        break;
      case Kind::kRead: {
        const at::NoGradGuard no_grad;
        for (const auto& param : params_) (void)param.square().sum().item<double>();
        break;
      }
      case Kind::kSave:
        fabric_.save(folder_ + "_" + std::to_string(++saved_), State{{"model", *net_}});
        break;
      case Kind::kWrite:
        for (auto& param : params_) param.data().mul_(0.75);
        break;
      case Kind::kLoad:
        if (saved_ > 0) fabric_.load(folder_ + "_" + std::to_string(saved_), State{{"model", *net_}});
        break;
    }
  }

  double forward() {
    const auto output = (*net_)(rows(1000 + step_).first).detach().to(at::kDouble);
    return fabric_.all_reduce(output.square().mean()).item<double>();
  }

  double squares_of_state() {
    auto* shards = fabric_.strategy().shards();
    auto& module = *net_->ptr();
    const auto state = shards ? full_state_dict(module, *shards, {.rank0_only = false}) : module_state_dict(module);
    double sum = 0;
    for (const auto& [name, value] : state) sum += value.to_tensor().to(at::kDouble).square().sum().item<double>();
    return sum;
  }

  const RandomProgram& program_;
  const Mode mode_;
  const std::string folder_;
  Fabric fabric_;
  std::vector<Tensor> params_;
  std::optional<Net> net_;
  std::vector<Optimizer> optimizers_;
  TrainedProgram result_;
  int step_ = 0;
  int saved_ = 0;
};

}  // namespace

TrainedProgram train_program(const RandomProgram& program, Mode mode, const std::string& folder) {
  at::set_num_threads(1);
  return Run(program, mode, folder).train();
}

}  // namespace levin::testing
