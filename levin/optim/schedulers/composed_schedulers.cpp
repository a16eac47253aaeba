#include "levin/optim/schedulers/composed_schedulers.h"

#include <algorithm>

#include "levin/optim/schedulers/cosine_schedulers.h"
#include "levin/optim/schedulers/decay_schedulers.h"
#include "levin/optim/schedulers/describe.h"
#include "levin/optim/schedulers/lr_scheduler.h"

namespace levin::optim {
namespace {

// What the two compositions share: the parts, and their state.
class Composed : public SchedulerImpl, public Restartable {
 public:
  std::string name() const final { return name_; }
  const Optimizer& optimizer() const final { return optimizer_; }
  std::vector<double> last_lr() const final { return last_lr_; }
  Restartable* restartable() final { return this; }

  void undo() final {
    for (auto& part : parts_) part.impl()->restartable()->undo();
  }

  StateDict state_dict() const final {
    StateDict out;
    StateList states;
    for (const auto& part : parts_) states.emplace_back(part.state_dict());
    out["last_epoch"] = last_epoch_;
    out["_last_lr"] = detail::to_state(last_lr_);
    out["_schedulers"] = std::move(states);
    return out;
  }

  void load_state_dict(const StateDict& in) final {
    const auto& states = in.at("_schedulers").to_list();
    LEVIN_CHECK(states.size() == parts_.size(), "[", name_, ".load_state_dict] the saved state is of ", states.size(),
                " schedulers, there are ", parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].load_state_dict(states[i].to_dict());
    detail::read_state(in, "last_epoch", last_epoch_);
    detail::read_state(in, "_last_lr", last_lr_);
  }

 protected:
  Composed(std::string name, const Optimizer& optimizer, std::vector<Scheduler> parts)
      : name_(std::move(name)), optimizer_(optimizer), parts_(std::move(parts)) {
    lrs_ = detail::hyper_of_all_groups(name_, optimizer_, "lr");
    for (size_t i = 0; i < parts_.size(); ++i) {
      LEVIN_CHECK(parts_[i], "[", name_, "] scheduler ", i, " is an empty handle");
      LEVIN_CHECK(parts_[i].impl()->restartable(), "[", name_, "] scheduler ", i, " is ", parts_[i].name(),
                  ", which needs a metric and cannot be a part");
      LEVIN_CHECK(parts_[i].optimizer().impl() == optimizer_.impl(), "[", name_, "] scheduler ", i, " (",
                  parts_[i].name(), ") belongs to another optimizer");
    }
  }

  Restartable& part(size_t index) { return *parts_[index].impl()->restartable(); }
  void read_lr() { last_lr_ = detail::current(lrs_); }
  void reset_lr() {
    for (size_t group = 0; group < lrs_.size(); ++group)
      if (const double* initial = optimizer_.impl()->find_hyper(group, "initial_lr")) *lrs_[group] = *initial;
  }

  std::string name_;
  Optimizer optimizer_;
  std::vector<Scheduler> parts_;
  std::vector<double*> lrs_;
  std::vector<double> last_lr_;
  int64_t last_epoch_ = 0;
};

class SequentialLRImpl final : public Composed {
 public:
  SequentialLRImpl(const Optimizer& optimizer, std::vector<Scheduler> parts, std::vector<int64_t> milestones)
      : Composed("SequentialLR", optimizer, std::move(parts)), milestones_(std::move(milestones)) {
    LEVIN_CHECK(!parts_.empty(), "[SequentialLR] the list of schedulers is empty");
    LEVIN_CHECK(milestones_.size() + 1 == parts_.size(), "[SequentialLR] ", parts_.size(), " schedulers need ",
                parts_.size() - 1, " milestones, there are ", milestones_.size());
    LEVIN_CHECK(std::ranges::is_sorted(milestones_), "[SequentialLR] milestones must rise");
    undo();
    begin();
  }

