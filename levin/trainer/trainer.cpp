#include "levin/trainer/trainer.h"

#include "levin/trainer/run/run.h"

namespace levin {

LastRun::LastRun(TrainerOptions options) : run_(std::make_shared<detail::Run>(std::move(options))) {}
LastRun::~LastRun() {
  run_->abandoned = true;
}

void Trainer::launch() {
  run_->launch(nullptr);
}
void Trainer::launch(const Args& args) {
  run_->launch(&args);
}

void Trainer::run_fit(TrainModuleBase& module, DataModuleBase* data, detail::AnyLoaders train, detail::AnyLoaders val,
                      const FitOptions& options) {
  const auto run = run_;
  run->fit(module, data, std::move(train), std::move(val), options);
}
std::vector<EvaluationResult> Trainer::run_evaluate(Stage stage, TrainModuleBase& module, DataModuleBase* data,
                                                    detail::AnyLoaders loaders, const EvaluateOptions& options) {
  const auto run = run_;
  return run->evaluate(stage, module, data, std::move(loaders), options);
}
std::vector<std::vector<StepOutput>> Trainer::run_predict(TrainModuleBase& module, DataModuleBase* data,
                                                          detail::AnyLoaders loaders, const PredictOptions& options) {
  const auto run = run_;
  return run->predict(module, data, std::move(loaders), options);
}

void LastRun::save_checkpoint(const std::filesystem::path& path, bool weights_only) {
  LEVIN_CHECK(run_->model.module, "[trainer.save_checkpoint] nothing has run yet");
  const bool written = detail::write_checkpoint(*run_, path, weights_only);
  LEVIN_CHECK(written, "[trainer.save_checkpoint] \"", path.string(),
              "\" was not written: weights are nan or inf, and no run could use them");
}
int64_t LastRun::current_epoch() const {
  return progress().epoch;
}
int64_t LastRun::global_step() const {
  return progress().global_step;
}
const Progress& LastRun::progress() const {
  return run_->state.progress;
}
MetricMap LastRun::callback_metrics() const {
  return detail::publish(*run_).callback;
}
std::optional<double> LastRun::metric(std::string_view name) const {
  return detail::metric(*run_, name);
}
std::filesystem::path LastRun::log_dir() const {
  return detail::log_dir(*run_);
}
const std::vector<CallbackRef>& LastRun::callbacks() const {
  return run_->hooks.callbacks();
}
const std::vector<std::shared_ptr<Logger>>& LastRun::loggers() const {
  return run_->logs.loggers;
}
const TrainerPlan& LastRun::plan() const {
  return run_->plan;
}
Fabric& LastRun::fabric() const {
  return *run_->fabric;
}

}  // namespace levin
