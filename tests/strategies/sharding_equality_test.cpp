// Sharded training against one process on the whole batch: what is rare in a model, and the ways in which it is
// trained.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/nn/checkpointing/checkpointing.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

struct OddNetOptions {
  /// All is frozen but a small adapter in each block.
  bool adapters = false;
  double dropout = 0;
  /// Stem and head have one weight.
  bool tied = false;
  /// When `rare` is used, and "unit": a block takes no part in some steps.
  std::string rare = {};
};

/// Has parameters with fewer rows than there are ranks, scalars, one that is never used, and buffers.
struct OddBlockImpl : torch::nn::Module {
  OddBlockImpl(int64_t width, const OddNetOptions& o) {
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", nn::Linear(width, 13));
    down = register_module("down", nn::Linear(13, width));
    inner = register_module("inner", nn::Linear(torch::nn::LinearOptions(width, 3).bias(false)));
    outer = register_module("outer", nn::Linear(torch::nn::LinearOptions(3, width).bias(false)));
    dropout = register_module("dropout", nn::Dropout(o.dropout));
    few = register_parameter("few", 0.1 * torch::randn({2, width}));
    gate = register_parameter("gate", torch::full({}, 0.5));
    rare = register_parameter("rare", torch::rand({5}));
    spare = register_parameter("spare", torch::randn({3, 4}));
    shift = register_buffer("shift", 0.1 * torch::randn({width}));
    calls = register_buffer("calls", torch::zeros({1}, torch::kLong));
    if (!o.adapters) return;
    for (auto& parameter : parameters()) parameter.requires_grad_(false);
    for (auto& parameter : {inner->weight, outer->weight, gate}) parameter.requires_grad_(true);
  }
  Tensor forward(const Tensor& x) {
    auto h = down(torch::gelu(up(norm(x)))) + outer(torch::tanh(inner(x)));
    h = dropout(h * gate + few.sum(0) + shift);
    if (rare_rows > 0)
      h = torch::cat({h.narrow(0, 0, rare_rows) * rare.mean(), h.narrow(0, rare_rows, h.size(0) - rare_rows)});
    calls.add_(1);
    return x + h.to(x.scalar_type());
  }
  /// Rows of the batch that `rare` is used for.
  int64_t rare_rows = 0;
  nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr}, down{nullptr}, inner{nullptr}, outer{nullptr};
  nn::Dropout dropout{nullptr};
  Tensor few, gate, rare, spare, shift, calls;
};
LEVIN_MODULE(OddBlock);

struct OddNetImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 10;
  explicit OddNetImpl(const OddNetOptions& o) {
    stem = register_module("stem", nn::Linear(kWidth, kWidth));
    for (int i = 0; i < 2; ++i) blocks.push_back(register_module("block" + std::to_string(i), OddBlock(kWidth, o)));
    head = register_module("head", nn::Linear(kWidth, kWidth));
    scale = register_parameter("scale", torch::full({}, 1.5));
    if (o.tied) levin::tie(*this, head->weight, stem->weight);
    if (o.adapters)
      for (auto& parameter : {stem->weight, stem->bias, head->weight, head->bias, scale})
        parameter.requires_grad_(false);
  }
  Tensor forward(const Tensor& x) {
    auto h = stem(x);
    for (size_t i = 0; i < blocks.size(); ++i)
      if (i != skipped) h = blocks[i](h);
    return head(h) * scale;
  }
  /// This block takes no part.
  size_t skipped = 99;
  nn::Linear stem{nullptr}, head{nullptr};
  std::vector<OddBlock> blocks;
  Tensor scale;
};
LEVIN_MODULE(OddNet);

const auto kOddBlocks = policy::by_class<OddBlock>();

/// Delays the parts of a group of four too, which are two and two.
class DelayedCollective final : public WatchedCollective {
 public:
  DelayedCollective(std::shared_ptr<Collective> real, int delay_us)
      : WatchedCollective(*real, delay_us), real_(std::move(real)), delay_(delay_us) {}

