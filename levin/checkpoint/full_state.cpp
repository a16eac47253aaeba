// Full tensors on rank 0, from the shards that ranks hold, one at a time.
#include <map>
#include <optional>
#include <span>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/state_files.h"
#include "levin/checkpoint/together.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/main.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

using detail::StateFiles;

Tensor bytes_view(const Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

/// Rank 0 asks for tensors by id, and the others answer until it has all. Only rank 0 fails: the others continue until
/// they are told.
class PartGathering {
 public:
  PartGathering(Collective& group, const StateFiles& files) : group_(group) {
    for (const auto& file : files.files())
      for (const auto& item : file.items)
        if (item.place) parts_.emplace(item.id, &item);
  }

  /// On rank 0: the full tensor, on the CPU.
  Tensor whole(const StateFiles::Item& item) {
    broadcast_string(group_, kNext + item.id);
    Tensor whole;
    LEVIN_CHECK(gather(&item, &whole), "[full_state] the shards of \"", item.id, "\" on the ranks are not one tensor");
    return whole;
  }
  /// On rank 0: no more will be asked.
  void end() { broadcast_string(group_, std::string(1, kEnd)); }
  /// On the others: sends what is asked for, and calls `sent` after each.
  void serve(const std::function<void(const StateFiles::Item&)>& sent) {
    for (;;) {
      const auto asked = broadcast_string(group_, {});
      if (asked[0] == kEnd) return;
      const auto found = parts_.find(asked.substr(1));
      const auto* item = found == parts_.end() ? nullptr : found->second;
      if (gather(item, nullptr) && item) sent(*item);
    }
  }

 private:
  static constexpr char kNext = '+';
  static constexpr char kEnd = '.';

  /// Whether the shards fit together: every rank sees the same figures, and so comes to the same end.
  bool gather(const StateFiles::Item* item, Tensor* whole) {
    const at::NoGradGuard no_grad;
    const bool sends = item && item->place->writes && item->tensor.numel() > 0;
    const bool empty = item && c10::multiply_integers(item->place->sizes) == 0;
    const auto all = group_.all_gather(at::tensor(
        {sends ? item->place->start : 0, sends ? detail::rows_of(item->tensor) : 0,
         item && !empty ? item->place->whole_rows() : 0, item ? static_cast<int64_t>(item->tensor.scalar_type()) : -1},
        at::kLong));
    struct Row {
      int64_t start, rows, whole, dtype;
    };
    static_assert(sizeof(Row) == 4 * sizeof(int64_t));
    const std::span told(reinterpret_cast<const Row*>(all.const_data_ptr<int64_t>()),
                         static_cast<size_t>(group_.size()));
    std::map<int64_t, int64_t> pieces;
    bool fit = true;
    for (const auto& [start, rows, whole_rows, dtype] : told) {
      if (rows == 0) continue;
      fit = fit && dtype == told[0].dtype && whole_rows == told[0].whole && pieces.emplace(start, rows).second;
    }
    int64_t reached = 0;
    for (const auto& [start, rows] : pieces) {
      fit = fit && start == reached;
      reached = start + rows;
    }
    if (!fit || reached != told[0].whole) return false;
    if (!whole) {
      if (sends) send(item->tensor);
      return true;
    }
    *whole = at::empty(item->place->sizes, at::TensorOptions().dtype(item->tensor.scalar_type()));
    auto by_rows = whole->dim() == 0 ? whole->view({1}) : *whole;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const auto& piece = told[static_cast<size_t>(rank)];
      if (piece.rows == 0) continue;
      auto into = by_rows.narrow(0, piece.start, piece.rows);
      if (rank == 0)
        into.copy_(item->tensor.detach().reshape(into.sizes()));
      else
        receive(into, rank);
    }
    return true;
  }

  void send(const Tensor& tensor) {
    group_.run("gather", [&](c10d::ProcessGroup& ranks) {
      std::vector<Tensor> sent{bytes_view(tensor.detach().cpu().contiguous())};
      ranks.getBackend(c10::DeviceType::CPU)->send(sent, 0, 0)->wait();
    });
  }
  void receive(const Tensor& into, int rank) {
    group_.run("gather", [&](c10d::ProcessGroup& ranks) {
      std::vector<Tensor> received{bytes_view(into)};
      ranks.getBackend(c10::DeviceType::CPU)->recv(received, rank, 0)->wait();
    });
  }

  Collective& group_;
  std::unordered_map<std::string, const StateFiles::Item*> parts_;
};

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
  PartGathering parts(group, files);
  std::unordered_map<std::string, Tensor> whole;
  const auto share = [&](const StateFiles::Item& item, Tensor tensor) {
    if (!options.rank0_only) group.broadcast(tensor);
    whole.emplace(detail::shard_key(item.tensor), std::move(tensor));
  };
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      for (const auto& file : files.files())
        for (const auto& item : file.items)
          if (item.place && !item.alias) share(item, parts.whole(item));
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    parts.end();
  } else {
    parts.serve([&](const StateFiles::Item& item) {
      if (options.rank0_only) return;
      share(item, at::empty(item.place->sizes, at::TensorOptions().dtype(item.tensor.scalar_type())));
    });
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
  PartGathering parts(group, files);
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      auto manifest = new_manifest(options.world_size);
      for (const auto& file : files.files())
        write_whole_file(
            target->path(), file,
            [&](const StateFiles::Item& item) { return item.place ? parts.whole(item) : item.tensor; }, manifest);
      write_tree_and_manifest(target->path(), tree, manifest);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    parts.end();
  } else {
    parts.serve([](const StateFiles::Item&) {});
  }
  together(group, [&] {
    if (failure) std::rethrow_exception(failure);
    if (target) target->commit();
  });
}

}  // namespace levin
