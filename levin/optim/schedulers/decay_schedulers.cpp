#include "levin/optim/schedulers/decay_schedulers.h"

#include <algorithm>
#include <cmath>

#include "levin/optim/schedulers/describe.h"
#include "levin/optim/schedulers/lr_scheduler.h"

namespace levin::optim {
namespace {

using detail::begun;
using detail::LrSchedulerOf;

void check_iters(const char* name, int64_t total_iters) {
  LEVIN_CHECK(total_iters >= 1, "[", name, "] total_iters=", total_iters, " must be at least 1");
}

class StepLRImpl final : public LrSchedulerOf<StepLRImpl> {
 public:
  StepLRImpl(const Optimizer& optimizer, StepLROptions options) : LrSchedulerOf("StepLR", optimizer), o_(options) {
    LEVIN_CHECK(o_.step_size >= 1, "[StepLR] step_size=", o_.step_size, " must be at least 1");
  }
  static void fields(auto& self, auto&& f) {
    f("step_size", self.o_.step_size);
    f("gamma", self.o_.gamma);
  }

 protected:
  double next_lr(size_t group) const override {
    return last_epoch_ == 0 || last_epoch_ % o_.step_size != 0 ? lr(group) : lr(group) * o_.gamma;
  }
  double closed_lr(size_t group) const override {
    return base_lr(group) * std::pow(o_.gamma, static_cast<double>(last_epoch_ / o_.step_size));
  }

 private:
  StepLROptions o_;
};

class MultiStepLRImpl final : public LrSchedulerOf<MultiStepLRImpl> {
 public:
  MultiStepLRImpl(const Optimizer& optimizer, MultiStepLROptions options)
      : LrSchedulerOf("MultiStepLR", optimizer), o_(std::move(options)) {
    LEVIN_CHECK(!o_.milestones.empty(), "[MultiStepLR] milestones is empty; give the steps at which to decay");
  }
  static void fields(auto& self, auto&& f) {
    f("milestones", self.o_.milestones);
    f("gamma", self.o_.gamma);
  }

 protected:
  double next_lr(size_t group) const override {
    const auto times = std::ranges::count(o_.milestones, last_epoch_);
    return times == 0 ? lr(group) : lr(group) * std::pow(o_.gamma, static_cast<double>(times));
  }
  double closed_lr(size_t group) const override {
    const auto passed =
        std::ranges::count_if(o_.milestones, [&](int64_t milestone) { return milestone <= last_epoch_; });
    return base_lr(group) * std::pow(o_.gamma, static_cast<double>(passed));
  }

 private:
  MultiStepLROptions o_;
};

class ConstantLRImpl final : public LrSchedulerOf<ConstantLRImpl> {
 public:
  ConstantLRImpl(const Optimizer& optimizer, ConstantLROptions options)
      : LrSchedulerOf("ConstantLR", optimizer), o_(options) {
    LEVIN_CHECK(o_.factor > 0 && o_.factor <= 1, "[ConstantLR] factor=", o_.factor, " must be in (0, 1]");
    check_iters("ConstantLR", o_.total_iters);
  }
  static void fields(auto& self, auto&& f) {
    f("factor", self.o_.factor);
    f("total_iters", self.o_.total_iters);
  }

 protected:
  double next_lr(size_t group) const override {
    if (last_epoch_ == 0) return lr(group) * o_.factor;
    return last_epoch_ != o_.total_iters ? lr(group) : lr(group) * (1 / o_.factor);
  }
  double closed_lr(size_t group) const override {
    return base_lr(group) * (last_epoch_ >= o_.total_iters ? 1 : o_.factor);
  }

