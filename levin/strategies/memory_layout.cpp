#include <algorithm>
#include <array>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/strategies/memory_step.h"
#include "levin/strategies/sharding_options.h"

namespace levin {
namespace {

struct NamedLayout {
  const char* name;
  StateLayout layout;
  /// What --offload makes of it; null: it keeps everything on the device.
  void (*offload)(StateLayout&) = nullptr;
};

void offload_all(StateLayout& layout) {
  layout.parameters_on_host = layout.gradients_on_host = layout.optimizer_on_host = true;
}
/// Gradients go to where they are used.
void offload_optimizer(StateLayout& layout) {
  layout.gradients_on_host = layout.optimizer_on_host = true;
}

constexpr StateLayout kFsdpLayout{
    .shards_parameters = true, .shards_gradients = true, .shards_optimizer = true, .casts_parameters = true};
constexpr StateLayout kZero1Layout{.shards_optimizer = true, .casts_parameters = true, .master_weights = true};
constexpr StateLayout kZero2Layout{
    .shards_gradients = true, .shards_optimizer = true, .casts_parameters = true, .master_weights = true};
constexpr StateLayout kGeminiLayout{.shards_parameters = true,
                                    .shards_gradients = true,
                                    .shards_optimizer = true,
                                    .casts_parameters = true,
                                    .master_weights = true,
                                    .gradients_replace_parameters = true};

constexpr std::array kLayouts{
    NamedLayout{"single_device", {}},
    NamedLayout{"ddp", {.gradient_buckets = true}},
    NamedLayout{"fsdp", kFsdpLayout, offload_all},
    NamedLayout{"deepspeed_stage_1", kZero1Layout, offload_optimizer},
    NamedLayout{"deepspeed_stage_2", kZero2Layout, offload_optimizer},
    NamedLayout{"deepspeed_stage_3", kFsdpLayout, offload_all},
    NamedLayout{"colossalai", kGeminiLayout, offload_all},
};
constexpr std::string_view kOffloadEnd = "_offload";

void check_ranks(int ranks) {
  LEVIN_CHECK(ranks >= 1, "[estimate_memory] world_size ", ranks, " is not allowed (1 or more)");
}

}  // namespace

std::vector<std::string> known_layouts() {
  std::vector<std::string> names{"auto"};
  for (const auto& each : kLayouts) {
    names.emplace_back(each.name);
    if (std::string_view(each.name).starts_with("deepspeed")) names.push_back(each.name + std::string(kOffloadEnd));
  }
  return names;
}

StateLayout state_layout(const std::string& strategy, int ranks, bool offload) {
  check_ranks(ranks);
  std::string name = strategy == "auto" ? ranks > 1 ? "ddp" : "single_device" : strategy;
  if (name.starts_with("deepspeed") && name.ends_with(kOffloadEnd)) {
    name.resize(name.size() - kOffloadEnd.size());
    offload = true;
  }
  for (const auto& each : kLayouts) {
    if (name != each.name) continue;
    LEVIN_CHECK(!offload || each.offload, "[estimate_memory] strategy \"", name,
                "\" keeps all state on the device and cannot offload it (fsdp, deepspeed_stage_1 to 3 and colossalai "
                "can)");
    LEVIN_CHECK(name != "single_device" || ranks == 1,
                "[estimate_memory] strategy \"single_device\" is for one process, "
                "not for ",
                ranks, " (ddp, fsdp, ... are for more)");
    auto layout = each.layout;
    layout.ranks = ranks;
    if (offload) each.offload(layout);
    return layout;
  }
  fail_unknown("estimate_memory", "strategy", strategy, known_layouts());
}

StateLayout state_layout(const FsdpOptions& options, int ranks) {
  if (options.sharding_strategy == "none") return state_layout("ddp", ranks);
  auto layout = state_layout("fsdp", ranks, options.cpu_offload);
  if (options.sharding_strategy == "hybrid" && options.hybrid_size > 0) layout.ranks = options.hybrid_size;
  layout.keeps_gathered = !options.reshard_after_forward.value_or(options.sharding_strategy != "grad_op");
  layout.prefetch = std::max(options.forward_prefetch, options.backward_prefetch);
  if (options.limit_all_gathers > 0) layout.prefetch = std::min(layout.prefetch, options.limit_all_gathers - 1);
  return layout;
}

StateLayout state_layout(const ZeroOptions& options, int ranks) {
  LEVIN_CHECK(options.stage >= 1 && options.stage <= 3, "[estimate_memory] ZeRO has no stage ", options.stage,
              " (1, 2, 3)");
  auto layout = state_layout("deepspeed_stage_" + std::to_string(options.stage), ranks);
  if (options.offload_optimizer.device != "none") offload_optimizer(layout);
  layout.parameters_on_host = options.stage == 3 && options.offload_param.device != "none";
  return layout;
}

StateLayout state_layout(const GeminiOptions& options, int ranks) {
  auto layout = state_layout("colossalai", ranks, options.placement_policy == "cpu");
  if (options.placement_policy == "static") {
    layout.shards_parameters = options.shard_param_frac >= 0.5;
    layout.parameters_on_host = options.offload_param_frac >= 0.5;
    layout.gradients_on_host = layout.optimizer_on_host = options.offload_optim_frac >= 0.5;
  }
  layout.prefetch = options.max_prefetch;
  return layout;
}

namespace detail {
namespace {

const std::array kOptimizerShapes{
    OptimizerShape{"adam", 2, true, 0, false},     OptimizerShape{"adamw", 2, true, 0, false},
    OptimizerShape{"sgd", 0, false, 0, false},     OptimizerShape{"sgd_momentum", 1, false, 0, false},
    OptimizerShape{"adagrad", 1, true, 0, false},  OptimizerShape{"lion", 1, false, 1, false},
    OptimizerShape{"adafactor", 0, true, 0, true},
};

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t all = 1;
  for (const auto n : sizes) all *= n;
  return all;
}

}  // namespace

const OptimizerShape& optimizer_shape(const std::string& name) {
  std::string lower;
  for (const char c : name) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& each : kOptimizerShapes)
    if (each.name == lower) return each;
  fail_unknown("estimate_memory", "optimizer", name, known_memory_optimizers());
}