 protected:
  std::shared_ptr<Collective> part(const std::vector<int>& ranks, const std::string& name) override {
    std::vector<int> others;
    for (int rank = 0; rank < size(); ++rank)
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) others.push_back(rank);
    std::vector<std::vector<int>> groups{ranks, others};
    std::sort(groups.begin(), groups.end());
    return std::make_shared<DelayedCollective>(split_group(*real_, groups, name.substr(0, name.find('/'))), delay_);
  }

 private:
  std::shared_ptr<Collective> real_;
  int delay_;
};

struct OddCase {
  std::string name;
  StrategyChoice choice = FsdpOptions{.auto_wrap_policy = kOddBlocks};
  int world = 2;
  int shard_size = 0;
  OddNetOptions net = {};
  std::string optimizer = "adamw";
  int accumulate = 1;
  double clip = 0;
  /// As on a GPU: "16-mixed" does not become "bf16-mixed".
  std::string precision = "32-true";
  int delay_us = 0;
  /// "": none. "all", "results" (those of matrix products are kept), "host".
  std::string checkpointing = {};
  double tolerance = 1e-5;

  friend void PrintTo(const OddCase& c, std::ostream* out) { *out << c.name; }
};

Optimizer make_odd_optimizer(const std::string& name, const std::vector<Tensor>& params) {
  if (name == "sgd") return optim::SGD(params, {.lr = 0.05, .momentum = 0.9});
  if (name == "sgd_decay") return optim::SGD(params, {.lr = 0.05, .weight_decay = 0.1});
  if (name == "lamb") return optim::Lamb(params, {.lr = 1e-2, .eps = 1e-3, .always_adapt = true});
  if (name == "lion") return optim::Lion(params, {.lr = 1e-3});
  if (name == "adagrad") return optim::Adagrad(params, {.lr = 1e-2});
  // A larger eps than usual: where a gradient is nearly zero, Adam would make its rounding as large as lr.
  return optim::AdamW(params, {.lr = 1e-2, .eps = 1e-4});
}

/// A strategy of which the precision is said as on a GPU.
struct OddTrainee {
  OddTrainee(Collective& group, const StrategyChoice& choice, torch::nn::Module& module, const PrecisionPlan& plan)
      : strategy(make_strategy(choice, group.size())) {
    strategy->connect({&group, [](auto*) {}}, at::kCPU);
    strategy->set_precision(plan);
    if (!strategy->traits().places_modules && plan.params) module.to(*plan.params);
    sync = strategy->setup_module(module);
  }
  Tensor forward(const std::function<Tensor()>& call) {
    if (sync) sync->before_forward();
    auto output = call();
    if (!sync) return output;
    sync->leave_forward();
    sync->after_forward({&output, output.requires_grad() ? size_t{1} : size_t{0}});
    return output;
  }
  void backward(const Tensor& loss) {
    std::vector<ModuleSync*> syncs;
    if (sync) syncs.push_back(sync.get());
    run_backward(syncs, loss, [&] { loss.backward(); });
  }
  std::unique_ptr<Strategy> strategy;
  std::unique_ptr<ModuleSync> sync;
};

/// Rows of this rank that use `rare` in a step, of as many as it has.
int64_t rare_rows(const std::string& when, int step, Collective& group, int64_t rows) {
  if (when == "always" || (when == "some steps" && step % 2 == 0)) return rows;
  if (when != "first half") return 0;
  return std::clamp<int64_t>(6 - group.rank() * rows, 0, rows);
}

