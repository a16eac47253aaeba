#pragma once

#include <random>
#include <thread>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"
#include "levin/distributed/single.h"
#include "levin/nn/layers.h"
#include "levin/nn/tie.h"
#include "levin/nn/unit.h"
#include "levin/optim/clip.h"
#include "levin/optim/optim.h"
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
class WatchedCollective : public Collective {
 public:
  explicit WatchedCollective(Collective& inner, int delay_us = 0) : inner_(inner), delay_us_(delay_us) {
    random_.seed(static_cast<uint64_t>(inner.rank()) * 7919 + 1);
  }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void all_reduce(Tensor& tensor, ReduceOp op) override { inner_.all_reduce(tensor, op); }
  Tensor all_gather(const Tensor& tensor) override { return inner_.all_gather(tensor); }
  void broadcast(Tensor& tensor, int src) override { inner_.broadcast(tensor, src); }
  Tensor reduce_scatter(const Tensor& input, ReduceOp op) override { return inner_.reduce_scatter(input, op); }
  void barrier(std::string_view name) override { inner_.barrier(name); }
  c10::intrusive_ptr<c10d::ProcessGroup> process_group() const override { return inner_.process_group(); }
  c10::intrusive_ptr<c10d::Store> store() const override { return inner_.store(); }
  void run(std::string_view operation, const std::function<void(c10d::ProcessGroup&)>& body) override {
    ++runs[std::string(operation)];
    delay();
    inner_.run(operation, body);
    delay();
  }
  FailureExchange* failures() override { return inner_.failures(); }

  /// Starts and ends of operations.
  std::map<std::string, int> runs;

 protected:
  std::shared_ptr<Collective> part(const std::vector<int>& ranks, const std::string& name) override {
    throw Error("[watched] a part of a watched group is not watched: " + name + " of " + std::to_string(ranks.size()));
  }

 private:
  void delay() {
    if (delay_us_ > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % static_cast<uint64_t>(delay_us_)));
  }
  Collective& inner_;
  int delay_us_;
  std::mt19937_64 random_;
};

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

}  // namespace levin::testing
