#include "levin/memory/widths.h"

#include <algorithm>

#include "levin/memory/estimate.h"
#include "levin/memory/optimizers.h"

namespace levin {
namespace detail {

StateWidths state_widths(const StateLayout& layout, const PrecisionPlan& precision) {
  const auto width = [](c10::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); };
  const auto asked = width(precision.params.value_or(at::kFloat));
  if (!layout.casts_parameters) return {asked, asked, asked, asked, asked, asked};
  const auto kept = layout.keeps_float ? std::max<int64_t>(4, asked) : asked;
  const auto dtype = computed_dtype(layout, precision);
  const auto computed = dtype ? width(*dtype) : kept;
  const auto reduced = layout.reduce_dtype ? width(*layout.reduce_dtype) : kept;
  const auto accumulated = layout.accumulate_dtype ? width(*layout.accumulate_dtype) : kept;
  // A loss scaler unscales float16 in place, in the dtype of the shards.
  const bool narrow = layout.narrow_gradients || layout.gradients_on_host;
  const auto gradient = narrow && dtype != at::kHalf ? computed : kept;
  return {kept, computed, reduced, gradient, accumulated, kept};
}

std::optional<c10::ScalarType> computed_dtype(const StateLayout& layout, const PrecisionPlan& precision) {
  if (!layout.casts_parameters) return precision.params;
  if (layout.param_dtype) return layout.param_dtype;
  return precision.autocast ? precision.autocast : precision.params;
}

GroupFigures group_figures(const StateLayout& layout, const PrecisionPlan& precision, c10::DeviceType device) {
  const auto widths = state_widths(layout, precision);
  return {.ranks = layout.ranks,
          .replicas = layout.replicas,
          .keeps_full = !layout.shards_parameters,
          .offload = layout.parameters_on_host || layout.optimizer_on_host,
          .steps_in_backward = layout.optimizer_in_backward,
          .gloo = device == c10::kCPU,
          .kept = widths.kept,
          .computed = widths.computed,
          .reduced = widths.reduced,
          .gradient = widths.gradient,
          .accumulated = widths.accumulated,
          .rounding = device == c10::kCUDA ? Rounding::kCuda : Rounding::kNone};
}

bool is_sharded(const StateLayout& layout, const PrecisionPlan& precision) {
  return layout.plan_groups && !group_figures(layout, precision, at::kCPU).whole();
}

}  // namespace detail

StateBytes bytes_per_parameter(const StateLayout& layout, const PrecisionPlan& precision,
                               const std::string& optimizer) {
  const auto widths = detail::state_widths(layout, precision);
  const bool sharded = detail::is_sharded(layout, precision);
  const auto fraction = [&](bool shards) { return shards && sharded ? 1.0 / layout.ranks : 1.0; };
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
  const bool has_master = sharded && layout.master_weights;
  const auto full = static_cast<double>(has_master ? widths.computed : widths.kept);
  put(bytes.parameters, full * fraction(layout.shards_parameters), layout.parameters_on_host,
      layout.parameters_on_disk);
  if (!layout.optimizer_in_backward)
    put(bytes.gradients, static_cast<double>(widths.gradient) * fraction(layout.shards_gradients),
        layout.gradients_on_host);
  put(bytes.optimizer, slots * fraction(layout.shards_optimizer), layout.optimizer_on_host, layout.optimizer_on_disk);
  if (has_master) put(bytes.optimizer, static_cast<double>(widths.kept) * fraction(true), layout.optimizer_on_host);
  // What is copied to the device from the host is there in the dtype of the computation.
  if (layout.optimizer_on_host && widths.computed != widths.kept)
    bytes.host += static_cast<double>(widths.computed) * fraction(true);
  return bytes;
}

}  // namespace levin
