#include "levin/precision/precision.h"

#include <array>

#include <ATen/autocast_mode.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/precision/cpu_norms.h"
#include "levin/precision/cpu_products.h"

namespace levin {
namespace {

using enum c10::ScalarType;

// One line per precision. Mixed: fp32 parameters, autocast inside. True: everything in the dtype, outputs back in fp32.
const std::array<PrecisionPlan, 7>& table() {
  static const std::array<PrecisionPlan, 7> plans{{
      {.name = "32-true"},
      {.name = "64-true", .params = Double, .inputs = Double, .outputs = Float},
      {.name = "16-true", .params = Half, .inputs = Half, .outputs = Float},
      {.name = "bf16-true", .params = BFloat16, .inputs = BFloat16, .outputs = Float},
      {.name = "16-mixed", .inputs = Float, .outputs = Float, .autocast = Half, .scales_loss = true},
      {.name = "bf16-mixed", .inputs = Float, .outputs = Float, .autocast = BFloat16},
      {.name = "fp8-mixed", .inputs = Float, .outputs = Float, .autocast = BFloat16, .fp8 = kernels::Fp8Options{}},
  }};
  return plans;
}

constexpr std::array<std::array<std::string_view, 2>, 4> kAliases{
    {{"16", "16-mixed"}, {"bf16", "bf16-mixed"}, {"32", "32-true"}, {"64", "64-true"}}};

// Nobody should wait for a speed that the CPU does not have.
void hint_emulation(const PrecisionPlan& plan) {
  if (plan.fp8) {
    warn_once(detail::concat("precision \"", plan.name,
                             "\" is emulated: CPUs have no products in float8, so operands are rounded to it and "
                             "multiplied in float32, slower than \"32-true\""));
    return;
  }
  const auto dtype = plan.autocast ? plan.autocast : plan.params;
  if (!dtype || !at::isReducedFloatingType(*dtype) || detail::cpu_has_products_in(*dtype)) return;
  const auto* name = *dtype == Half ? "float16" : "bfloat16";
  warn_once(detail::concat("precision \"", plan.name, "\" is emulated: this CPU has no products in ", name,
                           ", so they are computed in float32 and rounded, no faster than \"32-true\""));
}

}  // namespace

std::vector<std::string> known_precisions() {
  std::vector<std::string> names;
  for (const auto& plan : table()) names.push_back(plan.name);
  for (const auto& alias : kAliases) names.emplace_back(alias[0]);
  return names;
}

PrecisionPlan resolve_precision(std::string_view word, c10::DeviceType device) {
  std::string_view name = word;
  for (const auto& [alias, meaning] : kAliases) {
    if (word != alias) continue;
    name = meaning;
    // "32" and "64" say the same thing in fewer letters; "16" and "bf16" could be either of two.
    if (meaning.ends_with("mixed")) warn_once(detail::concat("precision \"", word, "\" is read as \"", meaning, "\""));
  }
  if (name == "16-mixed" && device == c10::DeviceType::CPU) {
    warn_once("precision \"16-mixed\" needs a GPU; on the CPU it becomes \"bf16-mixed\"");
    name = "bf16-mixed";
  }
  for (const auto& plan : table()) {
    if (plan.name != name) continue;
    if (device == c10::DeviceType::CPU) hint_emulation(plan);
    return plan;
  }
  // The words other libraries use, which are too far from ours for the edit distance.
  static const std::array<std::array<std::string_view, 2>, 10> meant{{{"fp16", "16-mixed"},
                                                                      {"fp8", "fp8-mixed"},
                                                                      {"transformer-engine", "fp8-mixed"},
                                                                      {"float16", "16-true"},
                                                                      {"half", "16-true"},
                                                                      {"fp32", "32-true"},
                                                                      {"float32", "32-true"},
                                                                      {"bfloat16", "bf16-true"},
                                                                      {"double", "64-true"},
                                                                      {"mixed", "16-mixed"}}};
  for (const auto& [other, ours] : meant)
    LEVIN_CHECK(word != other, "[fabric] precision \"", word, "\" is not known; did you mean \"", ours,
                "\"? (known: ", join(known_precisions()), ")");
  fail_unknown("fabric", "precision", word, known_precisions());
}

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled)
    : device_(device),
      previous_dtype_(at::autocast::get_autocast_dtype(device)),
      previous_enabled_(at::autocast::is_autocast_enabled(device)) {
  if (device == c10::kCPU) detail::upcast_weights_of_cpu_norms();
  at::autocast::increment_nesting();
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_enabled(device, enabled);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, previous_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_dtype_);
}

}  // namespace levin