int64_t optimizer_numel(const OptimizerShape& shape, const std::vector<int64_t>& sizes) {
  const auto numel = product(sizes);
  if (!shape.factored) return shape.slots * numel;
  if (sizes.size() < 2 || numel == 0) return numel;
  return numel / sizes.back() + numel / sizes[sizes.size() - 2];
}

StateWidths state_widths(const StateLayout& layout, const PrecisionPlan& precision) {
  const auto width = [](c10::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  const auto kept = width(precision.params.value_or(at::kFloat));
  if (!precision.autocast || !layout.casts_parameters) return {kept, kept, kept, kept};
  const auto computed = width(*precision.autocast);
  return layout.master_weights ? StateWidths{computed, computed, computed, 4} : StateWidths{4, computed, 4, 4};
}

bool keeps_master(const StateLayout& layout, const PrecisionPlan& precision) {
  return layout.master_weights && (precision.autocast || layout.ranks > 1 || layout.optimizer_on_host);
}

}  // namespace detail

std::vector<std::string> known_memory_optimizers() {
  std::vector<std::string> names;
  for (const auto& each : detail::kOptimizerShapes) names.push_back(each.name);
  return names;
}

StateBytes bytes_per_parameter(const StateLayout& layout, const PrecisionPlan& precision,
                               const std::string& optimizer) {
  const auto widths = detail::state_widths(layout, precision);
  const auto share = [&](bool divided) { return divided ? 1.0 / layout.ranks : 1.0; };
  const bool has_master = detail::keeps_master(layout, precision);
  const double slots = detail::optimizer_shape(optimizer).slots + (has_master ? 1 : 0);
  StateBytes bytes;
  const auto put = [&](double& place, double value, bool on_host) { (on_host ? bytes.host : place) += value; };
  put(bytes.parameters, static_cast<double>(widths.kept) * share(layout.shards_parameters), layout.parameters_on_host);
  if (!layout.gradients_replace_parameters)
    put(bytes.gradients, static_cast<double>(widths.gradient) * share(layout.shards_gradients),
        layout.gradients_on_host);
  put(bytes.optimizer, slots * static_cast<double>(widths.optimizer) * share(layout.shards_optimizer),
      layout.optimizer_on_host);
  return bytes;
}

}  // namespace levin
