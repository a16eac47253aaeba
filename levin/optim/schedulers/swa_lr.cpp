#include "levin/optim/schedulers/swa_lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "levin/core/words.h"
#include "levin/optim/schedulers/lr_scheduler.h"

namespace levin::optim {
namespace {

class SWALRImpl final : public detail::LrSchedulerOf<SWALRImpl> {
 public:
  SWALRImpl(const Optimizer& optimizer, const SWALROptions& options)
      : LrSchedulerOf("SWALR", optimizer), anneal_epochs_(options.anneal_epochs), strategy_(options.anneal_strategy) {
    static const std::vector<std::string> known{"cos", "linear"};
    if (std::ranges::find(known, strategy_) == known.end()) fail_unknown("SWALR", "anneal_strategy", strategy_, known);
    LEVIN_CHECK(anneal_epochs_ >= 0, "[SWALR] anneal_epochs=", anneal_epochs_, " must be at least 0");
    LEVIN_CHECK(!options.swa_lr.empty(), "[SWALR] swa_lr is missing; give the learning rate to end with");
    swa_lrs_ = options.swa_lr.resolve("SWALR", "swa_lr", num_groups());
    for (const double lr : swa_lrs_)
      LEVIN_CHECK(std::isfinite(lr) && lr >= 0, "[SWALR] swa_lr=", lr, " must be a finite number >= 0");
  }
  static void fields(auto& self, auto&& f) {
    f("anneal_epochs", self.anneal_epochs_);
    f("anneal_strategy", self.strategy_);
    f("swa_lrs", self.swa_lrs_);
  }

 protected:
  // The rate where the way began is not kept: it follows from the current one, which others may have changed.
  double next_lr(size_t group) const override {
    const int64_t step = anneal_epochs_ == 0 ? std::max<int64_t>(1, last_epoch_) : last_epoch_;
    const double before = share(step - 1);
    const double now = share(step);
    const double target = swa_lrs_[group];
    const double start = before == 1 ? target : (lr(group) - before * target) / (1 - before);
    return target * now + start * (1 - now);
  }

 private:
  double share(int64_t step) const {
    const double t =
        std::clamp(static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, anneal_epochs_)), 0.0, 1.0);
    return strategy_ == "cos" ? (1 - std::cos(std::numbers::pi * t)) / 2 : t;
  }

  int64_t anneal_epochs_;
  std::string strategy_;
  std::vector<double> swa_lrs_;
};

}  // namespace

SWALR::SWALR(const Optimizer& optimizer, SWALROptions options)
    : Scheduler(detail::begun<SWALRImpl>(optimizer, options)) {}

}  // namespace levin::optim
