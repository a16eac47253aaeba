// Fabric's collectives and checkpoints: what every rank must call.
#include <torch/csrc/autograd/custom_function.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/core/error.h"
#include "levin/fabric/fabric.h"
#include "levin/fabric/fabric_core.h"

namespace levin {
namespace {

// The gradient of a gathered value: every rank's gradient of this rank's shard, added up.
struct GatherWithGrad : torch::autograd::Function<GatherWithGrad> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& tensor, int64_t group) {
    context->saved_data["group"] = group;
    return reinterpret_cast<Collective*>(group)->all_gather(tensor);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    auto* group = reinterpret_cast<Collective*>(context->saved_data["group"].toInt());
    auto whole = gradients[0].contiguous().clone();
    group->all_reduce(whole, ReduceOp::kSum);
    return {whole[group->rank()], Tensor()};
  }
};

/// Those that the program still has, for the time of one save or load.
struct LiveGenerators {
  explicit LiveGenerators(const std::vector<std::weak_ptr<detail::GeneratorStates>>& known) {
    for (const auto& weak : known)
      if (auto states = weak.lock()) all.push_back(std::move(states));
    forget();
  }
  ~LiveGenerators() { forget(); }
  void forget() const {
    for (const auto& each : all) each->forget();
  }
  std::vector<std::shared_ptr<detail::GeneratorStates>> all;
};

/// Null when every rank holds all of everything, or is not there yet.
ShardMap* shard_map(Strategy* strategy) {
  return strategy ? strategy->shards() : nullptr;
}

}  // namespace

void Fabric::wait_for_first() {
  if (world_size() > 1) strategy().group().barrier_without_timeout("rank_zero_first");
}

void Fabric::barrier(std::string_view name) {
  if (world_size() > 1) strategy().group().barrier(name);
}

std::string Fabric::broadcast_text(std::string text, int src) {
  return world_size() > 1 ? levin::broadcast_string(strategy().group(), std::move(text), src) : text;
}

Tensor Fabric::broadcast_tensor(const Tensor& tensor, int src) {
  if (world_size() == 1) return tensor;
  auto& group = strategy().group();
  LEVIN_CHECK(src >= 0 && src < group.size(), "[fabric.broadcast] rank ", src, " does not exist (0 to ",
              group.size() - 1, ")");
  // The shape and dtype of the source, in a tensor of fixed length: ranks may hold another shape, or nothing.
  constexpr int64_t kMaxDims = 14;
  auto header = at::zeros({kMaxDims + 2}, at::kLong);
  if (group.rank() == src) {
    LEVIN_CHECK(tensor.defined() && tensor.dim() <= kMaxDims,
                "[fabric.broadcast] the source tensor is empty or has too many dimensions");
    header[0] = static_cast<int64_t>(tensor.scalar_type());
    header[1] = tensor.dim();
    for (int64_t i = 0; i < tensor.dim(); ++i) header[i + 2] = tensor.size(i);
  }
  header = header.to(device());
  group.broadcast(header, src);
  header = header.cpu();
  const auto* values = header.const_data_ptr<int64_t>();
  auto result = group.rank() == src
                    ? tensor.detach().to(device()).contiguous().clone()
                    : at::empty(at::IntArrayRef(values + 2, values[1]),
                                at::TensorOptions().device(device()).dtype(static_cast<c10::ScalarType>(values[0])));
  group.broadcast(result, src);
  return result;
}

Tensor Fabric::gather_tensor(const Tensor& tensor, bool sync_grads) {
  if (world_size() == 1) return tensor.unsqueeze(0);
  auto& group = strategy().group();
  auto here = tensor.to(device());
  if (sync_grads && here.requires_grad()) return GatherWithGrad::apply(here, reinterpret_cast<int64_t>(&group));
  at::NoGradGuard no_grad;
  return group.all_gather(here.detach());
}

void Fabric::reduce_tensor(Tensor& tensor, std::string_view op) {
  const auto resolved = reduce_op(op);
  if (world_size() == 1 || !tensor.defined()) return;
  at::NoGradGuard no_grad;
  strategy().group().all_reduce(tensor, resolved);
}

void Fabric::save(const std::string& path, const State& state, const Filter& filter) {
  save(path, state, SaveOptions{.filter = filter});
}

void Fabric::save(const std::string& path, const State& state, const SaveOptions& options) {
  State all = state;
  const auto fp8 = fp8_state();
  StateDict histories;
  if (!fp8.empty()) {
    histories = fp8.gathered(fp8.state_dict());
    all.add(detail::kFp8State, histories);
  }
  const LiveGenerators generators(core_->generators);
  for (const auto& each : generators.all) each->gather();
  save_with(options, [&](const SaveOptions& ours) { save_checkpoint(path, all, ours); });
}

void Fabric::save_tree(const std::string& path, const StateDict& state, const SaveOptions& options) {
  save_with(options, [&](const SaveOptions& ours) { save_checkpoint(path, state, ours); });
}

void Fabric::save_with(SaveOptions options, const std::function<void(const SaveOptions&)>& write) {
  options.world_size = world_size();
  options.shards = shard_map(core_->strategy.get());
  if (!options.format) options.format = checkpoint_format();
  // Ranks that have shards write together, and agree on the result.
  if (options.shards) return write(options);
  std::string failure;
  if (is_global_zero()) {
    try {
      write(options);
    } catch (const std::exception& error) {
      if (world_size() == 1) throw;
      failure = one_line(error);
    }
  }
  // Every rank learns how it went, so that all of them stop with the same line when the disk is full.
  failure = broadcast_text(std::move(failure), 0);
  LEVIN_CHECK(failure.empty(), failure);
}

StateDict Fabric::load(const std::string& path, const State& state, LoadOptions options) {
  barrier("load " + path);
  if (!options.shards) options.shards = shard_map(core_->strategy.get());
  if (!options.format) options.format = checkpoint_format();
  if (world_size() > 1) options.group = &strategy().group();
  ++core_->version;
  State all = state;
  auto fp8 = fp8_state();
  if (!fp8.empty()) {
    all.add(detail::kFp8State, fp8);
    options.optional.emplace_back(detail::kFp8State);
  }
  const LiveGenerators generators(core_->generators);
  auto rest = load_checkpoint(path, all, options);
  // Last: what was loaded after them may have drawn.
  bool restored = false;
  for (const auto& each : generators.all) restored = each->restore() || restored;
  if (restored && core_->strategy) core_->strategy->share_random_state();
  return rest;
}

StateDict Fabric::load(const std::string& path) {
  return load(path, State{});
}

void Fabric::load_raw(const std::string& path, const StateRef& target, const RawOptions& options) {
  barrier("load_raw " + path);
  auto together = options;
  if (!together.shards) together.shards = shard_map(core_->strategy.get());
  if (!together.format) together.format = checkpoint_format();
  if (world_size() > 1) together.group = &strategy().group();
  ++core_->version;
  levin::load_raw(path, target, together);
}

}  // namespace levin
