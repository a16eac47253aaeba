#include "levin/strategies/zero.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {
namespace {

using detail::is_full;
using detail::ShardingPlan;

void check_offload(const char* what, const ZeroOffload& offload) {
  static const std::vector<std::string> kDevices{"none", "cpu", "nvme"};
  if (std::find(kDevices.begin(), kDevices.end(), offload.device) == kDevices.end())
    fail_unknown("deepspeed", std::string(what) + ".device", offload.device, kDevices);
  LEVIN_CHECK(offload.device != "nvme" || !offload.nvme_path.empty(), "[deepspeed] ", what,
              " to \"nvme\" needs a folder: set nvme_path");
}

/// What the options ask for; an Error, one line, for what cannot be.
ShardingPlan plan_of(const ZeroOptions& options) {
  LEVIN_CHECK(options.stage >= 1 && options.stage <= 3, "[deepspeed] stage ", options.stage,
              " is not allowed (1, 2 or 3; \"ddp\" is what stage 0 would be)");
  check_offload("offload_optimizer", options.offload_optimizer);
  check_offload("offload_param", options.offload_param);
  const bool moves_params = options.offload_param.device != "none";
  const bool moves_optimizer = options.offload_optimizer.device != "none";
  LEVIN_CHECK(!moves_params || options.stage == 3, "[deepspeed] offload_param needs stage 3, and it is stage ",
              options.stage, "; offload_optimizer is possible there");
  LEVIN_CHECK(!moves_params || moves_optimizer,
              "[deepspeed] offload_param needs offload_optimizer: the parameters are updated where they are");
  LEVIN_CHECK(options.reduce_bucket_size > 0 && options.allgather_bucket_size > 0 &&
                  options.stage3_prefetch_bucket_size >= 0 && options.stage3_param_persistence_threshold >= 0 &&
                  options.stage3_max_live_parameters > 0,
              "[deepspeed] bucket sizes and stage3_max_live_parameters must be more than 0");
  ShardingPlan plan;
  plan.name = fmt::format("deepspeed_stage_{}", options.stage);
  plan.units = options.auto_wrap_policy;
  plan.keeps_full = options.stage < 3;
  plan.reduces_at_end = options.stage == 1;
  plan.grads_as_computed = options.stage < 3;
  plan.mixed.reduce_dtype = options.communication_data_type;
  plan.mixed.accumulate_dtype = options.grad_accum_dtype;
  plan.residency.releases_after_forward = options.stage == 3;
  plan.residency.releases_after_backward = options.stage == 3;
  plan.residency.forward_prefetch = plan.residency.backward_prefetch = options.overlap_comm ? 1 : 0;
  if (options.stage == 3) {
    plan.residency.most_ahead = options.stage3_prefetch_bucket_size;
    plan.residency.most_live = options.stage3_max_live_parameters;
    constexpr int kMany = 1 << 20;  // units: the elements are what is limited
    const bool ahead = options.overlap_comm && options.stage3_prefetch_bucket_size > 0;
    plan.residency.forward_prefetch = plan.residency.backward_prefetch = ahead ? kMany : 0;
    plan.persistence_threshold = options.stage3_param_persistence_threshold;
  }
  plan.most_together = options.stage == 3 ? options.reduce_bucket_size
                                          : std::min(options.reduce_bucket_size, options.allgather_bucket_size);
  plan.offload = moves_optimizer;
  plan.keeps_device_shards = options.stage == 3 && moves_optimizer && !moves_params;
  // What is sent to the device are offloaded parameters, or what the optimizer has stepped.
  plan.pin_memory = moves_params ? options.offload_param.pin_memory : options.offload_optimizer.pin_memory;
  plan.pin_gradients = options.offload_optimizer.pin_memory;
  if (options.offload_param.device == "nvme") plan.param_folder = options.offload_param.nvme_path;
  if (options.offload_optimizer.device == "nvme") plan.optimizer_folder = options.offload_optimizer.nvme_path;
  plan.checkpointing = options.activation_checkpointing_policy;
  plan.checkpoints_on_host = options.cpu_checkpointing;
  plan.optimizer_in_backward = options.optimizer_in_backward;
  plan.updates_in_place = moves_params && options.optimizer_in_backward && plan.param_folder.empty();
  plan.sync_batchnorm = options.sync_batchnorm;
  plan.saves_full = is_full("deepspeed", options.state_dict_type);
  plan.collective = {.backend = options.process_group_backend, .timeout = options.timeout};
  return plan;
}

ZeroOptions stage(int number, bool offload) {
  ZeroOptions options{.stage = number};
  if (offload) options.offload_optimizer.device = "cpu";
  if (offload && number == 3) options.offload_param.device = "cpu";
  return options;
}

}  // namespace

ZeroStrategy::ZeroStrategy(const ZeroOptions& options) : ShardedStrategy(plan_of(options)) {}

std::unique_ptr<Strategy> strategy_of(const ZeroOptions& options) {
  return std::make_unique<ZeroStrategy>(options);
}

std::vector<NamedStrategy> ZeroStrategy::names() {
  std::vector<NamedStrategy> names{named_strategy("deepspeed", stage(2, false), stage(2, true))};
  for (const int number : {1, 2, 3}) {
    const auto name = fmt::format("deepspeed_stage_{}", number);
    names.push_back(named_strategy(name, stage(number, false), stage(number, true)));
    names.push_back(named_strategy(name + "_offload", stage(number, true), stage(number, true)));
  }
  return names;
}

}  // namespace levin
