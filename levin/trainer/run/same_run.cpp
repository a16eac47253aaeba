#include "levin/trainer/run/same_run.h"

#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace {

using Said = std::vector<std::pair<std::string, std::string>>;

std::string hypers_of(const Optimizer& optimizer) {
  std::string text = optimizer.name();
  for (size_t group = 0; group < optimizer.num_groups(); ++group)
    for (const auto& name : optimizer.impl()->hyper_names())
      if (const auto* value = optimizer.impl()->find_hyper(group, name); value && !std::isnan(*value))
        text += fmt::format("{}{} {}", text.ends_with(' ') ? "" : ", ", name, *value);
  return text;
}

std::string word_of(NonFinitePolicy policy) {
  switch (policy) {
    case NonFinitePolicy::kStop:
      return "stop";
    case NonFinitePolicy::kSkip:
      return "skip";
    case NonFinitePolicy::kWarn:
      return "warn";
    case NonFinitePolicy::kRollback:
      return "rollback";
  }
  return {};
}

Said said_of(const Run& run) {
  const auto& plan = run.plan;
  const auto number = [](auto value) { return fmt::format("{}", value); };
  Said said{{"precision", run.fabric->plan().precision.name},
            {"accumulate_grad_batches", number(plan.accumulate)},
            {"gradient_clip_val", number(plan.clip_val)},
            {"gradient_clip_algorithm", plan.clips_value ? "value" : "norm"},
            {"max_epochs", number(plan.max_epochs)},
            {"min_epochs", number(plan.min_epochs)},
            {"max_steps", number(plan.max_steps)},
            {"min_steps", number(plan.min_steps)},
            {"max_time", plan.max_time ? plan.max_time->to_string() : "none"},
            {"limit_val_batches", plan.limit_val.to_string()},
            {"val_check_interval", plan.val_check.to_string()},
            {"check_val_every_n_epoch", number(plan.check_val_every_n_epoch.value_or(0))},
            {"num_sanity_val_steps", number(plan.sanity_steps)},
            {"log_every_n_steps", number(plan.log_every_n_steps)},
            {"reload_dataloaders_every_n_epochs", number(plan.reload_every_n_epochs)},
            {"on_nonfinite", word_of(plan.on_nonfinite)},
            {"max_rollbacks", number(plan.max_rollbacks)}};
  // Others may be of one rank alone: they do not communicate.
  std::string callbacks;
  for (const auto& callback : run.hooks.callbacks())
    if (callback->order() != CallbackOrder::kOrdinary)
      callbacks += (callbacks.empty() ? "" : ", ") + callback->state_key();
  said.emplace_back("callbacks", callbacks);
  for (size_t i = 0; i < run.model.optimizers.size(); ++i)
    said.emplace_back(fmt::format("optimizer {}", i), hypers_of(run.model.optimizers[i]));
  said.emplace_back("configure_optimizers", fmt::format("{} optimizers", run.model.optimizers.size()));
  return said;
}

}  // namespace

void check_same_run(Run& run) {
  if (run.fabric->world_size() == 1) return;
  const auto mine = said_of(run);
  std::string text;
  for (const auto& [name, value] : mine) text += name + '\t' + value + '\n';
  const auto all = gather_strings(run.fabric->strategy().group(), text);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream here(all[rank]), first(all[0]);
    for (std::string a, b; std::getline(first, a) && std::getline(here, b);) {
      if (a == b) continue;
      const auto tab = a.find('\t');
      throw Error(fmt::format("[trainer.fit] {} is \"{}\" on rank {} and \"{}\" on rank 0; every rank needs the same",
                              a.substr(0, tab), b.substr(b.find('\t') + 1), rank, a.substr(tab + 1)));
    }
  }
}

}  // namespace levin::detail
