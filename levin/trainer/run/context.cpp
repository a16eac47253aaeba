#include "levin/trainer/run/context.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/trainer/callbacks/gradient_accumulation_scheduler.h"
#include "levin/trainer/defaults.h"
#include "levin/trainer/run/run.h"
#include "levin/trainer/run/trial.h"

namespace levin::detail {

Stage RunContext::stage() const {
  return run_.state.stage;
}
bool RunContext::fitting() const {
  return run_.state.fitting;
}
const Progress& RunContext::progress() const {
  return run_.state.progress;
}
bool RunContext::is_last_batch() const {
  return run_.state.is_last_batch;
}
std::optional<int64_t> RunContext::num_training_batches() const {
  const auto& batches = run_.data.train.batches;
  return batches.empty() ? std::nullopt : batches.front();
}
std::vector<std::optional<int64_t>> RunContext::num_eval_batches() const {
  return run_.data.eval(run_.state.stage).batches;
}
std::optional<int64_t> RunContext::estimated_stepping_batches() const {
  const auto& plan = run_.plan;
  // A scheduler wants to know in configure_optimizers, before the loader is needed for anything else.
  if (run_.state.fitting && !run_.data.train.ready && !plan.limit_train.is_zero()) load_train_data(run_);
  const auto batches = num_training_batches();
  std::optional<int64_t> steps;
  if (batches && plan.max_epochs >= 0) {
    const int64_t epochs = std::max<int64_t>(plan.max_epochs, 1);
    steps = (*batches + plan.accumulate - 1) / plan.accumulate * epochs;
    for (const auto& callback : callbacks())
      if (const auto* scheduler = dynamic_cast<const GradientAccumulationScheduler*>(callback.get().get()))
        steps = scheduler->stepping_batches(epochs, *batches);
  }
  if (plan.max_steps >= 0) steps = steps ? std::min(*steps, plan.max_steps) : plan.max_steps;
  return steps;
}
const TrainerPlan& RunContext::plan() const {
  return run_.plan;
}

Fabric& RunContext::fabric() const {
  return *run_.fabric;
}
TrainModuleBase& RunContext::module() const {
  return *run_.model.module;
}
const std::vector<Optimizer>& RunContext::optimizers() const {
  return run_.model.optimizers;
}
std::vector<SchedulerConfig>& RunContext::schedulers() {
  return run_.model.schedulers;
}
const std::vector<CallbackRef>& RunContext::callbacks() const {
  return run_.hooks.callbacks();
}
const std::vector<std::shared_ptr<Logger>>& RunContext::loggers() const {
  return run_.logs.loggers;
}
std::filesystem::path RunContext::log_dir() const {
  return detail::log_dir(run_);
}
std::optional<double> RunContext::metric(std::string_view name) {
  return detail::metric(run_, name);
}
void RunContext::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  log_value(run_, name, value, options);
}
void RunContext::log(std::string_view name, double value, const LogOptions& options) {
  log_value(run_, name, value, options);
}
void RunContext::stop(std::string_view reason) {
  detail::stop(run_, reason);
}
void RunContext::request_stop(std::string_view reason) {
  detail::request_stop(run_, reason);
}
bool RunContext::should_stop() const {
  return run_.state.should_stop;
}
void RunContext::save_checkpoint(const std::filesystem::path& path, bool weights_only, std::function<void()> then) {
  detail::save_checkpoint(run_, path, weights_only, std::move(then));
}
void RunContext::save_validated(const std::filesystem::path& path, bool weights_only, std::function<void()> then) {
  detail::save_checkpoint(run_, path, weights_only, std::move(then), /*validated=*/true);
}
const std::filesystem::path& RunContext::ckpt_path() const {
  return run_.checkpoints.ckpt_path;
}

bool RunContext::resumes_last() const {
  return run_.checkpoints.resumes_last;
}
bool RunContext::weights_are_finite() {
  return detail::weights_are_finite(run_);
}
bool RunContext::step_is_finite() const {
  return !run_.finite.bad;
}

void RunContext::call_model(const std::function<void()>& call) {
  auto& around = run_.model.wrapped->setup_call();
  if (around.plain) return call();
  CallScope scope(around);
  call();
  scope.leave();
}

bool RunContext::in_parts() const {
  const auto& call = run_.model.wrapped->setup_call();
  return call.sync && call.sync->microbatches(1) > 0;
}

void RunContext::print_line(const std::string& line) {
  if (run_.fabric->is_global_zero()) print_above_bar(run_.hooks.callbacks(), line);
}

MetricMap RunContext::callback_metrics() {
  return publish(run_).callback;
}
MetricMap RunContext::logged_metrics() {
  return publish(run_).log;
}
MetricMap RunContext::progress_bar_metrics() {
  return publish(run_).bar;
}
void RunContext::log_row(const Metrics& metrics) {
  detail::log_row(run_, metrics);
}
bool RunContext::row_is_due() const {
  return detail::row_is_due(run_);
}

bool RunContext::run_trial(const Trial& trial) {
  return detail::run_trial(run_, trial);
}
std::optional<int64_t> RunContext::train_batch_size() const {
  const auto& loaders = run_.data.train.loaders;
  return loaders.empty() ? std::nullopt : loaders.front()->batch_size();
}
void RunContext::set_train_batch_size(int64_t batch_size) {
  detail::set_train_batch_size(run_, batch_size);
}
void RunContext::set_accumulate_grad_batches(int64_t k) {
  LEVIN_CHECK(k >= 1, "[trainer] accumulate_grad_batches ", k, " is not allowed (1 or more)");
  run_.plan.accumulate = k;
}
void RunContext::set_max_epochs(int64_t epochs) {
  run_.plan.max_epochs = epochs;
}
void RunContext::set_forward_only(bool enabled) {
  run_.state.forward_only = enabled;
}

}  // namespace levin::detail
