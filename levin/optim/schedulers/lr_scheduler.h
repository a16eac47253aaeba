#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "levin/core/error.h"
#include "levin/optim/schedulers/scheduler.h"

namespace levin::optim::detail {

/// Values of a scheduler to and from its state; what a file lacks stays as it is.
void read_state(const StateDict& in, const char* name, double& out);
void read_state(const StateDict& in, const char* name, int64_t& out);
void read_state(const StateDict& in, const char* name, bool& out);
void read_state(const StateDict& in, const char* name, std::string& out);
void read_state(const StateDict& in, const char* name, std::vector<double>& out);
void read_state(const StateDict& in, const char* name, std::vector<int64_t>& out);

template <class T>
StateValue to_state(const T& value) {
  if constexpr (requires { value.begin(); } && !std::same_as<T, std::string>)
    return StateList(value.begin(), value.end());
  else
    return StateValue(value);
}

/// The addresses of a hyperparameter in all groups; an Error when the optimizer has none of that name.
std::vector<double*> hyper_of_all_groups(const std::string& scheduler, const Optimizer& optimizer, const char* hyper);
std::vector<double> current(const std::vector<double*>& addresses);

/// A scheduler in torch's chainable form: each step computes the new learning rate from the current one, so that
/// several schedulers can act on one optimizer. Construction makes a first step.
class LrScheduler : public SchedulerImpl, public Restartable {
 public:
  std::string name() const final { return name_; }
  const Optimizer& optimizer() const final { return optimizer_; }
  void step() override;
  std::vector<double> last_lr() const final { return last_lr_; }
  StateDict state_dict() const final;
  void load_state_dict(const StateDict& state) final;
  Restartable* restartable() final { return this; }

  void undo() final { --last_epoch_; }
  void begin() final;
  void restart() override;

 protected:
  LrScheduler(std::string name, const Optimizer& optimizer);

  /// The learning rate of a group at `last_epoch_`, from the current one.
  virtual double next_lr(size_t group) const = 0;
  /// The same from the base learning rate alone.
  virtual double closed_lr(size_t group) const { return next_lr(group); }
  /// What else changes with the learning rate.
  virtual void also_update() {}
  virtual void save(StateDict& out) const = 0;
  virtual void load(const StateDict& in) = 0;

  double lr(size_t group) const { return *lrs_[group]; }
  double base_lr(size_t group) const { return base_lrs_[group]; }
  size_t num_groups() const { return lrs_.size(); }
  /// Makes `lr` the initial learning rate of a group, also for schedulers to come.
  void set_initial_lr(size_t group, double lr);
  std::string name_;
  int64_t last_epoch_ = -1;
  bool is_initial_ = false;

 private:
  void finish_update();

  Optimizer optimizer_;
  std::vector<double*> lrs_;
  std::vector<double> base_lrs_;
  std::vector<double> last_lr_;
  int64_t step_count_ = 0;
};

/// Saves and loads what `Derived::fields(self, f)` lists: it calls f("torch's name", value) for each.
template <class Derived>
class LrSchedulerOf : public LrScheduler {
 protected:
  using LrScheduler::LrScheduler;
  void save(StateDict& out) const override {
    Derived::fields(static_cast<const Derived&>(*this),
                    [&](const char* field, const auto& value) { out[field] = to_state(value); });
  }
  void load(const StateDict& in) override {
    Derived::fields(static_cast<Derived&>(*this),
                    [&](const char* field, auto& value) { read_state(in, field, value); });
  }
};

/// Constructs a scheduler and makes its first step.
template <class Impl, class... Args>
std::shared_ptr<Impl> begun(Args&&... args) {
  auto impl = std::make_shared<Impl>(std::forward<Args>(args)...);
  impl->begin();
  return impl;
}

}  // namespace levin::optim::detail
