#include "levin/trainer/callbacks/stochastic_weight_averaging.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>

#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/optim/schedulers/swa_lr.h"
#include "levin/trainer/callbacks/batch_norm.h"
#include "levin/trainer/context.h"
#include "levin/trainer/train_module.h"

namespace levin {

StochasticWeightAveraging::StochasticWeightAveraging(StochasticWeightAveragingOptions options)
    : options_(std::move(options)) {
  constexpr auto kWhat = "[StochasticWeightAveraging] ";
  LEVIN_CHECK(!options_.swa_lrs.empty(), kWhat, "swa_lrs is missing; give the learning rate to average at");
  for (const double lr : options_.swa_lrs.values())
    LEVIN_CHECK(std::isfinite(lr) && lr > 0, kWhat, "swa_lrs=", lr, " must be a positive number");
  if (const auto* epoch = std::get_if<int64_t>(&options_.swa_epoch_start))
    LEVIN_CHECK(*epoch >= 1, kWhat, "swa_epoch_start=", *epoch,
                " must be an epoch >= 1, or a fraction between 0.0 and 1.0");
  else
    LEVIN_CHECK(std::get<double>(options_.swa_epoch_start) >= 0 && std::get<double>(options_.swa_epoch_start) <= 1,
                kWhat, "swa_epoch_start=", std::get<double>(options_.swa_epoch_start),
                " must be a fraction between 0.0 and 1.0, or an epoch >= 1");
  LEVIN_CHECK(options_.annealing_epochs >= 0, kWhat, "annealing_epochs=", options_.annealing_epochs,
              " must be at least 0");
  static const std::vector<std::string> known{"cos", "linear"};
  if (std::ranges::find(known, options_.annealing_strategy) == known.end())
    fail_unknown("StochasticWeightAveraging", "annealing_strategy", options_.annealing_strategy, known);
}

void StochasticWeightAveraging::on_fit_start(TrainerContext& run) {
  LEVIN_CHECK(run.optimizers().size() == 1, "[StochasticWeightAveraging] the module has ", run.optimizers().size(),
              " optimizers; it works with one");
  LEVIN_CHECK(run.schedulers().size() <= 1, "[StochasticWeightAveraging] the module has ", run.schedulers().size(),
              " schedulers; it works with one at most");
  const int64_t max_epochs = run.plan().max_epochs;
  max_epochs_ = max_epochs;
  if (const auto* share = std::get_if<double>(&options_.swa_epoch_start)) {
    LEVIN_CHECK(max_epochs != -1, "[StochasticWeightAveraging] swa_epoch_start=", *share,
                " is a fraction of max_epochs, which is without end; give an epoch, as an integer");
    first_epoch_ = static_cast<int64_t>(static_cast<double>(max_epochs) * *share);
  } else {
    first_epoch_ = std::get<int64_t>(options_.swa_epoch_start);
  }
  first_epoch_ = std::max<int64_t>(first_epoch_ - 1, 0);
  last_epoch_ = max_epochs == -1 ? std::numeric_limits<int64_t>::max() : max_epochs - 1;

  has_batch_norm_ = std::ranges::any_of(run.module().modules(/*include_self=*/false),
                                        [](const auto& module) { return detail::as_batch_norm(*module).has_value(); });
  if (has_batch_norm_ && max_epochs != -1) run.tuning().set_max_epochs(max_epochs + 1);

  weights_ = std::make_shared<optim::AveragedWeights>(
      run.module(),
      optim::AveragedWeightsOptions{
          .device = options_.device, .buffers = optim::AveragedBuffers::kLeave, .avg_fn = options_.avg_fn});
  scheduler_ = {};
  latest_update_epoch_ = -1;
  refreshing_ = finished_ = false;
  if (loaded_) restore(run);
  loaded_.reset();
}

void StochasticWeightAveraging::restore(TrainerContext& run) {
  latest_update_epoch_ = loaded_->at("latest_update_epoch").to_int();
  refreshing_ = loaded_->at("refreshing").to_bool();
  finished_ = loaded_->at("finished").to_bool();
  weights_->set_count(loaded_->at("n_averaged").to_int());
  if (const auto* average = loaded_->find("weights")) weights_->load_state_dict(average->to_dict());
  // In place before the run loads the schedulers, so that the state finds its own class.
  if (const auto* state = loaded_->find("scheduler")) install_scheduler(run).load_state_dict(state->to_dict());
  const bool swapped = loaded_->at("swapped").to_bool();
  weights_->set_swapped(swapped);
  // The statistics so far are in the module's own state.
  if (refreshing_) begin_refresh(run);
  // It was stopped early and saved afterwards: training continues with the weights, not with their average.
  if (swapped && !refreshing_ && !finished_) weights_->swap();
}

Scheduler StochasticWeightAveraging::install_scheduler(TrainerContext& run) {
  scheduler_ = optim::SWALR(run.optimizers()[0], {.swa_lr = options_.swa_lrs,
                                                  .anneal_epochs = options_.annealing_epochs,
                                                  .anneal_strategy = options_.annealing_strategy});
  auto& schedulers = run.schedulers();
  if (!schedulers.empty())
    log_info("StochasticWeightAveraging: SWALR takes the place of " + schedulers[0].scheduler.name());
  schedulers.assign(1, SchedulerConfig{.scheduler = scheduler_});
  return scheduler_;
}

void StochasticWeightAveraging::on_train_epoch_start(TrainerContext& run) {
  const int64_t epoch = run.current_epoch();
  if (epoch >= first_epoch_ && epoch <= last_epoch_) {
    if (weights_->is_swapped()) weights_->swap();
    finished_ = false;
    if (!scheduler_) install_scheduler(run);
    if (epoch > latest_update_epoch_) {
      weights_->update();
      latest_update_epoch_ = epoch;
    }
  }
  if (has_batch_norm_ && !refreshing_ && weights_->count() > 0 && epoch == last_epoch_ + 1) {
    if (!weights_->is_swapped()) weights_->swap();
    at::NoGradGuard no_grad;
    for (const auto& module : run.module().modules(/*include_self=*/false)) {
      auto norm = detail::as_batch_norm(*module);
      if (!norm || !norm->running_mean.defined()) continue;
      norm->running_mean.zero_();
      norm->running_var.fill_(1);
      if (norm->num_batches_tracked.defined()) norm->num_batches_tracked.zero_();
    }
    begin_refresh(run);
  }
}

// Without a momentum the running statistics are the mean over all batches.
void StochasticWeightAveraging::begin_refresh(TrainerContext& run) {
  refreshing_ = true;
  momenta_.clear();
  for (const auto& module : run.module().modules(/*include_self=*/false))
    if (auto norm = detail::as_batch_norm(*module)) {
      momenta_.emplace_back(norm->momentum, *norm->momentum);
      norm->momentum->reset();
    }
  run.tuning().set_forward_only(true);
}

void StochasticWeightAveraging::end_refresh(TrainerContext& run) {
  refreshing_ = false;
  for (auto& [momentum, value] : momenta_) *momentum = value;
  momenta_.clear();
  run.tuning().set_forward_only(false);
}

void StochasticWeightAveraging::on_train_epoch_end(TrainerContext& run) {
  if (!refreshing_) return;
  end_refresh(run);
  finished_ = true;
}

void StochasticWeightAveraging::on_train_end(TrainerContext& run) {
  if (refreshing_) end_refresh(run);
  if (weights_->count() == 0 || weights_->is_swapped()) return;
  weights_->swap();
  finished_ = run.current_epoch() > last_epoch_ || last_epoch_ == std::numeric_limits<int64_t>::max();
  if (has_batch_norm_)
    log_warning(
        "StochasticWeightAveraging: the run ended before the epoch that recomputes the statistics of batch norm; "
        "those of the last weights stay");
}

void StochasticWeightAveraging::teardown(TrainerContext& run, std::string_view stage) {
  if (stage != "fit" || !max_epochs_) return;
  if (refreshing_) end_refresh(run);
  run.tuning().set_max_epochs(*max_epochs_);
  max_epochs_.reset();
}

StateDict StochasticWeightAveraging::state_dict() const {
  if (!weights_) return {};
  StateDict state{{"n_averaged", weights_->count()},
                  {"latest_update_epoch", latest_update_epoch_},
                  {"refreshing", refreshing_},
                  {"finished", finished_},
                  {"swapped", weights_->is_swapped()}};
  if (weights_->count() > 0) state["weights"] = weights_->state_dict();
  if (scheduler_) state["scheduler"] = scheduler_.state_dict();
  return state;
}

}  // namespace levin
