#include <algorithm>
#include <array>

#include <ATen/Functions.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/memory/step.h"
#include "levin/optim/codecs.h"
#include "levin/optim/registry.h"
#include "levin/strategies/fsdp.h"
#include "levin/strategies/gemini.h"

namespace levin {
namespace {

constexpr std::string_view kOffloadEnd = "_offload";
constexpr std::array kLayoutNames{"single_device",     "ddp",       "fsdp", "deepspeed_stage_1", "deepspeed_stage_2",
                                  "deepspeed_stage_3", "colossalai"};

void check_ranks(int ranks) {
  LEVIN_CHECK(ranks >= 1, "[estimate_memory] world_size ", ranks, " is not allowed (1 or more)");
}

}  // namespace

std::vector<std::string> known_layouts() {
  std::vector<std::string> names{"auto"};
  for (const std::string name : kLayoutNames) {
    names.push_back(name);
    if (name.starts_with("deepspeed")) names.push_back(name + std::string(kOffloadEnd));
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
  if (std::find(kLayoutNames.begin(), kLayoutNames.end(), name) == kLayoutNames.end())
    fail_unknown("estimate_memory", "strategy", strategy, known_layouts());
  LEVIN_CHECK(name != "single_device" || ranks == 1,
              "[estimate_memory] strategy \"single_device\" is for one process, not for ", ranks,
              " (ddp, fsdp, ... are for more)");
  const bool keeps_all = name == "single_device" || name == "ddp";
  LEVIN_CHECK(
      !offload || !keeps_all, "[estimate_memory] strategy \"", name,
      "\" keeps all state on the device and cannot offload it (fsdp, deepspeed_stage_1 to 3 and colossalai can)");
  if (keeps_all) return {.ranks = ranks, .gradient_buckets = name == "ddp"};
  if (name == "fsdp") return state_layout(FsdpOptions{.cpu_offload = offload}, ranks);
  if (name == "colossalai") return state_layout(GeminiOptions{.placement_policy = offload ? "cpu" : "auto"}, ranks);
  ZeroOptions options{.stage = name.back() - '0'};
  if (offload) options.offload_optimizer.device = "cpu";
  if (offload && options.stage == 3) options.offload_param.device = "cpu";
  return state_layout(options, ranks);
}

StateLayout state_layout(const FsdpOptions& options, int ranks) {
  return detail::layout_of(detail::plan_of(options), ranks);
}

StateLayout state_layout(const ZeroOptions& options, int ranks) {
  return detail::layout_of(detail::plan_of(options), ranks);
}

StateLayout state_layout(const GeminiOptions& options, int ranks) {
  auto plan = detail::plan_of(options);
  const bool all = plan.offload && options.placement_policy != "static";
  // Of a part that is on the host, the larger part counts.
  plan.offload = all || std::max(options.offload_param_frac, options.offload_optim_frac) >= 0.5;
  auto layout = detail::layout_of(plan, ranks);
  layout.keeps_float = true;
  // With enough room, whole chunks stay from forward to backward.
  layout.keeps_gathered =
      options.placement_policy == "auto" || options.placement_policy == "cuda" || options.shard_param_frac < 0.5;
  constexpr double kMi = 1 << 20;
  layout.chunks = ChunkLayout{.elements = options.chunk_size,
                              .least = static_cast<int64_t>(options.min_chunk_size_m * kMi),
                              .range = static_cast<int64_t>(options.search_range_m * kMi),
                              .step = options.hidden_dim ? options.hidden_dim : 1024};
  layout.prefetch = layout.backward_prefetch = options.max_prefetch;
  layout.optimizer_in_backward = options.optimizer_in_backward;
  return layout;
}

StateLayout Strategy::layout() const {
  return state_layout(name(), group().size());
}

StateLayout GeminiStrategy::layout() const {
  return state_layout(options_, group().size());
}

MemoryEstimate estimate_memory(const Strategy& strategy, const MakeTrainingStep& make, const Batch& batch,
                               MemoryQuestion question) {
  question.strategy = strategy.name();
  question.layout = strategy.layout();
  question.world_size = strategy.group().size();
  question.device = strategy.device().type();
  return estimate_memory(make, batch, question);
}

namespace detail {

StateLayout layout_of(const ShardingPlan& plan, int world) {
  check_ranks(world);
  // The ranks of one node are not known before there are any: all of them.
  const int ranks = plan.shard_size > 0 && !plan.hybrid_by_node ? plan.shard_size : world;
  LEVIN_CHECK(world % ranks == 0, "[estimate_memory] ", world, " ranks cannot be divided into groups of ", ranks,
              "; hybrid_size must divide the number of ranks");
  StateLayout layout{.ranks = ranks,
                     .shards_parameters = !plan.keeps_whole,
                     .shards_gradients = !plan.reduces_at_end,
                     .shards_optimizer = true,
                     .casts_parameters = true,
                     .master_weights = plan.keeps_whole};
  layout.parameters_on_host = plan.offload && !plan.keeps_whole;
  layout.gradients_on_host = layout.optimizer_on_host = plan.offload;
  layout.keeps_gathered = !plan.keeps_whole && !plan.residency.releases_after_forward;
  layout.prefetch = plan.residency.forward_prefetch;
  layout.backward_prefetch = plan.residency.backward_prefetch;
  layout.replicas = world / ranks;
  layout.reduces_at_end = plan.reduces_at_end;
  layout.most_ahead = plan.residency.most_ahead;
  layout.most_live = plan.residency.most_live;
  layout.persistence_threshold = plan.persistence_threshold;
  layout.parameters_on_disk = !plan.param_folder.empty();
  layout.optimizer_on_disk = !plan.optimizer_folder.empty();
  layout.optimizer_in_backward = plan.optimizer_in_backward;
  layout.param_dtype = plan.mixed.param_dtype;
  layout.reduce_dtype = plan.mixed.reduce_dtype;
  layout.units = plan.units;
  layout.checkpointing = plan.checkpointing;
  layout.offload_activations = plan.checkpoints_on_host;
  return layout;
}

StateLayout ShardedStrategy::layout() const {
  auto layout = layout_of(plan_, group().size());
  layout.ranks = ranks_->size();  // of a node, too
  layout.replicas = replicas_->size();
  return layout;
}

namespace {

/// Null when the word, in letters of any size, is not known.
using Named = std::pair<const optim::OptimizerClass*, const optim::EstimatedOptimizer*>;
std::optional<Named> find_optimizer(const std::string& name) {
  std::string lower;
  for (const char c : name) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& each : optim::optimizer_classes())
    for (const auto& estimated : each.estimates)
      if (lower == estimated.word) return Named{&each, &estimated};
  return {};
}

}  // namespace

OptimizerTraits optimizer_traits(const std::string& name, std::optional<c10::ScalarType> moments) {
  const auto named = find_optimizer(name);
  if (!named) fail_unknown("estimate_memory", "optimizer", name, known_memory_optimizers());
  const auto options = named->second->options();
  if (moments) {
    const auto& fields = options.fields();
    const auto field = std::ranges::find(fields, "moments_dtype", &config::Field::name);
    LEVIN_CHECK(field != fields.end(), "[estimate_memory] moments_dtype is for adam and adamw, not for ", name);
    field->read(config::Codec<c10::ScalarType>::write(*moments));
  }
  const auto optimizer = named->first->make(options, {at::zeros({1}).requires_grad_()});
  auto traits = *optimizer.traits();
  traits.slots = [optimizer, slots = traits.slots](at::IntArrayRef sizes, c10::ScalarType dtype) {
    return slots(sizes, dtype);
  };
  return traits;
}

/// "AdamW" for "adamw"; a name that is not known here stays.
static std::string class_of_optimizer(const std::string& name) {
  const auto named = find_optimizer(name);
  return named ? named->first->name : name;
}

void check_possible(const std::string& strategy, const StateLayout& layout, const PrecisionPlan& precision,
                    const std::string& optimizer, const OptimizerTraits& traits) {
  const auto name = class_of_optimizer(optimizer);
  if (layout.shards_optimizer) check_divided_optimizer(strategy, name, traits, layout.ranks);
  if (layout.optimizer_in_backward) check_optimizer_in_backward(strategy, precision, name, traits, layout.ranks);
}

std::vector<int64_t> optimizer_tensors(const OptimizerTraits& traits, const std::vector<int64_t>& sizes,
                                       int64_t width) {
  LEVIN_CHECK(traits.slots, "[estimate_memory] the optimizer does not say what it keeps; its traits need `slots`");
  const auto dtype = width == 2 ? at::kBFloat16 : width == 8 ? at::kDouble : at::kFloat;
  std::vector<int64_t> bytes;
  for (const auto& slot : traits.slots(sizes, dtype))
    bytes.push_back(c10::multiply_integers(slot.sizes) * static_cast<int64_t>(c10::elementSize(slot.dtype)));
  return bytes;
}

StateWidths state_widths(const StateLayout& layout, const PrecisionPlan& precision) {
  const auto width = [](c10::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  const auto asked = width(precision.params.value_or(at::kFloat));
  if (!layout.casts_parameters) return {asked, asked, asked, asked, asked};
  const auto kept = layout.keeps_float ? std::max<int64_t>(4, asked) : asked;
  const auto dtype = computed_dtype(layout, precision);
  const auto computed = dtype ? width(*dtype) : kept;
  const auto reduced = layout.reduce_dtype ? width(*layout.reduce_dtype) : computed;
  // A loss scaler unscales float16 in place, in the dtype of the parts.
  const bool narrow = layout.master_weights || layout.gradients_on_host;
  const auto gradient = narrow && dtype != at::kHalf ? computed : kept;
  return {kept, computed, reduced, gradient, kept};
}

std::optional<c10::ScalarType> computed_dtype(const StateLayout& layout, const PrecisionPlan& precision) {
  if (!layout.casts_parameters) return precision.params;
  if (layout.param_dtype) return layout.param_dtype;
  return precision.autocast ? precision.autocast : precision.params;
}

bool is_divided(const StateLayout& layout, const PrecisionPlan& precision) {
  const bool grouped = layout.shards_parameters || layout.shards_gradients || layout.shards_optimizer ||
                       layout.master_weights || layout.parameters_on_host;
  return grouped && !group_rules(layout, precision, at::kCPU).whole();
}

GroupRules group_rules(const StateLayout& layout, const PrecisionPlan& precision, c10::DeviceType device) {
  const auto widths = state_widths(layout, precision);
  return {.ranks = layout.ranks,
          .replicas = layout.replicas,
          .keeps_whole = !layout.shards_parameters,
          .keeps_gathered = layout.keeps_gathered,
          .offload = layout.parameters_on_host || layout.optimizer_on_host,
          .reduces_at_end = layout.reduces_at_end,
          .steps_in_backward = layout.optimizer_in_backward,
          .gloo = device == c10::kCPU,
          .forward_ahead = layout.prefetch,
          .backward_ahead = layout.backward_prefetch,
          .most_ahead = layout.most_ahead,
          .most_live = layout.most_live,
          .kept = widths.kept,
          .computed = widths.computed,
          .reduced = widths.reduced,
          .gradient = widths.gradient,
          .rounding = device == c10::kCUDA ? Rounding::kCuda : Rounding::kNone};
}

}  // namespace detail

std::vector<std::string> known_memory_optimizers() {
  std::vector<std::string> names;
  for (const auto& each : optim::optimizer_classes())
    for (const auto& estimated : each.estimates) names.push_back(estimated.word);
  return names;
}

StateBytes bytes_per_parameter(const StateLayout& layout, const PrecisionPlan& precision,
                               const std::string& optimizer) {
  const auto widths = detail::state_widths(layout, precision);
  const bool divided = detail::is_divided(layout, precision);
  const auto share = [&](bool shards) { return shards && divided ? 1.0 / layout.ranks : 1.0; };
  const auto traits = detail::optimizer_traits(optimizer);
  // The state of a large matrix, by its elements.
  constexpr int64_t kSide = 4096;
  double slots = 0;
  for (const auto bytes : detail::optimizer_tensors(traits, {kSide, kSide}, widths.optimizer))
    if (bytes > kSide * 8) slots += static_cast<double>(bytes) / static_cast<double>(kSide * kSide);
  StateBytes bytes;
  const auto put = [&](double& place, double value, bool on_host, bool on_disk = false) {
    if (!on_disk) (on_host ? bytes.host : place) += value;
  };
  const bool has_master = divided && layout.master_weights;
  const auto whole = static_cast<double>(has_master ? widths.computed : widths.kept);
  put(bytes.parameters, whole * share(layout.shards_parameters), layout.parameters_on_host, layout.parameters_on_disk);
  if (!layout.optimizer_in_backward)
    put(bytes.gradients, static_cast<double>(widths.gradient) * share(layout.shards_gradients),
        layout.gradients_on_host);
  put(bytes.optimizer, slots * share(layout.shards_optimizer), layout.optimizer_on_host, layout.optimizer_on_disk);
  if (has_master) put(bytes.optimizer, static_cast<double>(widths.kept) * share(true), layout.optimizer_on_host);
  // What is copied to the device from the host is there in the dtype that is wanted.
  if (layout.optimizer_on_host && widths.computed != widths.kept)
    bytes.host += static_cast<double>(widths.computed) * share(true);
  return bytes;
}

}  // namespace levin
