#pragma once

#include <numeric>

#include <torch/torch.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/optim/adam.h"
#include "levin/testing/tensors.h"

namespace levin {

/// A tensor of each kind that makes trouble: rows that do not divide evenly, fewer rows than ranks, one row, a scalar,
/// another dtype, no elements, a tied name. Parameters, then buffers.
inline std::vector<std::pair<std::string, Tensor>> whole_tensors(int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  return {{"weight", torch::randn({10, 3})},
          {"bias", torch::randn({10})},
          {"few", torch::randn({2, 2, 2})},
          {"one", torch::randn({1, 5})},
          {"scalar", torch::randn({})},
          {"half", torch::randn({7, 2}).to(at::kBFloat16)},
          {"nothing", torch::randn({0, 4})},
          {"narrow", torch::randn({4, 0})},
          {"buffer.mean", torch::randn({3})},
          {"buffer.count", torch::tensor(int64_t{7 + seed})},
          {"buffer.mask", torch::randn({9, 2}).gt(0)}};
}

/// Which rows rank `rank` of `world` holds: as many as the first ones have, the last ones fewer or none.
inline std::pair<int64_t, int64_t> even_rows(int64_t whole, int rank, int world) {
  const auto each = (whole + world - 1) / world;
  const auto start = std::min(whole, each * rank);
  return {start, std::min(whole, start + each) - start};
}
/// Rank 0 holds one row at most, the last one the rest.
inline std::pair<int64_t, int64_t> uneven_rows(int64_t whole, int rank, int world) {
  const auto start = std::min<int64_t>(whole, rank);
  return {start, rank == world - 1 ? whole - start : std::min<int64_t>(whole, rank + 1) - start};
}

/// A module whose parameters (and one buffer) are rows of whole ones, as a strategy leaves it: this rank's shard, and a
/// map that knows. World 1 without a map is the whole module.
struct ShardedModule {
  using Rows = std::pair<int64_t, int64_t> (*)(int64_t, int, int);

  explicit ShardedModule(Collective* group, Rows rows = even_rows, int copies = 1)
      : net(std::make_shared<torch::nn::Module>()) {
    if (group) shards = std::make_unique<TensorShards>(*group);
    const int world = group ? group->size() / copies : 1;
    const int rank = group ? group->rank() % world : 0;
    for (const auto& [name, whole] : whole_tensors(0)) {
      const bool parameter = !name.starts_with("buffer.");
      const bool sharded = group && (parameter || name == "buffer.mask");
      const auto [start, count] =
          sharded ? rows(whole.dim() == 0 ? 1 : whole.size(0), rank, world) : std::pair<int64_t, int64_t>{0, -1};
      ShardPlace place{.sizes = whole.sizes().vec(), .start = start, .writes = !group || group->rank() < world};
      auto part = torch::zeros(sharded ? at::IntArrayRef(place.part_sizes(count)) : whole.sizes(), whole.options());
      if (parameter)
        part = net->register_parameter(name, part);
      else
        net->register_buffer(name.substr(7), part);
      if (sharded) shards->add(part, place);
      if (name == "weight") net->register_parameter("tied", part);
    }
    std::vector<Tensor> params;
    for (const auto& item : net->named_parameters())
      if (item.key() != "tied") params.push_back(item.value());
    opt = optim::AdamW(params, {.lr = 0.5});
    if (shards) shards->add_optimizer(opt);
  }

  State state() { return {{"model", net}, {"optimizer", opt}, {"epoch", epoch}}; }

  /// Of the whole module: sets the values, and what the optimizer keeps, by steps.
  void train(int64_t seed) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, whole] : whole_tensors(seed)) {
      const bool parameter = !name.starts_with("buffer.");
      auto tensor = parameter ? net->named_parameters()[name] : net->named_buffers()[name.substr(7)];
      tensor.copy_(whole);
      if (parameter) tensor.mutable_grad() = torch::randn(whole.sizes()).to(whole.scalar_type());
    }
    opt.step();
    opt.step();
    epoch = seed;
  }

  std::shared_ptr<torch::nn::Module> net;
  optim::AdamW opt{std::vector<Tensor>{torch::zeros({1})}};
  int64_t epoch = -1;
  std::unique_ptr<TensorShards> shards;
};

/// Every tensor of a tree under its place, in order.
inline void each_tensor_of(const StateValue& value, const std::string& at,
                           const std::function<void(const std::string&, const Tensor&)>& f) {
  if (value.is_tensor()) f(at, value.to_tensor());
  if (value.is_dict())
    for (const auto& [name, element] : value.to_dict()) each_tensor_of(element, at + "/" + name, f);
  if (value.is_list())
    for (size_t i = 0; i < value.to_list().size(); ++i)
      each_tensor_of(value.to_list()[i], at + "/" + std::to_string(i), f);
}

/// What differs between two trees: empty when nothing does. Where `shards` knows a tensor of `here`, it is compared
/// with its rows of `whole`.
inline std::string difference(const StateDict& here, const StateDict& whole, const ShardMap* shards = nullptr) {
  std::map<std::string, Tensor> wholes;
  each_tensor_of(whole, "", [&](const std::string& at, const Tensor& tensor) { wholes.emplace(at, tensor); });
  std::string text;
  size_t count = 0;
  each_tensor_of(here, "", [&](const std::string& at, const Tensor& tensor) {
    ++count;
    const auto found = wholes.find(at);
    if (found == wholes.end()) {
      text += at + " is not there; ";
      return;
    }
    const auto* place = shards ? shards->find(tensor) : nullptr;
    const auto expected =
        place ? detail::narrow_rows(found->second, place->start, detail::rows_of(tensor)).reshape(tensor.sizes())
              : found->second;
    if (!testing::same_bytes(tensor.detach(), expected.detach())) text += at + " differs; ";
  });
  if (count != wholes.size()) text += fmt::format("{} tensors, not {}", count, wholes.size());
  return text;
}

}  // namespace levin
