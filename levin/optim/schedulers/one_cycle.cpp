#include "levin/optim/schedulers/one_cycle.h"

#include <cmath>
#include <numbers>

#include "levin/core/words.h"
#include "levin/optim/schedulers/describe.h"
#include "levin/optim/schedulers/lr_scheduler.h"

namespace levin::optim {
namespace {

int64_t steps_of(const OneCycleLROptions& o) {
  if (o.total_steps) {
    LEVIN_CHECK(*o.total_steps >= 1, "[OneCycleLR] total_steps=", *o.total_steps, " must be at least 1");
    return *o.total_steps;
  }
  LEVIN_CHECK(o.epochs && o.steps_per_epoch, "[OneCycleLR] give total_steps, or epochs and steps_per_epoch");
  LEVIN_CHECK(*o.epochs >= 1, "[OneCycleLR] epochs=", *o.epochs, " must be at least 1");
  LEVIN_CHECK(*o.steps_per_epoch >= 1, "[OneCycleLR] steps_per_epoch=", *o.steps_per_epoch, " must be at least 1");
  return *o.epochs * *o.steps_per_epoch;
}

class OneCycleLRImpl final : public detail::LrSchedulerOf<OneCycleLRImpl> {
 public:
  OneCycleLRImpl(const Optimizer& optimizer, const OneCycleLROptions& o)
      : LrSchedulerOf("OneCycleLR", optimizer),
        total_steps_(steps_of(o)),
        pct_start_(o.pct_start),
        three_phase_(o.three_phase),
        anneal_(o.anneal_strategy) {
    LEVIN_CHECK(o.pct_start >= 0 && o.pct_start <= 1, "[OneCycleLR] pct_start=", o.pct_start, " must be in [0, 1]");
    LEVIN_CHECK(o.div_factor > 0, "[OneCycleLR] div_factor=", o.div_factor, " must be > 0");
    LEVIN_CHECK(o.final_div_factor > 0, "[OneCycleLR] final_div_factor=", o.final_div_factor, " must be > 0");
    if (anneal_ != "cos" && anneal_ != "linear")
      fail_unknown("OneCycleLR", "anneal_strategy", anneal_, std::vector<std::string>{"cos", "linear"});
    LEVIN_CHECK(!o.max_lr.empty(), "[OneCycleLR] max_lr must be given");

    max_lr_ = o.max_lr.resolve(name_, "max_lr", num_groups());
    for (size_t group = 0; group < num_groups(); ++group) {
      set_initial_lr(group, max_lr_[group] / o.div_factor);
      min_lr_.push_back(base_lr(group) / o.final_div_factor);
    }
    if (!o.cycle_momentum) return;
    const bool has_beta1 = optimizer.impl()->find_hyper(0, "beta1");
    LEVIN_CHECK(has_beta1 || optimizer.impl()->find_hyper(0, "momentum"), "[OneCycleLR] ", optimizer.name(),
                " has neither momentum nor beta1; set cycle_momentum = false");
    momenta_ = detail::hyper_of_all_groups(name_, optimizer, has_beta1 ? "beta1" : "momentum");
    max_momentum_ = o.max_momentum.resolve(name_, "max_momentum", num_groups());
    base_momentum_ = o.base_momentum.resolve(name_, "base_momentum", num_groups());
  }

  static void fields(auto& self, auto&& f) {
    f("total_steps", self.total_steps_);
    f("pct_start", self.pct_start_);
    f("three_phase", self.three_phase_);
    f("_anneal_func_type", self.anneal_);
    f("max_lr", self.max_lr_);
    f("min_lr", self.min_lr_);
    f("max_momentum", self.max_momentum_);
    f("base_momentum", self.base_momentum_);
  }

 protected:
  double next_lr(size_t group) const override {
    LEVIN_CHECK(last_epoch_ <= total_steps_, "[OneCycleLR.step] step ", last_epoch_,
                " is beyond total_steps=", total_steps_);
    const double start = base_lr(group), top = max_lr_[group], end = min_lr_[group];
    return three_phase_ ? along({start, top, start, end}) : along({start, top, end});
  }

  void also_update() override {
    for (size_t group = 0; group < momenta_.size(); ++group) {
      const double high = max_momentum_[group], low = base_momentum_[group];
      *momenta_[group] = three_phase_ ? along({high, low, high, high}) : along({high, low, high});
    }
  }

 private:
  // The value now, on the way through these points.
  double along(std::initializer_list<double> points) const {
    const size_t phases = points.size() - 1;
    const double* point = points.begin();
    const auto now = static_cast<double>(last_epoch_);
    double start = 0;
    for (size_t phase = 0;; ++phase) {
      const bool is_last = phase + 1 == phases;
      const double rise = pct_start_ * static_cast<double>(total_steps_);
      const double end = is_last ? static_cast<double>(total_steps_ - 1) : phase == 0 ? rise - 1 : 2 * rise - 2;
      if (now <= end || is_last)
        return anneal(point[phase], point[phase + 1], end == start ? 1 : (now - start) / (end - start));
      start = end;
    }
  }

  double anneal(double from, double to, double share) const {
    if (anneal_ == "linear") return (to - from) * share + from;
    return to + (from - to) / 2 * (std::cos(std::numbers::pi * share) + 1);
  }

  int64_t total_steps_;
  double pct_start_;
  bool three_phase_;
  std::string anneal_;
  std::vector<double> max_lr_, min_lr_, max_momentum_, base_momentum_;
  std::vector<double*> momenta_;
};

}  // namespace

OneCycleLR::OneCycleLR(const Optimizer& optimizer, OneCycleLROptions options)
    : Scheduler(detail::begun<OneCycleLRImpl>(optimizer, options)) {}

void fields(OneCycleLROptions& o, auto f) {
  f("max_lr", o.max_lr, "maximum learning rate; default: the optimizer's");
  f("total_steps", o.total_steps, "steps of the cycle; default: those of the run");
  f("epochs", o.epochs, "with steps_per_epoch, in place of total_steps");
  f("steps_per_epoch", o.steps_per_epoch, "with epochs, in place of total_steps");
  f("pct_start", o.pct_start, "fraction of the cycle in which the learning rate rises");
  f("anneal_strategy", o.anneal_strategy, "shape of rise and fall", {"cos", "linear"});
  f("cycle_momentum", o.cycle_momentum, "move momentum (or beta1) against the learning rate");
  f("base_momentum", o.base_momentum, "minimum momentum");
  f("max_momentum", o.max_momentum, "maximum momentum");
  f("div_factor", o.div_factor, "the cycle starts at max_lr / div_factor");
  f("final_div_factor", o.final_div_factor, "the cycle ends at its start / final_div_factor");
  f("three_phase", o.three_phase, "fall to the start first, then to the end");
}

SchedulerClass OneCycleLR::describe() {
  return detail::describe_scheduler<OneCycleLROptions>(
      {.name = "OneCycleLR", .help = "one rise and fall over the run (1cycle)", .interval = "step"},
      [](const Optimizer& optimizer, OneCycleLROptions options, std::optional<int64_t> length) {
        if (options.max_lr.empty()) options.max_lr = optimizer.lr();
        if (!options.total_steps && !options.epochs && !options.steps_per_epoch) options.total_steps = length;
        return OneCycleLR(optimizer, options);
      });
}

}  // namespace levin::optim