 private:
  ConstantLROptions o_;
};

class LinearLRImpl final : public LrSchedulerOf<LinearLRImpl> {
 public:
  LinearLRImpl(const Optimizer& optimizer, LinearLROptions options)
      : LrSchedulerOf("LinearLR", optimizer), o_(options) {
    LEVIN_CHECK(o_.start_factor > 0 && o_.start_factor <= 1, "[LinearLR] start_factor=", o_.start_factor,
                " must be in (0, 1]");
    LEVIN_CHECK(o_.end_factor >= 0 && o_.end_factor <= 1, "[LinearLR] end_factor=", o_.end_factor,
                " must be in [0, 1]");
    check_iters("LinearLR", o_.total_iters);
  }
  static void fields(auto& self, auto&& f) {
    f("start_factor", self.o_.start_factor);
    f("end_factor", self.o_.end_factor);
    f("total_iters", self.o_.total_iters);
  }

 protected:
  double next_lr(size_t group) const override {
    if (last_epoch_ == 0) return lr(group) * o_.start_factor;
    if (is_initial_ || last_epoch_ > o_.total_iters) return lr(group);
    const double rise = o_.end_factor - o_.start_factor;
    const auto iters = static_cast<double>(o_.total_iters);
    return lr(group) * (1 + rise / (iters * o_.start_factor + static_cast<double>(last_epoch_ - 1) * rise));
  }
  double closed_lr(size_t group) const override {
    const auto done = static_cast<double>(std::min(o_.total_iters, last_epoch_));
    return base_lr(group) *
           (o_.start_factor + (o_.end_factor - o_.start_factor) * done / static_cast<double>(o_.total_iters));
  }

 private:
  LinearLROptions o_;
};

class ExponentialLRImpl final : public LrSchedulerOf<ExponentialLRImpl> {
 public:
  ExponentialLRImpl(const Optimizer& optimizer, ExponentialLROptions options)
      : LrSchedulerOf("ExponentialLR", optimizer), o_(options) {
    LEVIN_CHECK(std::isfinite(o_.gamma), "[ExponentialLR] gamma=", o_.gamma, " must be given, a finite number");
  }
  static void fields(auto& self, auto&& f) { f("gamma", self.o_.gamma); }

 protected:
  double next_lr(size_t group) const override { return is_initial_ ? lr(group) : lr(group) * o_.gamma; }
  double closed_lr(size_t group) const override {
    return base_lr(group) * std::pow(o_.gamma, static_cast<double>(last_epoch_));
  }

 private:
  ExponentialLROptions o_;
};

class PolynomialLRImpl final : public LrSchedulerOf<PolynomialLRImpl> {
 public:
  PolynomialLRImpl(const Optimizer& optimizer, PolynomialLROptions options)
      : LrSchedulerOf("PolynomialLR", optimizer), o_(options) {
    check_iters("PolynomialLR", o_.total_iters);
  }
  static void fields(auto& self, auto&& f) {
    f("total_iters", self.o_.total_iters);
    f("power", self.o_.power);
  }

 protected:
  double next_lr(size_t group) const override {
    if (is_initial_ || last_epoch_ > o_.total_iters) return lr(group);
    return lr(group) * std::pow(left(last_epoch_) / left(last_epoch_ - 1), o_.power);
  }
  double closed_lr(size_t group) const override {
    return base_lr(group) * std::pow(left(std::min(o_.total_iters, last_epoch_)), o_.power);
  }

 private:
  double left(int64_t epoch) const { return 1 - static_cast<double>(epoch) / static_cast<double>(o_.total_iters); }
  PolynomialLROptions o_;
};

class LambdaLRImpl final : public LrSchedulerOf<LambdaLRImpl> {
 public:
  LambdaLRImpl(const Optimizer& optimizer, std::vector<LambdaLR::Factor> factors)
      : LrSchedulerOf("LambdaLR", optimizer), factors_(std::move(factors)) {
    LEVIN_CHECK(factors_.size() == num_groups(), "[LambdaLR] ", factors_.size(),
                " functions are given, the optimizer has ", num_groups(), " parameter groups");
    LEVIN_CHECK(std::ranges::all_of(factors_, [](const auto& factor) { return factor != nullptr; }),
                "[LambdaLR] a function is empty; give one that returns the factor of a step");
  }
  static void fields(auto&, auto&&) {}

 protected:
  double next_lr(size_t group) const override { return base_lr(group) * factors_[group](last_epoch_); }