  void step() override {
    ++last_epoch_;
    const auto passed = std::ranges::upper_bound(milestones_, last_epoch_) - milestones_.begin();
    const auto index = static_cast<size_t>(passed);
    if (index > 0 && milestones_[index - 1] == last_epoch_)
      part(index).restart();
    else
      parts_[index].step();
    read_lr();
  }

  void begin() override {
    last_epoch_ = 0;
    reset_lr();
    part(0).begin();
    read_lr();
  }
  void restart() override {
    reset_lr();
    last_epoch_ = 0;
    part(0).restart();
    read_lr();
  }

 private:
  std::vector<int64_t> milestones_;
};

class ChainedSchedulerImpl final : public Composed {
 public:
  explicit ChainedSchedulerImpl(std::vector<Scheduler> parts)
      : Composed("ChainedScheduler", parts.empty() || !parts[0] ? Optimizer() : parts[0].optimizer(), parts) {
    read_lr();
  }

  void step() override {
    for (auto& part : parts_) part.step();
    read_lr();
  }
  // Torch's numbers: as the first of a SequentialLR the parts make a common step here, not their first ones.
  void begin() override { step(); }
  // Each part acts on what the one before left, so all start again from the initial learning rate.
  void restart() override {
    reset_lr();
    for (size_t i = 0; i < parts_.size(); ++i) part(i).begin();
    read_lr();
  }
};

}  // namespace

SequentialLR::SequentialLR(const Optimizer& optimizer, std::vector<Scheduler> schedulers, SequentialLROptions options)
    : Scheduler(std::make_shared<SequentialLRImpl>(optimizer, std::move(schedulers), std::move(options.milestones))) {}

ChainedScheduler::ChainedScheduler(std::vector<Scheduler> schedulers) {
  LEVIN_CHECK(!schedulers.empty(), "[ChainedScheduler] the list of schedulers is empty");
  impl_ = std::make_shared<ChainedSchedulerImpl>(std::move(schedulers));
}

Scheduler linear_warmup_cosine(const Optimizer& optimizer, LinearWarmupCosineOptions options) {
  LEVIN_CHECK(options.warmup_steps >= 0 && options.warmup_steps < options.total_steps,
              "[linear_warmup_cosine] warmup_steps=", options.warmup_steps,
              " must be >= 0 and less than total_steps=", options.total_steps);
  const CosineAnnealingLROptions cosine{.t_max = options.total_steps - options.warmup_steps,
                                        .eta_min = options.eta_min};
  if (options.warmup_steps == 0) return CosineAnnealingLR(optimizer, cosine);
  LinearLR warmup(optimizer, {.start_factor = options.start_factor, .total_iters = options.warmup_steps});
  CosineAnnealingLR decay(optimizer, cosine);
  return SequentialLR(optimizer, {warmup, decay}, {.milestones = {options.warmup_steps}});
}

void fields(LinearWarmupCosineOptions& o, auto f) {
  f("total_steps", o.total_steps, "steps of warm-up and decay; 0: those of the run");
  f("warmup_steps", o.warmup_steps, "steps of the warm-up");
  f("start_factor", o.start_factor, "factor of the first step of the warm-up");
  f("eta_min", o.eta_min, "learning rate at the end");
}

SchedulerClass describe_linear_warmup_cosine() {
  return detail::describe_scheduler<LinearWarmupCosineOptions>(
      {.name = "LinearWarmupCosine", .help = "linear warm-up, then cosine decay", .interval = "step"},
      [](const Optimizer& optimizer, LinearWarmupCosineOptions options, std::optional<int64_t> length) {
        if (options.total_steps == 0 && length) {
          options.total_steps = *length;
          // A short try of a long recipe.
          options.warmup_steps = std::min(options.warmup_steps, std::max<int64_t>(*length - 1, 0));
        }
        return linear_warmup_cosine(optimizer, options);
      });
}

}  // namespace levin::optim
