#include "levin/optim/schedulers/plateau.h"

#include <algorithm>
#include <limits>

#include "levin/core/words.h"
#include "levin/optim/schedulers/describe.h"
#include "levin/optim/schedulers/lr_scheduler.h"

namespace levin::optim {
namespace {

class ReduceLROnPlateauImpl final : public SchedulerImpl {
 public:
  ReduceLROnPlateauImpl(const Optimizer& optimizer, ReduceLROnPlateauOptions options)
      : optimizer_(optimizer), o_(std::move(options)), lrs_(detail::hyper_of_all_groups(name(), optimizer, "lr")) {
    check_words();
    LEVIN_CHECK(o_.factor < 1, "[ReduceLROnPlateau] factor=", o_.factor, " must be < 1");
    LEVIN_CHECK(o_.patience >= 0, "[ReduceLROnPlateau] patience=", o_.patience, " must be >= 0");
    LEVIN_CHECK(o_.cooldown >= 0, "[ReduceLROnPlateau] cooldown=", o_.cooldown, " must be >= 0");
    min_lrs_ = o_.min_lr.resolve(name(), "min_lr", lrs_.size());
    best_ = o_.mode == "min" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
    last_lr_ = detail::current(lrs_);
  }

  std::string name() const override { return "ReduceLROnPlateau"; }
  const Optimizer& optimizer() const override { return optimizer_; }
  bool needs_metric() const override { return true; }
  std::vector<double> last_lr() const override { return last_lr_; }

  void step() override { levin::detail::fail("[ReduceLROnPlateau.step] a metric is needed; call step(metric)"); }

  void step_metric(double metric) override {
    ++last_epoch_;
    if (is_better(metric)) {
      best_ = metric;
      bad_epochs_ = 0;
    } else {
      ++bad_epochs_;
    }
    if (cooling_ > 0) {
      --cooling_;
      bad_epochs_ = 0;
    }
    if (bad_epochs_ > o_.patience) {
      reduce();
      cooling_ = o_.cooldown;
      bad_epochs_ = 0;
    }
    last_lr_ = detail::current(lrs_);
  }

  StateDict state_dict() const override {
    StateDict out;
    fields(*this, [&](const char* field, const auto& value) { out[field] = detail::to_state(value); });
    return out;
  }
  void load_state_dict(const StateDict& in) override {
    const size_t saved = in.at("min_lrs").to_list().size();
    LEVIN_CHECK(saved == lrs_.size(), "[ReduceLROnPlateau.load_state_dict] the saved state is of ", saved,
                " parameter groups, the optimizer has ", lrs_.size());
    fields(*this, [&](const char* field, auto& value) { detail::read_state(in, field, value); });
    check_words();
  }

 private:
  static void fields(auto& self, auto&& f) {
    f("factor", self.o_.factor);
    f("min_lrs", self.min_lrs_);
    f("patience", self.o_.patience);
    f("cooldown", self.o_.cooldown);
    f("eps", self.o_.eps);
    f("last_epoch", self.last_epoch_);
    f("_last_lr", self.last_lr_);
    f("mode", self.o_.mode);
    f("threshold", self.o_.threshold);
    f("threshold_mode", self.o_.threshold_mode);
    f("best", self.best_);
    f("cooldown_counter", self.cooling_);
    f("num_bad_epochs", self.bad_epochs_);
  }

  void check_words() const {
    if (o_.mode != "min" && o_.mode != "max")
      fail_unknown(name(), "mode", o_.mode, std::vector<std::string>{"min", "max"});
    if (o_.threshold_mode != "rel" && o_.threshold_mode != "abs")
      fail_unknown(name(), "threshold_mode", o_.threshold_mode, std::vector<std::string>{"rel", "abs"});
  }

  bool is_better(double metric) const {
    const bool relative = o_.threshold_mode == "rel";
    if (o_.mode == "min") return metric < (relative ? best_ * (1 - o_.threshold) : best_ - o_.threshold);
    return metric > (relative ? best_ * (1 + o_.threshold) : best_ + o_.threshold);
  }

  void reduce() {
    for (size_t group = 0; group < lrs_.size(); ++group) {
      const double reduced = std::max(*lrs_[group] * o_.factor, min_lrs_[group]);
      if (*lrs_[group] - reduced > o_.eps) *lrs_[group] = reduced;
    }
  }

  Optimizer optimizer_;
  ReduceLROnPlateauOptions o_;
  std::vector<double*> lrs_;
  std::vector<double> min_lrs_, last_lr_;
  double best_;
  int64_t last_epoch_ = 0, cooling_ = 0, bad_epochs_ = 0;
};

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(const Optimizer& optimizer, ReduceLROnPlateauOptions options)
    : Scheduler(std::make_shared<ReduceLROnPlateauImpl>(optimizer, std::move(options))) {}

void fields(ReduceLROnPlateauOptions& o, auto f) {
  f("mode", o.mode, "min: the metric should fall; max: it should rise", {"min", "max"});
  f("factor", o.factor, detail::kGamma);
  f("patience", o.patience, "steps without improvement before a reduction");
  f("threshold", o.threshold, "smaller improvements do not count");
  f("threshold_mode", o.threshold_mode, "threshold as a fraction of the best value, or a difference from it",
    {"rel", "abs"});
  f("cooldown", o.cooldown, "steps after a reduction in which nothing is counted");
  f("min_lr", o.min_lr, detail::kEtaMin);
  f("eps", o.eps, "smaller reductions are not made");
}

SchedulerClass ReduceLROnPlateau::describe() {
  return detail::describe_scheduler<ReduceLROnPlateau, ReduceLROnPlateauOptions>(
      {.name = "ReduceLROnPlateau", .help = "reduces when a metric stops improving", .monitor = "val_loss"});
}

}  // namespace levin::optim
