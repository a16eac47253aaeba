#include "levin/optim/schedulers/cosine_schedulers.h"

#include <cmath>
#include <numbers>

#include "levin/optim/schedulers/describe.h"
#include "levin/optim/schedulers/lr_scheduler.h"

namespace levin::optim {
namespace {

constexpr double kPi = std::numbers::pi;

class CosineAnnealingLRImpl final : public detail::LrSchedulerOf<CosineAnnealingLRImpl> {
 public:
  CosineAnnealingLRImpl(const Optimizer& optimizer, CosineAnnealingLROptions options)
      : LrSchedulerOf("CosineAnnealingLR", optimizer), o_(options) {
    LEVIN_CHECK(o_.t_max >= 1, "[CosineAnnealingLR] t_max=", o_.t_max, " must be at least 1");
  }
  static void fields(auto& self, auto&& f) {
    f("T_max", self.o_.t_max);
    f("eta_min", self.o_.eta_min);
  }

 protected:
  double next_lr(size_t group) const override {
    if (is_initial_) return lr(group);
    // At the bottom the recursion would divide by zero, so the first step up is taken from the top.
    if ((last_epoch_ - 1 - o_.t_max) % (2 * o_.t_max) == 0)
      return lr(group) + (base_lr(group) - o_.eta_min) * (1 - std::cos(kPi / static_cast<double>(o_.t_max))) / 2;
    return (1 + cosine(last_epoch_)) / (1 + cosine(last_epoch_ - 1)) * (lr(group) - o_.eta_min) + o_.eta_min;
  }
  double closed_lr(size_t group) const override {
    return o_.eta_min + (base_lr(group) - o_.eta_min) * (1 + cosine(last_epoch_)) / 2;
  }

 private:
  double cosine(int64_t epoch) const {
    return std::cos(kPi * static_cast<double>(epoch) / static_cast<double>(o_.t_max));
  }
  CosineAnnealingLROptions o_;
};

class WarmRestartsImpl final : public detail::LrSchedulerOf<WarmRestartsImpl> {
 public:
  WarmRestartsImpl(const Optimizer& optimizer, CosineAnnealingWarmRestartsOptions options)
      : LrSchedulerOf("CosineAnnealingWarmRestarts", optimizer), o_(options), cycle_(options.t_0) {
    LEVIN_CHECK(o_.t_0 >= 1, "[CosineAnnealingWarmRestarts] t_0=", o_.t_0, " must be at least 1");
    LEVIN_CHECK(o_.t_mult >= 1, "[CosineAnnealingWarmRestarts] t_mult=", o_.t_mult, " must be at least 1");
  }
  static void fields(auto& self, auto&& f) {
    f("T_0", self.o_.t_0);
    f("T_mult", self.o_.t_mult);
    f("eta_min", self.o_.eta_min);
    f("T_i", self.cycle_);
    f("T_cur", self.at_);
  }

  void step() override {
    if (last_epoch_ < 0) {
      cycle_ = o_.t_0;
      at_ = 0;
    } else if (++at_ >= cycle_) {
      at_ -= cycle_;
      cycle_ *= o_.t_mult;
    }
    LrSchedulerOf::step();
  }
  void restart() override {
    cycle_ = o_.t_0;
    at_ = 0;
    LrSchedulerOf::restart();
  }

 protected:
  double next_lr(size_t group) const override {
    const double angle = kPi * static_cast<double>(at_) / static_cast<double>(cycle_);
    return o_.eta_min + (base_lr(group) - o_.eta_min) * (1 + std::cos(angle)) / 2;
  }

 private:
  CosineAnnealingWarmRestartsOptions o_;
  int64_t cycle_;
  int64_t at_ = 0;
};

}  // namespace

CosineAnnealingLR::CosineAnnealingLR(const Optimizer& optimizer, CosineAnnealingLROptions options)
    : Scheduler(detail::begun<CosineAnnealingLRImpl>(optimizer, options)) {}
CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(const Optimizer& optimizer,
                                                         CosineAnnealingWarmRestartsOptions options)
    : Scheduler(detail::begun<WarmRestartsImpl>(optimizer, options)) {}

void fields(CosineAnnealingLROptions& o, auto f) {
  f("t_max", o.t_max, "steps from the initial learning rate to eta_min; 0: those of the run");
  f("eta_min", o.eta_min, detail::kEtaMin);
}
void fields(CosineAnnealingWarmRestartsOptions& o, auto f) {
  f("t_0", o.t_0, "steps of the first cycle; must be given");
  f("t_mult", o.t_mult, "each cycle is this many times as long as the one before");
  f("eta_min", o.eta_min, detail::kEtaMin);
}

SchedulerClass CosineAnnealingLR::describe() {
  return detail::describe_scheduler<CosineAnnealingLROptions>(
      {.name = "CosineAnnealingLR", .help = "cosine decay to eta_min"},
      [](const Optimizer& optimizer, CosineAnnealingLROptions options, std::optional<int64_t> length) {
        if (options.t_max == 0) options.t_max = length.value_or(0);
        return CosineAnnealingLR(optimizer, options);
      });
}
SchedulerClass CosineAnnealingWarmRestarts::describe() {
  return detail::describe_scheduler<CosineAnnealingWarmRestarts, CosineAnnealingWarmRestartsOptions>(
      {.name = "CosineAnnealingWarmRestarts", .help = "cosine decay, restarted after each cycle (SGDR)"});
}

}  // namespace levin::optim
