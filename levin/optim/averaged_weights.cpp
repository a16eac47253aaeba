#include "levin/optim/averaged_weights.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/error.h"
#include "levin/core/log.h"

namespace levin::optim {

AveragedWeights::AveragedWeights(torch::nn::Module& module, AveragedWeightsOptions options)
    : options_(std::move(options)) {
  if (options_.ema_decay)
    LEVIN_CHECK(*options_.ema_decay >= 0 && *options_.ema_decay <= 1,
                "[AveragedWeights] ema_decay=", *options_.ema_decay, " must be in [0, 1]");
  at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), Rule::kAverage);
  if (options_.buffers != AveragedBuffers::kLeave)
    for (const auto& item : module.named_buffers())
      add(item.key(), item.value(), options_.buffers == AveragedBuffers::kAverage ? Rule::kAverage : Rule::kCopy);

  const auto is_narrow = [](const Entry& entry) {
    return entry.rule == Rule::kAverage && at::isReducedFloatingType(entry.average.scalar_type());
  };
  if (const auto narrow = std::ranges::find_if(entries_, is_narrow); narrow != entries_.end())
    warn_once(levin::detail::concat("[AveragedWeights] the weights are ", c10::toString(narrow->average.scalar_type()),
                                    ", and so are their averages: an update that is small beside a weight is rounded "
                                    "away; average float32 weights (precision \"bf16-mixed\")"));

  for (const auto& entry : entries_) {
    const auto fits = [&](const List& list) {
      return list.rule == entry.rule && list.weights[0].scalar_type() == entry.weight.scalar_type() &&
             list.weights[0].device() == entry.weight.device() && list.averages[0].device() == entry.average.device();
    };
    auto list = std::ranges::find_if(lists_, fits);
    if (list == lists_.end()) list = lists_.insert(lists_.end(), List{{}, {}, entry.rule});
    list->weights.push_back(entry.weight);
    list->averages.push_back(entry.average);
  }
}

void AveragedWeights::add(const std::string& name, const Tensor& tensor, Rule rule) {
  if (!tensor.defined()) return;
  const auto same = [&](const Entry& entry) { return entry.weight.is_same(tensor); };
  if (const auto known = std::ranges::find_if(entries_, same); known != entries_.end()) {
    known->names.push_back(name);
    return;
  }
  // A handle without history to the same memory: what is written to it is written to the parameter.
  const auto average = options_.device ? tensor.detach().to(*options_.device, /*non_blocking=*/false, /*copy=*/true)
                                       : tensor.detach().clone();
  const bool can_average = tensor.is_floating_point() || tensor.is_complex();
  entries_.push_back({{name}, tensor, average, can_average ? rule : Rule::kCopy});
}

void AveragedWeights::average(List& list) {
  const bool apart = list.weights[0].device() != list.averages[0].device();
  std::vector<Tensor> here;
  if (apart)
    for (const auto& weight : list.weights) here.push_back(weight.detach().to(list.averages[0].device()));
  const auto& weights = apart ? here : list.weights;

  if (count_ == 0 || list.rule == Rule::kCopy) {
    at::_foreach_copy_(list.averages, weights);
  } else if (options_.avg_fn) {
    for (size_t i = 0; i < weights.size(); ++i)
      list.averages[i].copy_(options_.avg_fn(list.averages[i], weights[i].detach(), count_));
  } else {
    const double share = options_.ema_decay ? 1 - *options_.ema_decay : 1 / static_cast<double>(count_ + 1);
    at::_foreach_lerp_(list.averages, weights, share);
  }
}

void AveragedWeights::update() {
  LEVIN_CHECK(!swapped_, "[AveragedWeights.update] the module holds the averages; call swap() to go back first");
  at::NoGradGuard no_grad;
  for (auto& list : lists_) average(list);
  ++count_;
}

void AveragedWeights::swap() {
  at::NoGradGuard no_grad;
  for (auto& entry : entries_) {
    const auto kept = entry.average.clone();
    entry.average.copy_(entry.weight);
    entry.weight.copy_(kept);
  }
  swapped_ = !swapped_;
}

StateDict AveragedWeights::state_dict() const {
  StateDict state;
  for (const auto& entry : entries_)
    for (const auto& name : entry.names) state[name] = entry.average;
  return state;
}

void AveragedWeights::load_state_dict(const StateDict& state) {
  at::NoGradGuard no_grad;
  for (const auto& entry : entries_)
    for (const auto& name : entry.names)
      if (const auto* value = state.find(name))
        LEVIN_CHECK(value->to_tensor().sizes() == entry.average.sizes(), "[AveragedWeights.load_state_dict] \"", name,
                    "\" has shape ", fmt::format("{}", value->to_tensor().sizes()), " in the saved state, ",
                    fmt::format("{}", entry.average.sizes()), " is needed");
  for (auto& entry : entries_)
    for (const auto& name : entry.names)
      if (const auto* value = state.find(name)) {
        entry.average.copy_(value->to_tensor());
        break;
      }
}

}  // namespace levin::optim
