// Full tensors on rank 0, or on every rank, from the shards that ranks hold.
#include <optional>

#include <ATen/ops/empty.h>

#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/part_gathering.h"
#include "levin/checkpoint/state_files.h"
#include "levin/checkpoint/together.h"
#include "levin/core/error.h"
#include "levin/core/files.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

using detail::PartGathering;
using detail::StateFiles;

PartGathering::Parts shards_in(const StateFiles& files) {
  PartGathering::Parts parts;
  for (const auto& file : files.files())
    for (const auto& item : file.items)
      if (item.place) parts.emplace_back(item.id, PartGathering::Part{item.tensor, *item.place});
  return parts;
}

StateValue with_tensors(const StateValue& value, const std::function<Tensor(const Tensor&)>& replace) {
  if (value.is_tensor()) return value.to_tensor().defined() ? replace(value.to_tensor()) : value;
  if (value.is_list()) {
    StateList list;
    for (const auto& element : value.to_list()) list.push_back(with_tensors(element, replace));
    return list;
  }
  if (!value.is_dict()) return value;
  StateDict dict;
  for (const auto& [name, element] : value.to_dict()) dict[name] = with_tensors(element, replace);
  return dict;
}

}  // namespace

StateDict full_state_dict(const StateDict& state, ShardMap& shards, FullStateOptions options) {
  return detail::gather_full_state(state, shards, nullptr, options);
}

StateDict detail::gather_full_state(const StateDict& state, ShardMap& shards, const ShardTargets* targets,
                                    FullStateOptions options) {
  auto& group = shards.group();
  StateFiles files(detail::shard_key, &shards, targets);
  detail::together(group, [&] {
    shards.refresh();
    (void)detail::tree_text(
        state, [&](const detail::StatePath& path, const Tensor& tensor) { return files.place(path, tensor); });
  });
  PartGathering parts(group, shards_in(files), /*to_all=*/!options.rank0_only);
  std::unordered_map<std::string, Tensor> whole;
  const auto keep = [&](const Tensor& part, Tensor tensor) {
    whole.emplace(detail::shard_key(part), std::move(tensor));
  };
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      for (const auto& file : files.files())
        for (const auto& item : file.items)
          if (item.place && !item.alias) keep(item.tensor, parts.whole(item.id));
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    parts.end();
  } else {
    parts.serve([&](const PartGathering::Part& part, Tensor tensor) { keep(part.tensor, std::move(tensor)); });
  }
  StateDict result;
  detail::together(group, [&] {
    if (failure) std::rethrow_exception(failure);
    if (options.rank0_only && group.rank() != 0) return;
    result = with_tensors(state, [&](const Tensor& tensor) {
               auto& known = whole[detail::shard_key(tensor)];
               if (!known.defined()) known = tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
               return known;
             }).to_dict();
  });
  return result;
}

StateDict full_state_dict(const torch::nn::Module& module, ShardMap& shards, FullStateOptions options) {
  return full_state_dict(module_state_dict(module), shards, options);
}

void detail::save_full(const fs::path& folder, const StateDict& state, const SaveOptions& options) {
  auto& group = options.shards->group();
  StateFiles files(shard_key, options.shards, options.targets);
  std::string tree;
  std::optional<AtomicFolder> target;
  together(group, [&] {
    options.shards->refresh();
    tree = tree_text(options.filter.empty() ? state : filtered(state, options.filter),
                     [&](const StatePath& path, const Tensor& tensor) { return files.place(path, tensor); });
    if (group.rank() != 0) return;
    check_replaceable(folder);
    target.emplace(folder);
  });
  PartGathering parts(group, shards_in(files));
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      auto manifest = new_manifest(options.world_size);
      for (const auto& file : files.files())
        write_whole_file(
            target->path(), file,
            [&](const StateFiles::Item& item) { return item.place ? parts.whole(item.id) : item.tensor; }, manifest);
      write_tree_and_manifest(target->path(), tree, manifest);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    parts.end();
  } else {
    parts.serve();
  }
  together(group, [&] {
    if (failure) std::rethrow_exception(failure);
    if (target) target->commit();
  });
}

}  // namespace levin
