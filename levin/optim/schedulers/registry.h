#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "levin/config/fields.h"
#include "levin/optim/schedulers/scheduler.h"

namespace levin::optim {

/// What a scheduler says of itself in its own file (`StepLR::describe()`): configs, flags and help know it by this.
struct SchedulerClass {
  /// In configs and flags: "StepLR".
  std::string name;
  /// One line.
  std::string help;
  /// When the Trainer steps it by default: after each "epoch", or after each optimizer "step".
  std::string interval = "epoch";
  /// The metric that it follows by default; empty when it follows none.
  std::string monitor = {};
  /// By default.
  std::function<config::AnyOptions()> options = {};
  /// `options` must be those of this class. `length`: how often the run will step it, where that is known. It stands in
  /// for a length that the options leave out.
  std::function<Scheduler(const config::AnyOptions& options, const Optimizer& optimizer, std::optional<int64_t> length)>
      make = {};
};

/// All schedulers that need numbers only. Those of functions and of other schedulers are for programs. A new one is a
/// file pair, its include in schedulers.h and its row in registry.cpp.
const std::vector<SchedulerClass>& scheduler_classes();

}  // namespace levin::optim