/// Full parameters, by one gathering of all parts, and buffers, one after the other.
Tensor whole_states(Collective& group, OddTrainee& trainee, const std::vector<Tensor>& params,
                    const std::vector<Tensor>& buffers, int ranks) {
  auto* shards = trainee.strategy->shards();
  if (ranks == 0) ranks = group.size();
  std::vector<Tensor> states;
  for (const auto& param : params) {
    auto part = param.detach().to(at::kFloat).reshape({-1});
    if (const auto* place = shards ? shards->find(param) : nullptr) {
      const int64_t rows = place->whole_rows(), numel = c10::multiply_integers(place->sizes);
      part = at::constant_pad_nd(part, {0, (rows + ranks - 1) / ranks * (numel / rows) - part.numel()});
    }
    states.push_back(part);
  }
  const auto parts = group.all_gather(at::cat(states)).narrow(0, 0, shards ? ranks : 1);
  std::vector<Tensor> wholes;
  int64_t at = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto* place = shards ? shards->find(params[i]) : nullptr;
    const auto columns = parts.narrow(1, at, states[i].numel());
    at += states[i].numel();
    wholes.push_back(place ? columns.reshape({-1}).narrow(0, 0, c10::multiply_integers(place->sizes)) : columns[0]);
  }
  for (const auto& buffer : buffers) wholes.push_back(buffer.to(at::kFloat).reshape({-1}));
  return at::cat(wholes);
}

/// Some steps on this rank's rows: losses and norms; parameters and buffers.
std::vector<Tensor> train_odd(Collective& group, const OddCase& c, const StrategyChoice& choice) {
  constexpr int64_t kRows = 12;
  constexpr int kSteps = 5;
  at::set_num_threads(1);
  torch::manual_seed(group.rank() == 0 ? 3 : 100 + group.rank());
  OddNet net(c.net);
  const auto all = unique_parameters(*net);
  std::vector<Tensor> trained;
  for (const auto& parameter : all)
    if (parameter.requires_grad()) trained.push_back(parameter);
  auto optimizer = make_odd_optimizer(c.optimizer, trained);
  std::vector<Attachment> attachments;
  if (c.checkpointing == "results")
    attachments = attach_checkpointing(*net, kOddBlocks, {.keep_results_of = {"aten::mm", "aten::addmm"}});
  else if (!c.checkpointing.empty())
    attachments = attach_checkpointing(*net, kOddBlocks, {.cpu_offload = c.checkpointing == "host"});
  const auto plan = resolve_precision(c.precision, at::kCUDA);
  DelayedCollective delayed({&group, [](auto*) {}}, c.delay_us);
  OddTrainee trainee(c.delay_us > 0 ? delayed : group, choice, *net, plan);
  optimizer = trainee.strategy->setup_optimizer(optimizer);
  GradScaler scaler({.init_scale = plan.scales_loss ? 256.0 : 1.0, .growth_interval = 3});
  if (group.size() > 1) scaler.share_found_inf([&](Tensor& found) { group.all_reduce(found, ReduceOp::kMax); });
  torch::manual_seed(1234 + group.rank());
  std::vector<Tensor> numbers;
  for (int step = 0; step < kSteps; ++step) {
    auto total = at::zeros({});
    for (int micro = 0; micro < c.accumulate; ++micro) {
      const auto [x, y] = boring_data(kRows, OddNetImpl::kWidth, static_cast<uint64_t>(1000 + step * 10 + micro));
      const auto mine = shard_of(x, group.rank(), group.size());
      const auto target = shard_of(torch::cat(std::vector<Tensor>(5, y), 1), group.rank(), group.size());
      for (auto& block : net->blocks) block->rare_rows = rare_rows(c.net.rare, step, group, mine.size(0));
      // Once in the last of several batches, once in the only one.
      const bool skips = c.net.rare == "unit" && (step == 2 || step == 4) && micro + 1 == c.accumulate;
      net->skipped = skips ? 1 : 99;
      if (trainee.sync) trainee.sync->set_sync(micro + 1 == c.accumulate);
      const auto output = trainee.forward([&] {
        std::optional<Autocast> autocast;
        if (plan.autocast) autocast.emplace(at::kCPU, *plan.autocast);
        return net(plan.params ? mine.to(*plan.params) : mine);
      });
      auto loss = mse(output.to(at::kFloat), target) / c.accumulate;
      total = total + loss.detach();
      // One rank alone has too large a loss: nobody may step.
      const bool overflows = plan.scales_loss && step == 3 && group.rank() == group.size() - 1;
      trainee.backward(plan.scales_loss ? scaler.scale(overflows ? loss * 1e30 : loss) : loss);
    }
    group.all_reduce(total, ReduceOp::kMean);
    numbers.push_back(total);
    // A parameter of a unit that ran has a gradient of zeros where a single process has none.
    if (!trainee.sync)
      for (auto& block : net->blocks)
        for (auto& parameter : {block->rare, block->spare})
          if (parameter.requires_grad() && !parameter.grad().defined() && block->up->weight.grad().defined())
            parameter.mutable_grad() = at::zeros_like(parameter);
    if (c.clip > 0) {
      if (plan.scales_loss) scaler.unscale(optimizer);
      const auto norm = trainee.strategy->grad_norm(trained, 2);
      if (!(plan.scales_loss && step == 3)) numbers.push_back(norm.to(at::kFloat));
      optim::clip_grads_with_norm(trained, c.clip, norm);
    }
    if (plan.scales_loss) {
      scaler.step(optimizer);
      scaler.update();
      numbers.push_back(at::scalar_tensor(std::log2(scaler.current_scale())));
    } else {
      optimizer.step();
    }
    optimizer.zero_grad();
  }
  return {at::stack(numbers).to(at::kFloat), whole_states(group, trainee, all, net->buffers(), c.shard_size)};
}

