#pragma once

#include <optional>
#include <utility>

#include "levin/optim/codecs.h"
#include "levin/optim/schedulers/registry.h"

namespace levin::optim::detail {

/// A scheduler whose options are `Options`, which `fields(Options&, f)` describes. `make(optimizer, options, length)`
/// makes one; `length` is that of SchedulerClass::make.
template <class Options, class Make>
SchedulerClass describe_scheduler(SchedulerClass described, Make make) {
  described.options = [] { return config::AnyOptions(Options{}); };
  described.make = [make](const config::AnyOptions& options, const Optimizer& optimizer,
                          std::optional<int64_t> length) -> Scheduler {
    return make(optimizer, options.get<Options>(), length);
  };
  return described;
}

/// The same for the handle `T` where no length is left out.
template <class T, class Options>
SchedulerClass describe_scheduler(SchedulerClass described) {
  return describe_scheduler<Options>(
      std::move(described),
      [](const Optimizer& optimizer, const Options& options, std::optional<int64_t>) { return T(optimizer, options); });
}

// Help that options of several schedulers share. A step is one of the scheduler: an epoch, or an optimizer step.
inline constexpr const char* kGamma = "factor of the learning rate";
inline constexpr const char* kEtaMin = "minimum learning rate";

}  // namespace levin::optim::detail
