// fit, validate, test and predict from the first hook to the last.
#include <algorithm>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/environments/slurm_requeue.h"
#include "levin/trainer/loops/loops.h"
#include "levin/trainer/run/call.h"
#include "levin/trainer/run/profiling.h"
#include "levin/trainer/run/run.h"
#include "levin/trainer/run/same_run.h"

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

/// Whether a checkpoint is read after setup: where a rank has shards it takes these alone, of optimizers too, and a
/// module that is sharded may have been unsharded nowhere before.
bool restores_after_setup(Strategy& strategy) {
  return strategy.traits().places_modules || strategy.shards() != nullptr;
}

}  // namespace

void Run::release() {
  signals.reset();
  compiled.reset();
  model.wrapped.reset();
  data = {};
  checkpoints = {};
  state.stage = Stage::kIdle;
  state.fitting = false;
  if (model.module) model.module->set_context(nullptr);
}

void Run::end(std::string_view stage, std::string_view status) {
  state.place.site = &kNoLogging;
  call<Hook::teardown>(*this, stage);
  if (model.data) model.data->teardown(stage);
  if (hooks.profiler()) hooks.profiler()->describe();
  if (fabric->is_global_zero())
    for (const auto& logger : logs.loggers) logger->finalize(std::string(status));
  write_profile_report(*this);
  release();
}

