#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "levin/config/fields.h"
#include "levin/optim/optimizer.h"
#include "levin/trainer/optimizers.h"

namespace levin::cli {

/// The optimizers and schedulers that can be chosen by name, with their options.
const std::vector<config::Class>& optimizer_classes();
const std::vector<config::Class>& scheduler_classes();

Optimizer make_optimizer(const config::Chosen& chosen, std::vector<Tensor> params);

/// How long a run will be, as far as that is known.
struct RunLength {
  std::optional<int64_t> steps = {};
  std::optional<int64_t> epochs = {};
};

/// A scheduler and when it steps. Lengths that were left out (t_max, total_steps) are those of the run, and
/// OneCycleLR's peak is the optimizer's learning rate.
SchedulerConfig make_scheduler(const config::Chosen& chosen, const Optimizer& optimizer, const RunLength& length);

}  // namespace levin::cli
