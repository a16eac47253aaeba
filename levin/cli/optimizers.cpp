#include "levin/cli/optimizers.h"

#include <array>
#include <string>

#include "levin/cli/codecs.h"
#include "levin/core/error.h"
#include "levin/optim/optim.h"
#include "levin/optim/registry.h"

namespace levin::optim {

constexpr const char* kGamma = "what the learning rate is multiplied with";
constexpr const char* kEtaMin = "the least learning rate";

void fields(StepLROptions& o, auto f) {
  f("step_size", o.step_size, "between two decays; must be given");
  f("gamma", o.gamma, kGamma);
}
void fields(MultiStepLROptions& o, auto f) {
  f("milestones", o.milestones, "when to decay; must be given");
  f("gamma", o.gamma, kGamma);
}
void fields(ConstantLROptions& o, auto f) {
  f("factor", o.factor, kGamma);
  f("total_iters", o.total_iters, "from then on the learning rate is whole again");
}
void fields(LinearLROptions& o, auto f) {
  f("start_factor", o.start_factor, "factor of the first step");
  f("end_factor", o.end_factor, "factor from total_iters on");
  f("total_iters", o.total_iters, "steps from the one to the other");
}
void fields(ExponentialLROptions& o, auto f) {
  f("gamma", o.gamma, "what the learning rate is multiplied with each time; must be given");
}
void fields(PolynomialLROptions& o, auto f) {
  f("total_iters", o.total_iters, "when zero is reached");
  f("power", o.power, "of (1 - step / total_iters)");
}
void fields(CosineAnnealingLROptions& o, auto f) {
  f("t_max", o.t_max, "from the initial learning rate to the least; 0: the whole run");
  f("eta_min", o.eta_min, kEtaMin);
}
void fields(CosineAnnealingWarmRestartsOptions& o, auto f) {
  f("t_0", o.t_0, "length of the first cycle; must be given");
  f("t_mult", o.t_mult, "every cycle is this many times as long as the one before");
  f("eta_min", o.eta_min, kEtaMin);
}
void fields(OneCycleLROptions& o, auto f) {
  f("max_lr", o.max_lr, "the peak; by default the optimizer's learning rate");
  f("total_steps", o.total_steps, "of the whole cycle; by default those of the run");
  f("epochs", o.epochs, "with steps_per_epoch, in place of total_steps");
  f("steps_per_epoch", o.steps_per_epoch, "with epochs, in place of total_steps");
  f("pct_start", o.pct_start, "fraction of the cycle that the learning rate rises");
  f("anneal_strategy", o.anneal_strategy, "the form of rise and fall", {"cos", "linear"});
  f("cycle_momentum", o.cycle_momentum, "move momentum (or beta1) against the learning rate");
  f("base_momentum", o.base_momentum, "the least momentum");
  f("max_momentum", o.max_momentum, "the largest momentum");
  f("div_factor", o.div_factor, "the cycle starts at max_lr / div_factor");
  f("final_div_factor", o.final_div_factor, "and ends at that divided by this");
  f("three_phase", o.three_phase, "fall as it rose, then to the end");
}
void fields(ReduceLROnPlateauOptions& o, auto f) {
  f("mode", o.mode, "min: the metric should fall; max: it should rise", {"min", "max"});
  f("factor", o.factor, kGamma);
  f("patience", o.patience, "steps without improvement that are let pass");
  f("threshold", o.threshold, "smaller improvements do not count");
  f("threshold_mode", o.threshold_mode, "a fraction of the best value, or a difference to it", {"rel", "abs"});
  f("cooldown", o.cooldown, "steps after a reduction during which nothing is counted");
  f("min_lr", o.min_lr, kEtaMin);
  f("eps", o.eps, "smaller reductions are not made");
}
void fields(LinearWarmupCosineOptions& o, auto f) {
  f("total_steps", o.total_steps, "of the whole run; 0: those of the run");
  f("warmup_steps", o.warmup_steps, "of the warm-up");
  f("start_factor", o.start_factor, "factor of the first step of the warm-up");
  f("eta_min", o.eta_min, "the learning rate at the end");
}

}  // namespace levin::optim

namespace levin::cli {
namespace {

using config::AnyOptions;
using config::Chosen;
using config::Class;
namespace o = levin::optim;

/// A scheduler's own options and when the trainer steps it.
template <class Options>
struct Scheduled {
  Options options = {};
  std::string interval = "epoch";
  int64_t frequency = 1;
  std::string monitor = {};
  bool strict = true;

