#include "levin/generate/stream_cost.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/host_memory.h"
#include "levin/devices/peak_flops.h"

namespace levin {
namespace {

/// Weights that every token is multiplied with.
double multiplied_weights(const models::LanguageModel& model) {
  double sum = 0;
  for (const auto& module : model.module().modules(/*include_self=*/false))
    if (const auto* linear = dynamic_cast<const models::DecoderLinearImpl*>(module.get()))
      sum += static_cast<double>(linear->in_features()) * static_cast<double>(linear->out_features());
  return sum;
}

/// Whether a model has room for so much beside its weights: placed again where sizes decide, else as it is.
bool has_room(const WeightPlacement& placement, PlacementOptions options, int64_t workspace) {
  options.workspace = workspace;
  try {
    if (options.device_map == "auto" || options.device_map == "balanced" || options.device_map == "sequential")
      place_units(placement.units, options);
    else
      check_room(placement, options);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// The most rows, at least those of `sizes`; none where memory is no limit.
std::optional<int64_t> fitting_batch(const models::LanguageModel& model, const WeightPlacement& placement,
                                     const PlacementOptions& options, DecodeSizes sizes) {
  constexpr int64_t kMany = 1 << 16;
  auto rows = sizes.rows;
  const auto fits = [&](int64_t count) {
    sizes.rows = count;
    return has_room(placement, options, decode_workspace(model, sizes, placement.device));
  };
  while (rows < kMany && fits(2 * rows)) rows *= 2;
  if (rows >= kMany) return {};
  for (auto step = rows / 2; step > 0; step /= 2)
    if (fits(rows + step)) rows += step;
  return rows;
}

}  // namespace

double measured_link(c10::Device device, int64_t bytes) {
  if (device.is_cpu()) return 0;
  using Clock = std::chrono::steady_clock;
  const auto& kind = accelerator_of(device);
  const auto from = page_locked(bytes, at::kByte);
  auto to = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    kind.synchronize(device);
    const auto start = Clock::now();
    to.copy_(from, /*non_blocking=*/true);
    kind.synchronize(device);
    const auto seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(bytes) / seconds);
  }
  to.reset();
  kind.empty_cache(device);
  return best;
}

double expected_flops(c10::Device device, c10::ScalarType dtype) {
  if (device.is_cpu()) return 0;
  constexpr double kReached = 0.5;
  return kReached * peak_flops(accelerator_of(device).info(device).name, dtype).value_or(0);
}

StreamCost stream_cost(const models::LanguageModel& model, const WeightPlacement& placement,
                       const PlacementOptions& options, const DecodeSizes& sizes, double link_bytes_per_s,
                       double flops) {
  StreamCost cost{.bytes = placement.streamed_bytes(), .link_bytes_per_s = link_bytes_per_s};
  if (flops > 0 && link_bytes_per_s > 0)
    cost.hiding_batch =
        static_cast<int64_t>(std::ceil(cost.seconds() * flops / (2 * std::max(multiplied_weights(model), 1.0))));
  cost.fitting_batch = fitting_batch(model, placement, options, sizes);
  return cost;
}

std::string StreamCost::describe(int64_t rows) const {
  auto text = fmt::format("each pass brings {}", format_bytes(static_cast<double>(bytes)));
  if (link_bytes_per_s > 0)
    text += fmt::format(" over a link of {:.1f} GB/s: {:.3g} s, at most {:.3g} tokens/s at batch {}",
                        link_bytes_per_s / 1e9, seconds(), static_cast<double>(rows) / seconds(), rows);
  if (hiding_batch) text += fmt::format("; computing takes as long from about batch {} on", *hiding_batch);
  if (fitting_batch && (!hiding_batch || *fitting_batch < *hiding_batch))
    text += fmt::format("; up to --batch {} fits in the memory", *fitting_batch);
  if (hiding_batch && rows < *hiding_batch && (!fitting_batch || rows < *fitting_batch))
    text += fmt::format(": --batch {} is proposed", std::min(*hiding_batch, fitting_batch.value_or(*hiding_batch)));
  return text;
}

}  // namespace levin
