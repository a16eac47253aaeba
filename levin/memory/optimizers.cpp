#include "levin/memory/optimizers.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/memory/estimate.h"
#include "levin/optim/codecs.h"
#include "levin/optim/registry.h"
#include "levin/strategies/sharding/strategy.h"

namespace levin {
namespace detail {
namespace {

/// Null when the word, in letters of either case, is not known.
using Named = std::pair<const optim::OptimizerClass*, const optim::EstimatedOptimizer*>;
std::optional<Named> find_optimizer(const std::string& name) {
  for (const auto& each : optim::optimizer_classes())
    for (const auto& estimated : each.estimates)
      if (equal_ignoring_case(name, estimated.word)) return Named{&each, &estimated};
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
  if (layout.shards_optimizer) check_sharded_optimizer(strategy, name, traits, layout.ranks);
  LEVIN_CHECK(!layout.expert_ranks || !layout.shards_optimizer || traits.elementwise, "[", strategy, "] ", name,
              " steps by figures of full parameters, and each rank has some of the experts (ep); use AdamW or SGD, or "
              "leave ep out");
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

}  // namespace detail

std::vector<std::string> known_memory_optimizers() {
  std::vector<std::string> names;
  for (const auto& each : optim::optimizer_classes())
    for (const auto& estimated : each.estimates) names.push_back(estimated.word);
  return names;
}

}  // namespace levin
