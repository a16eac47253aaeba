#include "levin/trainer/trainer.h"

#include "levin/trainer/run.h"

namespace levin {

Trainer::Trainer() : Trainer(TrainerOptions{}) {}
Trainer::Trainer(TrainerOptions options) : run_(std::make_unique<detail::Run>(std::move(options))) {}
Trainer::~Trainer() = default;

void Trainer::launch() {
  run_->launch(nullptr);
}
void Trainer::launch(const Args& args) {
  run_->launch(&args);
}

void Trainer::run_fit(TrainModuleBase& module, DataModuleBase* data, detail::AnyLoaders train, detail::AnyLoaders val,
                      const FitOptions& options) {
  run_->fit(module, data, std::move(train), std::move(val), options);
}
std::vector<EvaluationResult> Trainer::run_evaluate(Stage stage, TrainModuleBase& module, DataModuleBase* data,
                                                    detail::AnyLoaders loaders, const EvaluateOptions& options) {
  return run_->evaluate(stage, module, data, std::move(loaders), options);
}
std::vector<std::vector<StepOutput>> Trainer::run_predict(TrainModuleBase& module, DataModuleBase* data,
                                                          detail::AnyLoaders loaders, const PredictOptions& options) {
  return run_->predict(module, data, std::move(loaders), options);
}

void Trainer::save_checkpoint(const std::filesystem::path& path, bool weights_only) {
  LEVIN_CHECK(run_->module_, "[trainer.save_checkpoint] nothing has run yet");
  run_->write_checkpoint(path, weights_only);
}
int64_t Trainer::current_epoch() const {
  return run_->current_epoch();
}
int64_t Trainer::global_step() const {
  return run_->global_step();
}
const Progress& Trainer::progress() const {
  return run_->progress();
}
std::map<std::string, std::variant<double, Tensor>> Trainer::callback_metrics() const {
  return run_->callback_metrics();
}
std::optional<double> Trainer::metric(std::string_view name) const {
  return run_->metric(name);
}
std::filesystem::path Trainer::log_dir() const {
  return run_->log_dir();
}
const std::vector<CallbackRef>& Trainer::callbacks() const {
  return run_->callbacks();
}
const std::vector<std::shared_ptr<Logger>>& Trainer::loggers() const {
  return run_->loggers();
}
const TrainerPlan& Trainer::plan() const {
  return run_->plan();
}
Fabric& Trainer::fabric() const {
  return run_->fabric();
}

}  // namespace levin
