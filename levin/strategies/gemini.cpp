#include "levin/strategies/gemini.h"

#include <algorithm>
#include <limits>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/host_memory.h"
#include "levin/nn/tie.h"
#include "levin/strategies/gemini/chunk_groups.h"
#include "levin/strategies/gemini/residency.h"

namespace levin {
namespace {

using detail::ChunkResidence;
using detail::GroupPlan;
using detail::PlacementPolicy;
using detail::ShardGroup;
using detail::ShardingPlan;

void check_fraction(const char* option, double value) {
  LEVIN_CHECK(value >= 0 && value <= 1, "[colossalai] ", option, " ", value, " is not allowed (0 to 1)");
}

/// Replaces each number by the greatest of all ranks.
void greatest(Collective& group, c10::Device device, std::vector<int64_t>& values) {
  if (group.size() == 1) return;
  auto together = at::tensor(values, at::kLong).to(device);
  group.all_reduce(together, ReduceOp::kMax);
  together = together.cpu();
  std::copy_n(together.const_data_ptr<int64_t>(), values.size(), values.begin());
}

bool can_compute_in(c10::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

/// `copies`: how often the shards of one rank are in memory until a chunk is put together from those of all.
ChunkResidence residence_of(const ShardGroup& group, bool keep, int copies) {
  ChunkResidence chunk{.name = group.name(), .keep = keep};
  if (group.whole()) return chunk;
  const auto& options = group.options();
  chunk.bytes = group.full_bytes();
  chunk.arriving_bytes = group.shard_bytes() / static_cast<int64_t>(c10::elementSize(*options.dtype)) *
                         static_cast<int64_t>(c10::elementSize(*options.param_dtype)) * copies;
  return chunk;
}

/// What the options ask for; an Error, one line, for what cannot be.
ShardingPlan plan_of(const GeminiOptions& options) {
  const auto policy = detail::placement_policy(options.placement_policy);
  check_fraction("shard_param_frac", options.shard_param_frac);
  check_fraction("offload_param_frac", options.offload_param_frac);
  check_fraction("offload_optim_frac", options.offload_optim_frac);
  check_fraction("warmup_non_model_data_ratio", options.warmup_non_model_data_ratio);
  check_fraction("steady_cuda_cap_ratio", options.steady_cuda_cap_ratio);
  check_fraction("gpu_margin_mem_ratio", options.gpu_margin_mem_ratio);
  const bool fractions =
      options.shard_param_frac != 1 || options.offload_param_frac != 0 || options.offload_optim_frac != 0;
  LEVIN_CHECK(!fractions || policy == PlacementPolicy::kStatic,
              "[colossalai] shard_param_frac, offload_param_frac and offload_optim_frac are for placement_policy "
              "\"static\", and it is \"",
              options.placement_policy, "\"");
  LEVIN_CHECK(options.gpu_margin_mem_ratio == 0 || policy == PlacementPolicy::kAuto,
              "[colossalai] gpu_margin_mem_ratio is for placement_policy \"auto\", and it is \"",
              options.placement_policy, "\"");
  LEVIN_CHECK(options.chunk_size >= 0 && options.search_range_m >= 0 && options.min_chunk_size_m >= 0 &&
                  options.hidden_dim >= 0 && options.memory_budget >= 0 && options.max_prefetch >= 0,
              "[colossalai] chunk_size, search_range_m, min_chunk_size_m, hidden_dim, memory_budget and max_prefetch "
              "must be 0 or more");
  LEVIN_CHECK(!options.param_dtype || can_compute_in(*options.param_dtype), "[colossalai] param_dtype ",
              c10::toString(options.param_dtype.value_or(at::kFloat)),
              " is not allowed (float32, float16 or bfloat16)");
  ShardingPlan plan;
  plan.name = "colossalai";
  plan.units = options.auto_wrap_policy;
  plan.mixed.param_dtype = options.param_dtype;
  plan.mixed.reduce_dtype = options.reduce_dtype;
  plan.mixed.accumulate_dtype = options.accumulate_dtype;
  plan.offload = policy == PlacementPolicy::kAuto || policy == PlacementPolicy::kCpu ||
                 std::max(options.offload_param_frac, options.offload_optim_frac) > 0;
  plan.pin_memory = plan.pin_gradients = options.pin_memory;
  plan.checkpointing = options.activation_checkpointing_policy;
  plan.optimizer_in_backward = options.optimizer_in_backward;
  plan.sync_batchnorm = options.sync_batchnorm;
  plan.saves_full = detail::is_full("colossalai", options.state_dict_type);
  plan.collective = {.backend = options.process_group_backend, .timeout = options.timeout};
  return plan;
}

}  // namespace

namespace detail {

std::vector<bool> first_part(const std::vector<int64_t>& bytes, double fraction) {
  double total = 0, before = 0;
  for (const auto each : bytes) total += static_cast<double>(each);
  std::vector<bool> chosen;
  for (const auto each : bytes) {
    chosen.push_back(before + static_cast<double>(each) / 2 <= fraction * total);
    before += static_cast<double>(each);
  }
  return chosen;
}

std::vector<bool> returning(const std::vector<int64_t>& bytes, int64_t free_bytes) {
  std::vector<bool> chosen;
  for (const auto each : bytes) {
    chosen.push_back(each <= free_bytes);
    if (chosen.back()) free_bytes -= each;
  }
  return chosen;
}

}  // namespace detail

/// Optimizers whose states move with the chunks.
struct GeminiStrategy::Optimizers {
  std::vector<std::weak_ptr<OptimizerImpl>> all;
};

GeminiStrategy::GeminiStrategy(const GeminiOptions& options)
    : ShardedStrategy(plan_of(options)),
      options_(options),
      policy_(detail::placement_policy(options.placement_policy)),
      optimizers_(std::make_shared<Optimizers>()) {}

std::unique_ptr<Strategy> strategy_of(const GeminiOptions& options) {
  return std::make_unique<GeminiStrategy>(options);
}

std::vector<NamedStrategy> GeminiStrategy::names() {
  return {named_strategy("colossalai", GeminiOptions{}, GeminiOptions{.placement_policy = "cpu"})};
}

StateLayout GeminiStrategy::layout_over(int world) const {
  auto layout = ShardedStrategy::layout_over(world);
  // Of state that is on the host by a fraction, the larger part counts.
  const bool on_host = policy_ == PlacementPolicy::kStatic ? host_fraction() >= 0.5 : plan_.offload;
  layout.parameters_on_host = layout.gradients_on_host = layout.optimizer_on_host = on_host;
  layout.keeps_float = true;
  layout.plan_groups = [options = options_, ranks = layout.ranks](const auto& params, size_t units) {
    return detail::group_in_chunks(params, units, options, ranks).groups;
  };
  layout.make_residency = [options = options_, policy = policy_](const auto& groups, const GroupPlan& plan) {
    // With enough room, which "auto" finds out, chunks stay gathered from forward to backward.
    const bool stays = policy == PlacementPolicy::kAuto || options.shard_param_frac < 0.5;
    std::vector<ChunkResidence> chunks(groups.size());
    for (auto& chunk : chunks) chunk.keep = plan.stays_gathered;
    return std::make_unique<detail::GeminiResidency>(
        groups, std::move(chunks),
        detail::PlacementOptions{.policy = stays ? PlacementPolicy::kCuda : policy,
                                 .max_prefetch = options.max_prefetch},
        nullptr);
  };
  return layout;
}

std::optional<c10::ScalarType> GeminiStrategy::compute_dtype() const {
  if (options_.param_dtype) return options_.param_dtype;
  return precision_.autocast ? precision_.autocast : precision_.params;
}

c10::ScalarType GeminiStrategy::shard_dtype(c10::ScalarType own) const {
  const auto dtype = compute_dtype();
  if (!dtype) return own;
  return *dtype == at::kDouble ? at::kDouble : at::kFloat;
}

double GeminiStrategy::host_fraction() const {
  switch (policy_) {
    case detail::PlacementPolicy::kAuto:
    case detail::PlacementPolicy::kCpu:
      return 1;
    case detail::PlacementPolicy::kCuda:
      return 0;
    case detail::PlacementPolicy::kStatic:
      break;
  }
  // The optimizer steps the shards that parameters are gathered from: they are in one place.
  return std::max(options_.offload_param_frac, options_.offload_optim_frac);
}

GroupPlan GeminiStrategy::plan_groups(const std::vector<detail::GroupedParam>& params, size_t units) {
  auto grouped = detail::group_in_chunks(params, units, options_, ranks_->size());
  chunks_ = std::move(grouped.chunks);
  keep_gathered_ = grouped.groups.stays_gathered;
  std::vector<int64_t> sizes;
  for (const auto& chunk : chunks_.chunks) sizes.push_back(chunk.occupied);
  on_host_ = detail::first_part(sizes, host_fraction());
  return std::move(grouped.groups);
}

detail::GroupOptions GeminiStrategy::options_of_group(const GroupPlan& plan, size_t group) const {
  const auto computed = compute_dtype();
  auto options = ShardedStrategy::options_of_group(plan, group);
  options.offload = on_host_[group];
  options.param_dtype = computed ? computed : options.dtype;
  options.grad_dtype = options.offload && computed == at::kBFloat16 ? computed : options.dtype;
  return options;
}

void GeminiStrategy::check_host_memory(const torch::nn::Module& module) const {
  using namespace detail;
  const auto width = [](c10::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  const int ranks = ranks_->size();
  int64_t total = 0;
  for (const auto& param : named_unique_parameters(module)) {
    const auto kept = shard_dtype(param.tensor.scalar_type()), computed = compute_dtype().value_or(kept);
    // The shard, its copy in the dtype of the computation, a gradient, exp_avg and exp_avg_sq.
    const auto each = width(kept) + (computed == kept ? 0 : width(computed)) + width(computed) + 2 * width(kept);
    total += ChunkParam{param.name, param.tensor.sizes().vec()}.padded_numel(ranks) / ranks * each;
  }
  const auto bytes = static_cast<int64_t>(host_fraction() * static_cast<double>(total));
  const auto needed = bytes * ranks_on_this_node(*group_);
  const auto available = available_host_memory().value_or(std::numeric_limits<int64_t>::max());
  // Ranks of different nodes must come to the same end.
  std::vector<int64_t> most{needed - available, needed};
  greatest(*group_, device_, most);
  LEVIN_CHECK(most[0] <= 0, "[colossalai] the training state needs ", most[1], " bytes (",
              format_bytes(static_cast<double>(most[1])), ") of host memory on a node, ",
              format_bytes(static_cast<double>(most[0])),
              " more than there is; use more nodes, or keep more on the device: placement_policy \"cuda\", or "
              "\"static\" with a smaller offload_optim_frac");
}

std::unique_ptr<detail::Residency> GeminiStrategy::make_residency(const Sharded& sharded) {
  using namespace detail;
  std::vector<ShardGroup*> groups;
  std::vector<int64_t> sizes;
  for (const auto& group : sharded.groups) {
    groups.push_back(group.get());
    sizes.push_back(group->full_bytes());
  }
  std::vector<bool> keep(groups.size(), keep_gathered_);
  if (policy_ == PlacementPolicy::kStatic) {
    const auto divides = first_part(sizes, options_.shard_param_frac);
    for (size_t i = 0; i < keep.size(); ++i) keep[i] = keep[i] || !divides[i];
  }
  PlacementOptions options{.policy = policy_,
                           .warmup_model_ratio = 1 - options_.warmup_non_model_data_ratio,
                           .steady_ratio = options_.steady_cuda_cap_ratio,
                           .max_prefetch = options_.max_prefetch};
  if (group_->size() > 1)
    options.max_over_ranks = [group = group_, device = device_](auto& values) { greatest(*group, device, values); };
  std::unique_ptr<MemorySource> source;
  if (policy_ == PlacementPolicy::kAuto) {
    std::vector<int64_t> smallest{
        -(options_.memory_budget ? options_.memory_budget : accelerator_of(device_).info(device_).total_memory)};
    greatest(*group_, device_, smallest);
    options.capacity = -smallest[0];
    source = make_memory_source(device_);
  }
  if (options_.gpu_margin_mem_ratio > 0)
    options.after_record = [groups, optimizers = optimizers_, ratio = options_.gpu_margin_mem_ratio,
                            capacity = options.capacity](int64_t peak) {
      std::vector<int64_t> states;
      // A shard, two moments of its size, and its gradient.
      for (const auto* group : groups) states.push_back(4 * group->shard_bytes());
      const auto free_bytes = static_cast<int64_t>(ratio * static_cast<double>(std::max<int64_t>(0, capacity - peak)));
      const auto back = returning(states, free_bytes);
      for (auto* group : groups) group->show_shards();
      for (size_t i = 0; i < groups.size(); ++i)
        if (back[i]) groups[i]->set_offload(false);
      // States are put where their parameters are.
      for (const auto& each : optimizers->all)
        if (const auto optimizer = each.lock()) optimizer->load_state_dict(optimizer->state_dict());
      for (auto* group : groups) group->show_full();
    };
  // Gloo gathers into memory of its own and copies from there.
  const int ranks = ranks_->size();
  const auto process_group = ranks_->process_group();
  const int copies = !process_group ? 0 : process_group->getBackendType() == c10d::ProcessGroup::NCCL ? 1 : 2;
  std::vector<ChunkResidence> chunks;
  for (size_t i = 0; i < groups.size(); ++i) chunks.push_back(residence_of(*groups[i], keep[i], ranks * copies));
  return std::make_unique<GeminiResidency>(Residency::Groups(groups.begin(), groups.end()), std::move(chunks),
                                           std::move(options), std::move(source));
}

Optimizer GeminiStrategy::setup_optimizer(Optimizer optimizer) {
  auto result = ShardedStrategy::setup_optimizer(std::move(optimizer));
  optimizers_->all.push_back(result.impl());
  return result;
}

}  // namespace levin