void Run::fail(std::string_view stage, const std::exception_ptr& error) {
  put_back_restored(*this);
  const auto tell = [&](const std::exception& thrown) {
    state.place.site = &kNoLogging;
    if (state.fitting && !state.between_steps()) rewind_batch();
    call<Hook::on_exception>(*this, thrown);
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
  release();
}

// A checkpoint of a run that failed inside a batch says that this batch, or its window of accumulation, comes again.
void Run::rewind_batch() {
  state.rewind();
  checkpoints.waiting.clear();
  for (auto& optimizer : model.optimizers) optimizer.zero_grad();
  if (!data.train.loaders.empty()) data.train.loaders.front()->seek(state.progress.epoch, state.progress.batch);
}

namespace {

/// A fit under way in this process. Two of them at once, in two threads, draw from one generator.
class FitOfProcess {
 public:
  FitOfProcess() {
    const std::lock_guard lock(mutex());
    auto& all = threads();
    if (std::ranges::any_of(all, [](const auto thread) { return thread != std::this_thread::get_id(); }))
      log_warning(
          "[trainer] another fit is under way in this process: both draw random numbers (dropout, noise) from torch's "
          "one default generator, so neither has the results that it has alone; give each run a process of its own");
    all.push_back(std::this_thread::get_id());
  }
  ~FitOfProcess() {
    const std::lock_guard lock(mutex());
    threads().erase(std::ranges::find(threads(), std::this_thread::get_id()));
  }
  FitOfProcess(const FitOfProcess&) = delete;
  FitOfProcess& operator=(const FitOfProcess&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::vector<std::thread::id>& threads() {
    static std::vector<std::thread::id> all;
    return all;
  }
};

}  // namespace

void Run::fit(TrainModuleBase& module, DataModuleBase* data_module, AnyLoaders train, AnyLoaders val,
              const FitOptions& options) {
  LEVIN_CHECK(state.stage == Stage::kIdle, "[trainer.fit] this trainer is at work already");
  const FitOfProcess fit_of_process;
  launch(nullptr);  // before the run: hooks need the ranks
  try {
    state = {.stage = Stage::kTrain, .fitting = true};
    data = {.asked_train = std::move(train), .asked_val = std::move(val)};
    begin(module, data_module, "fit", options.ckpt_path);
    print_plan();
    if (plan.max_epochs_is_default)
      log_info("[trainer] max_epochs was not given: 1000 epochs, as nothing else ends the run");
    const bool shards = restores_after_setup(fabric->strategy());
    if (!shards) restore_model(*this, /*fit=*/true);
    module.train();
    model.wrapped.emplace(fabric->setup_module(borrowed(module)));
    make_optimizers();
    check_same_run(*this);
    if (shards) restore_model(*this, /*fit=*/true);
    // A log that is resumed has them, and learns of new ones when it stands where the checkpoint was.
    if (!checkpoints.loaded) log_hparams(*this);
    call<Hook::on_fit_start>(*this);
    restore_training(*this);
    signals.emplace(slurm_job_to_requeue().has_value());
    state.votes = {};
    advice.start(*this);
    {
      std::optional<torch::autograd::DetectAnomalyGuard> anomaly;
      if (plan.detect_anomaly) anomaly.emplace();
      run_fit_loop(*this);
    }
    checkpoints.loaded.reset();
    checkpoints.before_restore.reset();
    call<Hook::on_fit_end>(*this);
    model.fp8 = fabric->fp8_state().state_dict();
    const auto hints = advice.hints(*this);
    end("fit", "success");
    for (const auto& hint : hints) log_info(hint);
  } catch (...) {
    const auto error = located(*this, "fit");
    fail("fit", error);
    std::rethrow_exception(error);
  }
  check_late_signal(*this, /*together=*/true);
}

bool Run::begin_evaluation(Stage stage, TrainModuleBase& module, DataModuleBase* data_module, AnyLoaders loaders,
                           const std::string& ckpt_path) {
  const auto name = stage_name(stage);
  state = {.progress = state.progress};
  data = {};
  begin(module, data_module, name, ckpt_path);
  state.stage = stage;
  auto& of_stage = data.eval(stage);
  of_stage.loaders = std::move(loaders);
  const bool shards = restores_after_setup(fabric->strategy());
  if (!shards) restore_model(*this, /*fit=*/false);
  model.wrapped.emplace(fabric->setup_module(borrowed(module)));
  if (shards) restore_model(*this, /*fit=*/false);
  module.zero_grad();
  signals.emplace(false);
  if (eval_limit(plan, stage).is_zero()) return false;
  load_eval_data(*this, stage);
  LEVIN_CHECK(!of_stage.loaders.empty(), "[trainer.", name, "] there is no loader: pass one, or override ",
              of_stage.name, " in the module or the data module");
  return true;
}

std::vector<EvaluationResult> Run::evaluate(Stage stage, TrainModuleBase& module, DataModuleBase* data_module,
                                            AnyLoaders loaders, const EvaluateOptions& options) {
  LEVIN_CHECK(state.stage == Stage::kIdle, "[trainer] this trainer is at work already");
  launch(nullptr);
  const auto name = stage_name(stage);
  std::vector<EvaluationResult> results;
  try {
    if (begin_evaluation(stage, module, data_module, std::move(loaders), options.ckpt_path)) {
      run_eval_loop(*this, stage);
      results = metrics.of(stage).by_loader(data.eval(stage).loaders.size(), *fabric);
    }
    if (options.verbose && !results.empty()) {
      bool any = false;
      for (const auto& result : results) any |= !result.empty();
      if (any) static_cast<TrainerContext&>(context).print(table_of(results));
    }
    end(name, "success");
  } catch (...) {
    const auto error = located(*this, name);
    fail(name, error);
    if (fabric->world_size() > 1) check_late_signal(*this, false);  // a rank that ended before fails the others
    std::rethrow_exception(error);
  }
  check_late_signal(*this, /*together=*/false);
  return results;
}

std::vector<std::vector<StepOutput>> Run::predict(TrainModuleBase& module, DataModuleBase* data_module,
                                                  AnyLoaders loaders, const PredictOptions& options) {
  LEVIN_CHECK(state.stage == Stage::kIdle, "[trainer.predict] this trainer is at work already");
  launch(nullptr);
  std::vector<std::vector<StepOutput>> outputs;
  try {
    if (begin_evaluation(Stage::kPredict, module, data_module, std::move(loaders), options.ckpt_path))
      outputs = run_predict_loop(*this, options.return_predictions);
    end("predict", "success");
  } catch (...) {
    const auto error = located(*this, "predict");
    fail("predict", error);
    if (fabric->world_size() > 1) check_late_signal(*this, /*together=*/false);
    std::rethrow_exception(error);
  }
  check_late_signal(*this, /*together=*/false);
  return outputs;
}

}  // namespace levin::detail
