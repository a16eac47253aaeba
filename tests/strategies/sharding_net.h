#pragma once

#include <random>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"
#include "levin/distributed/group.h"
#include "levin/distributed/single.h"
#include "levin/nn/layers.h"
#include "levin/nn/tie.h"
#include "levin/nn/unit.h"
#include "levin/optim/clip.h"
#include "levin/optim/optim.h"
#include "levin/testing/forwarding_collective.h"
#include "tests/strategies/training.h"

namespace levin::testing {

/// A residual block whose shapes do not divide evenly by any number of ranks.
struct ShardBlockImpl : torch::nn::Module {
  explicit ShardBlockImpl(int64_t width, int64_t hidden) {
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", nn::Linear(width, hidden));
    down = register_module("down", nn::Linear(hidden, width));
    scale = register_parameter("scale", torch::full({}, 0.5));
  }
  Tensor forward(const Tensor& x) { return x + down(torch::gelu(up(norm(x)))) * scale; }
  nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
  Tensor scale;
};
LEVIN_MODULE(ShardBlock);

struct ShardNetOptions {
  int64_t width = 10;
  int64_t hidden = 15;
  int blocks = 3;
  /// "": none. "inside": two weights of one block; "across": those of two blocks; "head": embedding and head.
  std::string tied = {};
  /// Each block runs twice.
  bool twice = false;
  /// "": none. "first", "last" (block), "blocks" (all but stem and head).
  std::string frozen = {};
};

/// Stem, blocks and head.
struct ShardNetImpl : torch::nn::Module {
  explicit ShardNetImpl(const ShardNetOptions& o = {}) : options(o) {
    stem = register_module("stem", nn::Linear(o.width, o.width));
    for (int i = 0; i < o.blocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), ShardBlock(o.width, o.hidden)));
    head = register_module("head", nn::Linear(o.width, o.width));
    if (o.tied == "across") levin::tie(*this, blocks[1]->up->weight, blocks[0]->up->weight);
    if (o.tied == "inside") levin::tie(*this, blocks[0]->norm->bias, blocks[0]->down->bias);
    if (o.tied == "head") levin::tie(*this, head->weight, stem->weight);
    const auto freeze = [](torch::nn::Module& module) {
      for (auto& parameter : module.parameters()) parameter.requires_grad_(false);
    };
    if (o.frozen == "first") freeze(*stem), freeze(*blocks[0]);
    if (o.frozen == "last") freeze(*blocks.back()), freeze(*head);
    if (o.frozen == "blocks")
      for (auto& block : blocks) freeze(*block);
  }
  Tensor forward(const Tensor& x) {
    auto h = stem(x);
    for (auto& block : blocks) h = block(h);
    if (options.twice)
      for (auto& block : blocks) h = block(h);
    return head(h);
  }
  ShardNetOptions options;
  nn::Linear stem{nullptr}, head{nullptr};
  std::vector<ShardBlock> blocks;
};
LEVIN_MODULE(ShardNet);

/// Counts the operations of a group by name, and puts random delays around them.
class WatchedCollective : public ForwardingCollective {
 public:
  explicit WatchedCollective(Collective& inner, int delay_us = 0) : ForwardingCollective(inner), delay_us_(delay_us) {
    random_.seed(static_cast<uint64_t>(inner.rank()) * 7919 + 1);
  }
  void run(std::string_view operation, const std::function<void(c10d::ProcessGroup&)>& body) override {
    ++runs[std::string(operation)];
    delay();
    ForwardingCollective::run(operation, body);
    delay();
  }

  /// Starts and ends of operations.
  std::map<std::string, int> runs;

 private:
  void delay() {
    if (delay_us_ > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % static_cast<uint64_t>(delay_us_)));
  }
  int delay_us_;
  std::mt19937_64 random_;
};

/// A real process group of one rank, whose collectives are really run.
inline std::shared_ptr<Collective> lone_group(c10::Device device = at::kCPU, bool nccl = false) {
  const GroupRoute route{.address = "127.0.0.1",
                         .device = device,
                         .nccl = nccl,
                         .timeout = std::chrono::seconds(60),
                         .join_timeout = std::chrono::seconds(60)};
  return std::make_shared<ProcessCollective>(c10::make_intrusive<c10d::HashStore>(), "lone", 0, std::vector<int>{0},
                                             route, nullptr);
}

