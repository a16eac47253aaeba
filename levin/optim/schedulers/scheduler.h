#pragma once

#include <memory>
#include <string>
#include <vector>

#include "levin/core/state_dict.h"
#include "levin/optim/optimizer.h"

namespace levin {

namespace optim {
struct SchedulerClass;
}

/// What a scheduler must offer to stand in a SequentialLR.
class Restartable {
 public:
  virtual ~Restartable() = default;
  /// Takes back the count, not the learning rate, of the step that construction made.
  virtual void undo() = 0;
  /// Makes that first step again, from the learning rates the optimizer has now.
  virtual void begin() = 0;
  /// Starts over in the middle of a run, at the learning rate that belongs to its own step 0.
  virtual void restart() = 0;
};

/// The interface of a learning rate scheduler. Users hold the handle, `Scheduler`.
class SchedulerImpl {
 public:
  virtual ~SchedulerImpl() = default;

  /// "CosineAnnealingLR"
  virtual std::string name() const = 0;
  virtual const Optimizer& optimizer() const = 0;
  /// Moves on by one, after the optimizer's step (or at the end of an epoch).
  virtual void step() = 0;
  /// As step(), for one that follows a metric; others refuse it with an Error.
  virtual void step_metric(double metric);
  virtual bool needs_metric() const { return false; }
  /// The learning rate of each group, as last set.
  virtual std::vector<double> last_lr() const = 0;
  /// Names are torch's. The learning rates themselves are in the optimizer's state: load both.
  virtual StateDict state_dict() const = 0;
  virtual void load_state_dict(const StateDict& state) = 0;
  /// Null when it cannot stand in a SequentialLR or a ChainedScheduler.
  virtual Restartable* restartable() { return nullptr; }
};

/// A handle to a scheduler: copies share, an empty one exists. It keeps its optimizer alive.
///
///     optim::CosineAnnealingLR scheduler(opt, {.t_max = 100});
///     opt.step();
///     scheduler.step();
class Scheduler {
 public:
  Scheduler() = default;
  explicit Scheduler(std::shared_ptr<SchedulerImpl> impl) : impl_(std::move(impl)) {}

  void step() { get().step(); }
  /// For ReduceLROnPlateau.
  void step(double metric) { get().step_metric(metric); }
  void step(const Tensor& metric) { get().step_metric(metric.item<double>()); }
  bool needs_metric() const { return get().needs_metric(); }

  std::string name() const { return get().name(); }
  const Optimizer& optimizer() const { return get().optimizer(); }
  std::vector<double> last_lr() const { return get().last_lr(); }
  StateDict state_dict() const { return get().state_dict(); }
  void load_state_dict(const StateDict& state) const { get().load_state_dict(state); }

  explicit operator bool() const { return impl_ != nullptr; }
  const std::shared_ptr<SchedulerImpl>& impl() const { return impl_; }

 protected:
  /// The scheduler; an Error when this handle is empty.
  SchedulerImpl& get() const {
    if (!impl_) [[unlikely]]
      fail_empty();
    return *impl_;
  }
  [[noreturn]] static void fail_empty();

  std::shared_ptr<SchedulerImpl> impl_;
};

}  // namespace levin
