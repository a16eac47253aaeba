// fit, validate, test and predict from the first hook to the last.
#include <fmt/format.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/environments/slurm_requeue.h"
#include "levin/trainer/run.h"

namespace levin::detail {
namespace {

std::string table_of(const std::vector<EvaluationResult>& results) {
  size_t width = 10;
  for (const auto& result : results)
    for (const auto& [name, value] : result) width = std::max(width, name.size());
  std::string text = fmt::format("{:<{}}  ", "metric", width);
  for (size_t i = 0; i < results.size(); ++i)
    text += fmt::format("{:>14}", results.size() == 1 ? "value" : fmt::format("loader {}", i));
  std::map<std::string, std::vector<std::string>> rows;
  for (size_t i = 0; i < results.size(); ++i)
    for (const auto& [name, value] : results[i]) {
      auto& row = rows[name];
      row.resize(results.size());
      row[i] = fmt::format("{:.6g}", value);
    }
  for (const auto& [name, row] : rows) {
    text += fmt::format("\n{:<{}}  ", name, width);
    for (const auto& value : row) text += fmt::format("{:>14}", value);
  }
  return text;
}

/// A pointer to a module that is somebody else's: on the stack, a member, or behind their own shared_ptr.
std::shared_ptr<torch::nn::Module> borrowed(torch::nn::Module& module) {
  return {std::shared_ptr<void>(), &module};
}

}  // namespace

void Run::end(std::string_view stage, std::string_view status) {
  site_ = &kNoLogging;
  call(
      Hook::kTeardown, [&](Callback& c) { c.teardown(*this, stage); }, [&] { module_->teardown(stage); });
  if (data_) data_->teardown(stage);
  if (profiler_) profiler_->describe();
  if (fabric_->is_global_zero())
    for (const auto& logger : loggers_) logger->finalize(std::string(status));
  signals_.reset();
  stage_ = Stage::kIdle;
  fitting_ = false;
  wrapped_.reset();
  train_data_ = val_data_ = test_data_ = predict_data_ = {};
  rng_before_validation_.reset();
  logs_before_validation_.reset();
  module_->set_context(nullptr);
}

void Run::fail(std::string_view stage, const std::exception_ptr& error) {
  put_back_restored();
  const auto tell = [&](const std::exception& thrown) {
    site_ = &kNoLogging;
    if (fitting_ && (inside_batch_ || window_open_)) rewind_batch();
    call(Hook::kException, [&](Callback& c) { c.on_exception(*this, thrown); });
    end(stage, dynamic_cast<const Interrupted*>(&thrown) ? "interrupted" : "failed");
  };
  // What fails on the way out must not hide why.
  try {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& thrown) {
      tell(thrown);
    } catch (...) {
      tell(Error("[trainer] an exception of an unknown type"));
    }
  } catch (const std::exception& second) {
    log_warning(concat("[trainer] on the way out: ", one_line(second)));
  } catch (...) {
    log_warning("[trainer] on the way out: an exception of an unknown type");
  }
  signals_.reset();
  stage_ = Stage::kIdle;
  fitting_ = false;
  if (module_) module_->set_context(nullptr);
}

// A checkpoint of a run that failed inside a batch says that this batch, or its window of accumulation, comes again.
void Run::rewind_batch() {
  const int64_t done = progress_.batch % accumulate_;
  progress_.batch -= done;
  progress_.total_batches -= done;
  inside_batch_ = window_open_ = false;
  batch_stepped_ = true;
  waiting_.clear();
  for (auto& optimizer : optimizers_) optimizer.zero_grad();
  if (!train_data_.loaders.empty()) train_data_.loaders.front()->seek(progress_.epoch, progress_.batch);
}

