#include "levin/strategies/fsdp.h"

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {
namespace {

using detail::is_full;
using detail::ShardingPlan;

/// What the options ask for; an Error, one line, for what cannot be.
ShardingPlan plan_of(const FsdpOptions& options) {
  static const std::vector<std::string> kKinds{"full", "grad_op", "none", "hybrid"};
  const auto& kind = options.sharding_strategy;
  if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end())
    fail_unknown("fsdp", "sharding_strategy", kind, kKinds);
  LEVIN_CHECK(kind != "none" || !options.cpu_offload,
              "[fsdp] cpu_offload needs parameters that are sharded; set sharding_strategy \"full\", or leave "
              "cpu_offload out");
  LEVIN_CHECK(options.hybrid_size == 0 || kind == "hybrid", "[fsdp] hybrid_size ", options.hybrid_size,
              " is for sharding_strategy \"hybrid\", and it is \"", kind, "\"");
  LEVIN_CHECK(options.hybrid_size >= 0, "[fsdp] hybrid_size ", options.hybrid_size, " is not allowed (0 or more)");
  LEVIN_CHECK(options.forward_prefetch >= 0 && options.backward_prefetch >= 0 && options.limit_all_gathers >= 0,
              "[fsdp] forward_prefetch, backward_prefetch and limit_all_gathers must be 0 or more");
  LEVIN_CHECK(!options.activation_cpu_offload || options.activation_checkpointing_policy,
              "[fsdp] activation_cpu_offload needs an activation_checkpointing_policy: it moves what checkpointed "
              "units keep");
  ShardingPlan plan;
  plan.name = "fsdp";
  plan.units = options.auto_wrap_policy;
  plan.shard_size = kind == "none" ? 1 : options.hybrid_size;
  plan.hybrid_by_node = kind == "hybrid" && options.hybrid_size == 0;
  plan.keeps_full = kind == "none";
  plan.residency.releases_after_forward = options.reshard_after_forward.value_or(kind == "full" || kind == "hybrid");
  plan.residency.releases_after_backward = kind != "none";
  plan.residency.forward_prefetch = options.forward_prefetch;
  plan.residency.backward_prefetch = options.backward_prefetch;
  if (options.limit_all_gathers > 0) {
    plan.residency.forward_prefetch = std::min(options.forward_prefetch, options.limit_all_gathers - 1);
    plan.residency.backward_prefetch = std::min(options.backward_prefetch, options.limit_all_gathers - 1);
  }
  plan.mixed = options.mixed_precision;
  plan.offload = options.cpu_offload;
  plan.pin_memory = plan.pin_gradients = options.pin_memory;
  plan.checkpointing = options.activation_checkpointing_policy;
  plan.checkpoints_on_host = options.activation_cpu_offload;
  plan.optimizer_in_backward = options.optimizer_in_backward;
  plan.updates_in_place = options.cpu_offload && options.optimizer_in_backward;
  plan.sync_batchnorm = options.sync_batchnorm;
  plan.saves_full = is_full("fsdp", options.state_dict_type);
  plan.broadcast = options.sync_module_states;
  plan.collective = {.backend = options.process_group_backend, .timeout = options.timeout};
  return plan;
}

}  // namespace

FsdpStrategy::FsdpStrategy(const FsdpOptions& options) : ShardedStrategy(plan_of(options)) {}

FsdpStrategy::FsdpStrategy(FsdpOptions options, int ranks)
    : ShardedStrategy([&] {
        if (ranks == 1 && !options.cpu_offload) options.sharding_strategy = "none";
        auto plan = plan_of(options);
        plan.shard_size = ranks;
        return plan;
      }()) {}

std::unique_ptr<Strategy> strategy_of(const FsdpOptions& options) {
  return std::make_unique<FsdpStrategy>(options);
}

std::vector<NamedStrategy> FsdpStrategy::names() {
  const FsdpOptions offloaded{.cpu_offload = true};
  return {named_strategy("fsdp", FsdpOptions{}, offloaded), named_strategy("fsdp_cpu_offload", offloaded, offloaded)};
}

}  // namespace levin