/// The whole of a parameter or gradient of which this rank has a part.
inline Tensor whole_of(Collective& group, ShardMap* shards, const Tensor& param, const Tensor& value,
                       int shard_size = 0) {
  const auto* place = shards ? shards->find(param) : nullptr;
  if (!place) return value.detach().clone();
  if (shard_size == 0) shard_size = group.size();
  const int64_t rows = place->whole_rows(), per_rank = (rows + shard_size - 1) / shard_size;
  int64_t row = 1;
  for (size_t i = 1; i < place->sizes.size(); ++i) row *= place->sizes[i];
  auto padded = at::zeros({per_rank * row}, value.options().requires_grad(false));
  padded.narrow(0, 0, value.numel()).copy_(value.detach().reshape({-1}));
  return group.all_gather(padded).reshape({-1}).narrow(0, 0, rows * row).view(place->sizes).clone();
}

struct ShardCase {
  std::string name;
  StrategyChoice choice = FsdpOptions{.auto_wrap_policy = policy::by_class<ShardBlock>()};
  int world = 2;
  int accumulate = 1;
  bool no_sync = true;
  double clip = 0;
  ShardNetOptions net = {};
  std::string precision = "32-true";
  bool adamw = true;
  /// Of SGD.
  double momentum = 0.9;
  /// Of AdamW. Larger ones keep the last bits of gradients that should be zero from becoming whole steps.
  double eps = 1e-8;
  int delay_us = 0;
  double tolerance = 1e-5;
  bool zero_in_place = false;
  int shard_size = 0;

  friend void PrintTo(const ShardCase& c, std::ostream* out) { *out << c.name; }
};

/// Ten steps on this rank's rows; losses, then parameters.
inline std::vector<Tensor> train_sharded(Collective& real, const ShardCase& c, const StrategyChoice& choice,
                                         c10::Device device = at::kCPU) {
  WatchedCollective watched(real, c.delay_us);
  torch::manual_seed(real.rank() == 0 ? 3 : 100 + real.rank());
  ShardNet net(c.net);
  const auto parameters = unique_parameters(*net);
  std::vector<Tensor> trained;
  for (const auto& parameter : parameters)
    if (parameter.requires_grad()) trained.push_back(parameter);
  Optimizer optimizer = c.adamw ? Optimizer(optim::AdamW(trained, {.lr = 1e-2, .eps = c.eps}))
                                : Optimizer(optim::SGD(trained, {.lr = 0.05, .momentum = c.momentum}));
  // A part of a watched group could not be watched.
  Collective& group = c.delay_us > 0 ? static_cast<Collective&>(watched) : real;
  const auto plan = resolve_precision(c.precision, device.type());
  if (choice.name() == "single_device") {
    net->to(device);
    if (plan.params) net->to(*plan.params);
  }
  Trainee trainee(group, choice, *net, device, c.precision);
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  std::vector<Tensor> results, losses;
  for (int step = 0; step < 10; ++step) {
    Tensor total = at::zeros({}, device);
    for (int micro = 0; micro < c.accumulate; ++micro) {
      const auto [x, y] = boring_data(8, c.net.width, static_cast<uint64_t>(1000 + step * 10 + micro));
      const auto target = torch::cat(std::vector<Tensor>(static_cast<size_t>(c.net.width) / 2, y), 1);
      trainee.set_sync(!c.no_sync || micro + 1 == c.accumulate);
      const auto mine = shard_of(x, real.rank(), real.size()).to(device);
      auto output = trainee.forward([&] {
        std::optional<Autocast> autocast;
        if (plan.autocast) autocast.emplace(device.type(), *plan.autocast);
        return net(plan.params ? mine.to(*plan.params) : mine);
      });
      const auto loss = mse(output.to(at::kFloat), shard_of(target, real.rank(), real.size()).to(device));
      trainee.backward(loss / c.accumulate);
      total = total + loss.detach() / c.accumulate;
    }
    real.all_reduce(total, ReduceOp::kMean);
    losses.push_back(total);
    if (c.clip > 0) {
      const auto norm = trainee.strategy().grad_norm(trained, 2);
      losses.push_back(norm.to(device, at::kFloat));
      optim::clip_grads_with_norm(trained, c.clip, norm);
    }
    optimizer.step();
    optimizer.zero_grad(!(c.zero_in_place && step % 2));
  }
  results.push_back(at::stack(losses).cpu());
  for (const auto& parameter : parameters)
    results.push_back(
        whole_of(real, trainee.strategy().shards(), parameter, parameter, c.shard_size).to(at::kCPU, at::kFloat));
  return results;
}

}  // namespace levin::testing
