#pragma once

#include "levin/trainer/context.h"

namespace levin::detail {

class Run;

/// See Tuning::run_trial.
bool run_trial(Run& run, const Trial& trial);

}  // namespace levin::detail