 private:
  std::vector<LambdaLR::Factor> factors_;
};

}  // namespace

StepLR::StepLR(const Optimizer& optimizer, StepLROptions options) : Scheduler(begun<StepLRImpl>(optimizer, options)) {}
MultiStepLR::MultiStepLR(const Optimizer& optimizer, MultiStepLROptions options)
    : Scheduler(begun<MultiStepLRImpl>(optimizer, std::move(options))) {}
ConstantLR::ConstantLR(const Optimizer& optimizer, ConstantLROptions options)
    : Scheduler(begun<ConstantLRImpl>(optimizer, options)) {}
LinearLR::LinearLR(const Optimizer& optimizer, LinearLROptions options)
    : Scheduler(begun<LinearLRImpl>(optimizer, options)) {}
ExponentialLR::ExponentialLR(const Optimizer& optimizer, ExponentialLROptions options)
    : Scheduler(begun<ExponentialLRImpl>(optimizer, options)) {}
PolynomialLR::PolynomialLR(const Optimizer& optimizer, PolynomialLROptions options)
    : Scheduler(begun<PolynomialLRImpl>(optimizer, options)) {}
LambdaLR::LambdaLR(const Optimizer& optimizer, Factor factor)
    : LambdaLR(optimizer, std::vector<Factor>(optimizer.num_groups(), std::move(factor))) {}
LambdaLR::LambdaLR(const Optimizer& optimizer, std::vector<Factor> factors)
    : Scheduler(begun<LambdaLRImpl>(optimizer, std::move(factors))) {}

void fields(StepLROptions& o, auto f) {
  f("step_size", o.step_size, "steps between two decays; must be given");
  f("gamma", o.gamma, detail::kGamma);
}
void fields(MultiStepLROptions& o, auto f) {
  f("milestones", o.milestones, "steps at which to decay; must be given");
  f("gamma", o.gamma, detail::kGamma);
}
void fields(ConstantLROptions& o, auto f) {
  f("factor", o.factor, detail::kGamma);
  f("total_iters", o.total_iters, "step from which the full learning rate is used");
}
void fields(LinearLROptions& o, auto f) {
  f("start_factor", o.start_factor, "factor of the first step");
  f("end_factor", o.end_factor, "factor from step total_iters on");
  f("total_iters", o.total_iters, "steps from start_factor to end_factor");
}
void fields(ExponentialLROptions& o, auto f) {
  f("gamma", o.gamma, "factor of the learning rate in each step; must be given");
}
void fields(PolynomialLROptions& o, auto f) {
  f("total_iters", o.total_iters, "step at which zero is reached");
  f("power", o.power, "power of (1 - step / total_iters)");
}

SchedulerClass StepLR::describe() {
  return detail::describe_scheduler<StepLR, StepLROptions>(
      {.name = "StepLR", .help = "multiplies by gamma every step_size steps"});
}
SchedulerClass MultiStepLR::describe() {
  return detail::describe_scheduler<MultiStepLR, MultiStepLROptions>(
      {.name = "MultiStepLR", .help = "multiplies by gamma at each milestone"});
}
SchedulerClass ConstantLR::describe() {
  return detail::describe_scheduler<ConstantLR, ConstantLROptions>(
      {.name = "ConstantLR", .help = "a smaller learning rate for the first steps"});
}
SchedulerClass LinearLR::describe() {
  return detail::describe_scheduler<LinearLR, LinearLROptions>(
      {.name = "LinearLR", .help = "linear from one factor to another, e.g. a warm-up"});
}
SchedulerClass ExponentialLR::describe() {
  return detail::describe_scheduler<ExponentialLR, ExponentialLROptions>(
      {.name = "ExponentialLR", .help = "multiplies by gamma every step"});
}
SchedulerClass PolynomialLR::describe() {
  return detail::describe_scheduler<PolynomialLR, PolynomialLROptions>(
      {.name = "PolynomialLR", .help = "polynomial decay to zero"});
}

}  // namespace levin::optim