/// Trains every case on the same ranks, and in one process.
void expect_equality(int world, const std::vector<OddCase>& cases) {
  const auto train_all = [&](Collective& group) {
    std::vector<Tensor> all;
    for (const auto& c : cases) {
      auto plain = c;
      plain.delay_us = 0;
      plain.checkpointing.clear();
      const auto some = group.size() == 1 ? train_odd(group, plain, "single_device") : train_odd(group, c, c.choice);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  };
  const auto one = run_ranks(1, train_all)[0].tensors;
  const auto many = run_ranks(world, train_all);
  ASSERT_EQ(one.size(), 2 * cases.size());
  for (int rank = 0; rank < world; ++rank) {
    const auto& mine = many[static_cast<size_t>(rank)].tensors;
    ASSERT_EQ(mine.size(), one.size()) << rank;
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_LT(max_difference({mine[2 * i]}, {one[2 * i]}), cases[i].tolerance) << cases[i].name << ": losses, norms";
      EXPECT_LT(max_difference({mine[2 * i + 1]}, {one[2 * i + 1]}), cases[i].tolerance) << cases[i].name;
      EXPECT_TRUE(at::equal(mine[2 * i + 1], many[0].tensors[2 * i + 1])) << cases[i].name << " on rank " << rank;
    }
  }
}

const FsdpOptions kFsdp{.auto_wrap_policy = kOddBlocks};

ZeroOptions zero(int stage, int64_t threshold = 12) {
  return {.stage = stage, .stage3_param_persistence_threshold = threshold, .auto_wrap_policy = kOddBlocks};
}

FsdpOptions hybrid() {
  auto options = kFsdp;
  options.sharding_strategy = "hybrid";
  options.hybrid_size = 2;
  return options;
}

const std::vector<std::pair<std::string, StrategyChoice>> kWays{
    {"fsdp", kFsdp}, {"stage 2", zero(2)}, {"stage 3", zero(3)}};

/// Three ranks cannot share anything here evenly, and four have parameters with fewer rows than they are.
TEST(ShardingEquality, OfUnevenShapesScalarsAndBuffers) {
  for (const int world : {3, 4}) {
    std::vector<OddCase> cases{{.name = "fsdp", .net = {.tied = true}, .clip = 0.1}};
    cases.push_back({.name = "lamb", .optimizer = "lamb"});
    if (world == 3)
      for (const char* optimizer : {"sgd_decay", "lion", "adagrad"})
        cases.push_back({.name = optimizer, .optimizer = optimizer});
    for (const int stage : {1, 2, 3})
      cases.push_back({.name = "stage " + std::to_string(stage), .choice = zero(stage), .clip = 0.1});
    expect_equality(world, cases);
  }
}

