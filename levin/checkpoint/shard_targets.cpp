#include "levin/checkpoint/shard_targets.h"

#include <fmt/format.h>

#include "levin/nn/named_tensors.h"

namespace levin {
namespace {

/// One text for a place in a tree; names may have dots in them, so their lengths stand before them.
std::string key_of(const std::vector<std::string>& path, size_t count) {
  std::string key;
  for (size_t i = 0; i < count; ++i) key += fmt::format("{}:{}/", path[i].size(), path[i]);
  return key;
}

}  // namespace

void ShardTargets::put(const std::vector<std::string>& path, const ShardPlace& place, const Tensor& tensor) {
  // A parameter that is not sharded itself does not show the shape of the shards that are kept for it.
  const bool is_part = place.rows < 0 || detail::rows_of(tensor) == place.rows;
  const auto rows = is_part ? detail::rows_of(tensor) : place.rows;
  targets_.insert_or_assign(
      key_of(path, path.size()),
      Target{place, {place.start, rows, is_part ? tensor.sizes().vec() : place.part_sizes(rows), place.slice}});
}

void ShardTargets::add(const std::vector<std::string>& path, const torch::nn::Module& module) {
  auto at = path;
  for (const auto& [name, tensor] : detail::named_tensors(module)) {
    const auto* place = shards_.find(tensor);
    if (!place) continue;
    at.push_back(name);
    put(at, *place, tensor);
    at.pop_back();
  }
}

void ShardTargets::add(const std::vector<std::string>& path, const Optimizer& optimizer) {
  auto at = path;
  at.insert(at.end(), {"state", ""});
  const auto params = optimizer.all_params();
  for (size_t i = 0; i < params.size(); ++i) {
    const auto* place = shards_.find_slots(params[i]);
    if (!place) continue;
    at.back() = std::to_string(i);
    put(at, *place, params[i]);
  }
}

const ShardTargets::Target* ShardTargets::find_target(const std::vector<std::string>& path) const {
  auto found = targets_.find(key_of(path, path.size()));
  // A slot stands one below the place of its parameter's state; the count of steps is everyone's.
  if (found == targets_.end() && path.size() > 1 && path.back() != "step")
    found = targets_.find(key_of(path, path.size() - 1));
  return found == targets_.end() ? nullptr : &found->second;
}

std::optional<ShardTargets::Rows> ShardTargets::find(const std::vector<std::string>& path,
                                                     at::IntArrayRef sizes) const {
  const auto* target = find_target(path);
  if (!target || sizes != at::IntArrayRef(target->place.sizes)) return std::nullopt;
  return target->rows;
}

const ShardPlace* ShardTargets::find_part(const std::vector<std::string>& path, const Tensor& part) const {
  const auto* target = find_target(path);
  return target && part.sizes() == at::IntArrayRef(target->rows.sizes) ? &target->place : nullptr;
}

}  // namespace levin
