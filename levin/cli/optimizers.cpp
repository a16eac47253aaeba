#include "levin/cli/optimizers.h"

#include <string>

#include "levin/core/error.h"
#include "levin/optim/registry.h"
#include "levin/optim/schedulers/registry.h"

namespace levin::cli {
namespace {

using config::AnyOptions;
using config::Chosen;
using config::Class;

/// A scheduler's own options and when the trainer steps it.
struct Scheduled {
  AnyOptions own = {};
  std::string interval = {};
  int64_t frequency = 1;
  std::string monitor = {};
  bool strict = true;

  void fields(auto f) {
    f(own);
    f("interval", interval, "when to step it: after each epoch, or each optimizer step", {"epoch", "step"});
    f("frequency", frequency, "step it every N epochs or optimizer steps");
    f("monitor", monitor, "metric that ReduceLROnPlateau follows");
    f("strict", strict, "a missing metric is an error, not a warning");
  }
};

template <class Entry>
const Entry& entry_of(const std::vector<Entry>& table, const std::string& name) {
  for (const auto& entry : table)
    if (name == entry.name) return entry;
  throw Error(levin::detail::concat("[config] \"", name, "\" is not in the table it was chosen from"));
}

}  // namespace

const std::vector<Class>& optimizer_classes() {
  static const auto classes = [] {
    std::vector<Class> all;
    for (const auto& each : optim::optimizer_classes()) all.push_back({each.name, each.help, each.options});
    return all;
  }();
  return classes;
}

const std::vector<Class>& scheduler_classes() {
  static const auto classes = [] {
    std::vector<Class> all;
    for (const auto& each : optim::scheduler_classes())
      all.push_back({each.name, each.help, [at = &each] {
                       return AnyOptions(
                           Scheduled{.own = at->options(), .interval = at->interval, .monitor = at->monitor});
                     }});
    return all;
  }();
  return classes;
}

Optimizer make_optimizer(const Chosen& chosen, std::vector<Tensor> params) {
  return entry_of(optim::optimizer_classes(), chosen.name).make(chosen.options, std::move(params));
}

SchedulerConfig make_scheduler(const Chosen& chosen, const Optimizer& optimizer, const RunLength& length) {
  const auto& asked = chosen.options.get<Scheduled>();
  auto count = asked.interval == "step" ? length.steps : length.epochs;
  if (count && asked.frequency > 1) count = *count / asked.frequency;
  const auto& entry = entry_of(optim::scheduler_classes(), chosen.name);
  return {.scheduler = entry.make(asked.own, optimizer, count),
          .interval = asked.interval,
          .frequency = asked.frequency,
          .monitor = asked.monitor,
          .strict = asked.strict};
}

}  // namespace levin::cli