TEST(ShardingEquality, OfReplicasOfAShardedModel) {
  std::vector<OddCase> cases;
  for (const char* optimizer : {"sgd", "adamw"}) {
    cases.push_back({.name = optimizer, .optimizer = optimizer});
    cases.push_back({.name = std::string(optimizer) + ", tied",
                     .net = {.tied = true},
                     .optimizer = optimizer,
                     .accumulate = 2,
                     .clip = 0.05});
  }
  cases.push_back({.name = "adapters", .net = {.adapters = true}, .clip = 0.05});
  cases.push_back({.name = "used by one rank", .net = {.rare = "first half"}});
  cases.push_back({.name = "delays", .accumulate = 2, .clip = 0.1, .delay_us = 1000});
  cases.push_back({.name = "16-mixed", .accumulate = 2, .clip = 0.5, .precision = "16-mixed", .tolerance = 2e-2});
  for (auto& c : cases) {
    c.choice = hybrid();
    c.shard_size = 2;
  }
  expect_equality(4, cases);
}

TEST(ShardingEquality, OfWhatIsUsedRarelyOrFrozen) {
  std::vector<OddCase> cases;
  for (const auto& [way, choice] : kWays) {
    const auto add = [&, choice = choice](const char* name, OddCase c) {
      c.name = way + ": " + name;
      c.choice = choice;
      cases.push_back(std::move(c));
    };
    add("adapters", {.net = {.adapters = true}, .accumulate = 2, .clip = 0.05});
    add("never", {.clip = 0.1});
    add("in some steps", {.net = {.rare = "some steps"}, .clip = 0.1});
    add("by one rank", {.net = {.rare = "first half"}, .clip = 0.1});
    add("a unit", {.net = {.rare = "unit"}});
    add("a unit in the last of two batches", {.net = {.rare = "unit"}, .accumulate = 2});
    // Small parameters that stay with the root have gradients of zeros also where their block takes no part.
    if (way == "stage 3") cases[cases.size() - 2].choice = cases.back().choice = zero(3, 0);
  }
  cases.push_back({.name = "delays", .choice = zero(2), .accumulate = 2, .clip = 0.1, .delay_us = 1000});
  expect_equality(2, cases);
}

/// With a loss scaler, and one rank whose gradients overflow.
TEST(ShardingEquality, OfFloat16) {
  std::vector<OddCase> cases;
  for (const auto& [way, choice] : kWays)
    cases.push_back(
        {.name = way, .choice = choice, .accumulate = 2, .clip = 0.5, .precision = "16-mixed", .tolerance = 2e-2});
  auto summed = kFsdp;
  summed.mixed_precision.reduce_dtype = at::kHalf;
  cases.push_back({.name = "summed in it", .choice = summed, .optimizer = "sgd", .tolerance = 5e-3});
  cases.push_back({.name = "16-true", .optimizer = "sgd", .precision = "16-true", .tolerance = 2e-2});
  expect_equality(2, cases);
}

TEST(ShardingEquality, OfActivationsThatAreComputedAgain) {
  run_ranks(2, [](Collective& group) {
    for (const StrategyChoice& choice : {StrategyChoice(kFsdp), StrategyChoice(zero(3))}) {
      OddCase c{.name = "dropout", .net = {.dropout = 0.3}, .accumulate = 2, .clip = 0.1};
      const auto wanted = train_odd(group, c, choice);
      for (const char* how : {"all", "results", "host"}) {
        c.checkpointing = how;
        EXPECT_EQ(max_difference(train_odd(group, c, choice), wanted), 0) << how;
      }
      c.net.dropout = 0.2;
      EXPECT_GT(max_difference(train_odd(group, c, choice), wanted), 1e-3);
      // Beside what is frozen.
      c.net = {.adapters = true, .dropout = 0.3};
      c.checkpointing.clear();
      const auto frozen = train_odd(group, c, choice);
      c.checkpointing = "all";
      EXPECT_EQ(max_difference(train_odd(group, c, choice), frozen), 0);
    }
  });
}

}  // namespace
}  // namespace levin::testing