void Run::fit(TrainModuleBase& module, DataModuleBase* data, AnyLoaders train, AnyLoaders val,
              const FitOptions& options) {
  LEVIN_CHECK(stage_ == Stage::kIdle, "[trainer.fit] this trainer is at work already");
  asked_train_ = std::move(train);
  asked_val_ = std::move(val);
  progress_ = {};
  try {
    fitting_ = true;
    stage_ = Stage::kTrain;
    begin(module, data, "fit", options.ckpt_path);
    print_plan();
    if (plan_.max_epochs_is_default)
      log_info("[trainer] max_epochs was not given: 1000 epochs, as nothing else ends the run");
    // A module that is divided takes its parts after that: it may have been whole nowhere before.
    const bool divides = fabric_->strategy().places_modules();
    if (!divides) restore_model(/*fit=*/true);
    module.train();
    wrapped_.emplace(fabric_->setup_module(borrowed(module)));
    make_optimizers();
    if (divides) restore_model(/*fit=*/true);
    // A log that goes on has them, and learns of new ones when it stands where the checkpoint was.
    if (!loaded_) log_hparams();
    call(
        Hook::kFitStart, [&](Callback& c) { c.on_fit_start(*this); }, [&] { module.on_fit_start(); });
    restore_training();
    signals_.emplace(slurm_job_to_requeue().has_value());
    train_vote_ = eval_vote_ = {.last = std::chrono::steady_clock::now()};
    advice_.start(*this);
    {
      std::optional<torch::autograd::DetectAnomalyGuard> anomaly;
      if (plan_.detect_anomaly) anomaly.emplace();
      run_fit_loop(*this);
    }
    loaded_.reset();
    before_restore_.reset();
    call(
        Hook::kFitEnd, [&](Callback& c) { c.on_fit_end(*this); }, [&] { module.on_fit_end(); });
    const auto hints = advice_.hints(*this);
    end("fit", "success");
    for (const auto& hint : hints) log_info(hint);
  } catch (...) {
    const auto error = located("fit");
    fail("fit", error);
    std::rethrow_exception(error);
  }
  check_late_signal(/*together=*/true);
}

void Run::log_hparams() {
  if (!plan_.autolog_hparams || !fabric_->is_global_zero()) return;
  auto hparams = module_->hparams;
  if (data_)
    for (const auto& [name, value] : data_->hparams) hparams[name] = value;
  if (!hparams.empty())
    for (const auto& logger : loggers_) logger->log_hyperparams(hparams);
}

bool Run::begin_evaluation(Stage stage, TrainModuleBase& module, DataModuleBase* data, AnyLoaders loaders,
                           const std::string& ckpt_path) {
  const auto name = stage_name(stage);
  begin(module, data, name, ckpt_path);
  stage_ = stage;
  eval_data(stage).loaders = std::move(loaders);
  const bool divides = fabric_->strategy().places_modules();
  if (!divides) restore_model(/*fit=*/false);
  wrapped_.emplace(fabric_->setup_module(borrowed(module)));
  if (divides) restore_model(/*fit=*/false);
  module.zero_grad();
  signals_.emplace(false);
  if (eval_limit(stage).is_zero()) return false;
  load_eval_data(stage);
  LEVIN_CHECK(!eval_data(stage).loaders.empty(), "[trainer.", name, "] there is no loader: pass one, or override ",
              stage == Stage::kValidate ? "val" : name, "_dataloader in the module or the data module");
  return true;
}

std::vector<EvaluationResult> Run::evaluate(Stage stage, TrainModuleBase& module, DataModuleBase* data,
                                            AnyLoaders loaders, const EvaluateOptions& options) {
  LEVIN_CHECK(stage_ == Stage::kIdle, "[trainer] this trainer is at work already");
  const auto name = stage_name(stage);
  std::vector<EvaluationResult> results;
  try {
    if (begin_evaluation(stage, module, data, std::move(loaders), options.ckpt_path)) {
      run_eval_loop(*this, stage);
      results = metric_log(stage).by_loader(eval_data(stage).loaders.size(), *fabric_);
    }
    if (options.verbose && !results.empty()) {
      bool any = false;
      for (const auto& result : results) any |= !result.empty();
      if (any) print_line(table_of(results));
    }
    end(name, "success");
  } catch (...) {
    const auto error = located(name);
    fail(name, error);
    if (fabric_->world_size() > 1) check_late_signal(/*together=*/false);  // a rank that ended before fails the others
    std::rethrow_exception(error);
  }
  check_late_signal(/*together=*/false);
  return results;
}

std::vector<std::vector<StepOutput>> Run::predict(TrainModuleBase& module, DataModuleBase* data, AnyLoaders loaders,
                                                  const PredictOptions& options) {
  LEVIN_CHECK(stage_ == Stage::kIdle, "[trainer.predict] this trainer is at work already");
  std::vector<std::vector<StepOutput>> outputs;
  try {
    if (begin_evaluation(Stage::kPredict, module, data, std::move(loaders), options.ckpt_path))
      outputs = run_predict_loop(*this, options.return_predictions);
    end("predict", "success");
  } catch (...) {
    const auto error = located("predict");
    fail("predict", error);
    if (fabric_->world_size() > 1) check_late_signal(/*together=*/false);
    std::rethrow_exception(error);
  }
  check_late_signal(/*together=*/false);
  return outputs;
}

}  // namespace levin::detail