  void fields(auto f) {
    using namespace levin::optim;
    using levin::optim::fields;
    fields(options, f);
    f("interval", interval, "when it steps: after each optimizer step, or each epoch", {"epoch", "step"});
    f("frequency", frequency, "every n-th of those");
    f("monitor", monitor, "the metric that ReduceLROnPlateau follows");
    f("strict", strict, "a missing metric is an error, not a warning");
  }
};

struct SchedulerEntry {
  const char* name;
  const char* help;
  AnyOptions (*options)();
  SchedulerConfig (*make)(const AnyOptions& options, const Optimizer& optimizer, const RunLength& length);
};

void fill(auto&, const Optimizer&, std::optional<int64_t>) {}
void fill(o::CosineAnnealingLROptions& options, const Optimizer&, std::optional<int64_t> length) {
  if (options.t_max == 0) options.t_max = length.value_or(0);
}
void fill(o::LinearWarmupCosineOptions& options, const Optimizer&, std::optional<int64_t> length) {
  if (options.total_steps == 0) options.total_steps = length.value_or(0);
}
void fill(o::OneCycleLROptions& options, const Optimizer& optimizer, std::optional<int64_t> length) {
  if (options.max_lr.empty()) options.max_lr = optimizer.lr();
  if (!options.total_steps && !options.epochs && !options.steps_per_epoch) options.total_steps = length;
}

/// Stands for the function that makes one.
struct WarmupCosine {};

template <class T, class Options>
Scheduler construct(const Optimizer& optimizer, const Options& options) {
  if constexpr (std::same_as<T, WarmupCosine>)
    return o::linear_warmup_cosine(optimizer, options);
  else
    return T(optimizer, options);
}

enum class When { kEpoch, kStep, kMetric };

template <class T, class Options, When when = When::kEpoch>
constexpr SchedulerEntry scheduler(const char* name, const char* help) {
  return {name, help,
          [] {
            Scheduled<Options> scheduled;
            if (when == When::kStep) scheduled.interval = "step";
            if (when == When::kMetric) scheduled.monitor = "val_loss";
            return AnyOptions(std::move(scheduled));
          },
          [](const AnyOptions& any, const Optimizer& optimizer, const RunLength& length) {
            const auto& asked = any.get<Scheduled<Options>>();
            auto options = asked.options;
            auto count = asked.interval == "step" ? length.steps : length.epochs;
            if (count && asked.frequency > 1) count = *count / asked.frequency;
            fill(options, optimizer, count);
            return SchedulerConfig{.scheduler = construct<T>(optimizer, options),
                                   .interval = asked.interval,
                                   .frequency = asked.frequency,
                                   .monitor = asked.monitor,
                                   .strict = asked.strict};
          }};
}

/// All schedulers that need nothing but numbers: those of functions and of other schedulers are for programs.
constexpr std::array kSchedulers{
    scheduler<o::StepLR, o::StepLROptions>("StepLR", "decays every step_size steps"),
    scheduler<o::MultiStepLR, o::MultiStepLROptions>("MultiStepLR", "decays at each milestone"),
    scheduler<o::ConstantLR, o::ConstantLROptions>("ConstantLR", "a smaller rate for the first steps"),
    scheduler<o::LinearLR, o::LinearLROptions>("LinearLR", "a line between two factors"),
    scheduler<o::ExponentialLR, o::ExponentialLROptions>("ExponentialLR", "decays every step"),
    scheduler<o::PolynomialLR, o::PolynomialLROptions>("PolynomialLR", "decays to zero by a power"),
    scheduler<o::CosineAnnealingLR, o::CosineAnnealingLROptions>("CosineAnnealingLR", "half a cosine down"),
    scheduler<o::CosineAnnealingWarmRestarts, o::CosineAnnealingWarmRestartsOptions>(
        "CosineAnnealingWarmRestarts", "half a cosine down, again and again"),
    scheduler<o::OneCycleLR, o::OneCycleLROptions, When::kStep>("OneCycleLR", "one rise and fall over the run"),
    scheduler<WarmupCosine, o::LinearWarmupCosineOptions, When::kStep>("LinearWarmupCosine",
                                                                       "a warm-up, then half a cosine down"),
    scheduler<o::ReduceLROnPlateau, o::ReduceLROnPlateauOptions, When::kMetric>(
        "ReduceLROnPlateau", "reduces when a metric stops to improve"),
};

template <class Table>
std::vector<Class> classes_of(const Table& table) {
  std::vector<Class> classes;
  for (const auto& entry : table) classes.push_back({entry.name, entry.help, entry.options});
  return classes;
}

template <class Table>
const auto& entry_of(const Table& table, const std::string& name) {
  for (const auto& entry : table)
    if (name == entry.name) return entry;
  throw Error(levin::detail::concat("[config] \"", name, "\" is not in the table it was chosen from"));
}

}  // namespace

const std::vector<Class>& optimizer_classes() {
  static const auto classes = classes_of(o::optimizer_classes());
  return classes;
}

const std::vector<Class>& scheduler_classes() {
  static const auto classes = classes_of(kSchedulers);
  return classes;
}

Optimizer make_optimizer(const Chosen& chosen, std::vector<Tensor> params) {
  return entry_of(o::optimizer_classes(), chosen.name).make(chosen.options, std::move(params));
}

SchedulerConfig make_scheduler(const Chosen& chosen, const Optimizer& optimizer, const RunLength& length) {
  return entry_of(kSchedulers, chosen.name).make(chosen.options, optimizer, length);
}

}  // namespace levin::cli
