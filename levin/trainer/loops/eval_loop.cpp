// One pass over the loaders of validation, test or prediction.
#include <c10/core/InferenceMode.h>

#include "levin/core/error.h"
#include "levin/trainer/loops/together.h"
#include "levin/trainer/run.h"

namespace levin::detail {
namespace {

/// The hooks of one kind of evaluation.
struct EvalHooks {
  Hook start, end, epoch_start, epoch_end, batch_start, batch_end;
  void (Callback::*on_start)(TrainerContext&);
  void (Callback::*on_end)(TrainerContext&);
  void (Callback::*on_epoch_start)(TrainerContext&);
  void (Callback::*on_epoch_end)(TrainerContext&);
  void (Callback::*on_batch_start)(TrainerContext&, const AnyBatch&, const StepInfo&);
  void (Callback::*on_batch_end)(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&);
  void (TrainModuleBase::*module_start)();
  void (TrainModuleBase::*module_end)();
  void (TrainModuleBase::*module_epoch_start)();
  void (TrainModuleBase::*module_epoch_end)();
  void (TrainModuleBase::*model_eval)();
  void (TrainModuleBase::*model_train)();  // null: there is no such hook
  StepOutput (TrainModuleBase::*step)(void*, const StepInfo&);
  Run::Action action;
};

constexpr EvalHooks kValidation{Hook::kValidationStart,
                                Hook::kValidationEnd,
                                Hook::kValidationEpochStart,
                                Hook::kValidationEpochEnd,
                                Hook::kValidationBatchStart,
                                Hook::kValidationBatchEnd,
                                &Callback::on_validation_start,
                                &Callback::on_validation_end,
                                &Callback::on_validation_epoch_start,
                                &Callback::on_validation_epoch_end,
                                &Callback::on_validation_batch_start,
                                &Callback::on_validation_batch_end,
                                &TrainModuleBase::on_validation_start,
                                &TrainModuleBase::on_validation_end,
                                &TrainModuleBase::on_validation_epoch_start,
                                &TrainModuleBase::on_validation_epoch_end,
                                &TrainModuleBase::on_validation_model_eval,
                                &TrainModuleBase::on_validation_model_train,
                                &TrainModuleBase::any_validation_step,
                                Run::Action::kValidationStep};
constexpr EvalHooks kTest{Hook::kTestStart,
                          Hook::kTestEnd,
                          Hook::kTestEpochStart,
                          Hook::kTestEpochEnd,
                          Hook::kTestBatchStart,
                          Hook::kTestBatchEnd,
                          &Callback::on_test_start,
                          &Callback::on_test_end,
                          &Callback::on_test_epoch_start,
                          &Callback::on_test_epoch_end,
                          &Callback::on_test_batch_start,
                          &Callback::on_test_batch_end,
                          &TrainModuleBase::on_test_start,
                          &TrainModuleBase::on_test_end,
                          &TrainModuleBase::on_test_epoch_start,
                          &TrainModuleBase::on_test_epoch_end,
                          &TrainModuleBase::on_test_model_eval,
                          &TrainModuleBase::on_test_model_train,
                          &TrainModuleBase::any_test_step,
                          Run::Action::kTestStep};
constexpr EvalHooks kPrediction{Hook::kPredictStart,
                                Hook::kPredictEnd,
                                Hook::kPredictEpochStart,
                                Hook::kPredictEpochEnd,
                                Hook::kPredictBatchStart,
                                Hook::kPredictBatchEnd,
                                &Callback::on_predict_start,
                                &Callback::on_predict_end,
                                &Callback::on_predict_epoch_start,
                                &Callback::on_predict_epoch_end,
                                &Callback::on_predict_batch_start,
                                &Callback::on_predict_batch_end,
                                &TrainModuleBase::on_predict_start,
                                &TrainModuleBase::on_predict_end,
                                &TrainModuleBase::on_predict_epoch_start,
                                &TrainModuleBase::on_predict_epoch_end,
                                &TrainModuleBase::on_predict_model_eval,
                                nullptr,
                                &TrainModuleBase::any_predict_step,
                                Run::Action::kPredictStep};

const EvalHooks& hooks_of(Stage stage) {
  return stage == Stage::kTest ? kTest : stage == Stage::kPredict ? kPrediction : kValidation;
}

/// The mode of every submodule, put back exactly.
class KeepModes {
 public:
  explicit KeepModes(torch::nn::Module& module) : module_(module), training_(module.is_training()) {
    for (auto& child : module.modules(/*include_self=*/false)) modes_.emplace_back(child, child->is_training());
  }
  void restore() {
    module_.train(training_);
    for (auto& [child, training] : modes_)
      if (child->is_training() != training) child->train(training);
  }

 private:
  torch::nn::Module& module_;
  bool training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

void call_both(Run& run, Hook hook, void (Callback::*on_callback)(TrainerContext&),
               void (TrainModuleBase::*on_module)()) {
  run.call(
      hook, [&](Callback& c) { (c.*on_callback)(run); }, [&] { (run.module().*on_module)(); });
}

using Outputs = std::vector<std::vector<StepOutput>>;

/// Returns how many batches it had.
int64_t run_loader(Run& run, Stage stage, size_t index, int64_t limit, Outputs* keep) {
  const auto& hooks = hooks_of(stage);
  auto& module = run.module();
  auto& data = run.eval_data(stage);
  auto& source = *data.loaders[index];
  auto most = data.batches[index];
  if (limit >= 0) most = most ? std::min(*most, limit) : limit;
  auto* log = stage == Stage::kPredict ? nullptr : &run.metric_log(stage);
  run.dataloader_idx_ = data.loaders.size() > 1 ? static_cast<int64_t>(index) : -1;
  source.start(run.progress_.epoch);
  const auto loader = loader_name(run, data, index);
  int64_t done = 0;
  for (int64_t i = 0; !most || i < *most; ++i) {
    const StepInfo at{i, static_cast<int64_t>(index)};
    note_batch(run, loader, i, most);
    void* batch = run.next_batch(source, at);
    if (!batch) break;
    run.batch_ = source.any(batch);
    run.is_last_batch_ = most && i + 1 >= *most;
    if (log) log->start_batch();
    run.call(hooks.batch_start, [&](Callback& c) { (c.*hooks.on_batch_start)(run, run.batch_, at); });
    run.call_module(hooks.batch_start, [&] { module.any_eval_batch_start(stage, batch, at); });
    run.set_site(step_site(stage));
    StepOutput output;
    {
      const auto time = run.span(hooks.action);
      output = run.run_step([&] { return (module.*hooks.step)(batch, at); });
    }
    run.call(hooks.batch_end, [&](Callback& c) { (c.*hooks.on_batch_end)(run, output, run.batch_, at); });
    run.call_module(hooks.batch_end, [&] { module.any_eval_batch_end(stage, output, batch, at); });
    run.set_site(kNoLogging);
    if (log && log->logs_steps() && stage != Stage::kSanity) {
      MetricLog::Published values;
      log->publish_step(values, run.dataloader_idx_);
      for (const auto& [name, value] : values.log) run.published_.log[name] = value;
      // A checkpoint that cuts the validation off starts it anew, and so must its rows.
      if (run.fitting_ && !run.logs_before_validation_) run.logs_before_validation_ = run.log_positions();
      run.send_row(values.log, data.seen[index] + i, /*with_epoch=*/false);
    }
    ++done;
    run.batch_ = AnyBatch();
    run.at_.reset();
    if (keep) {
      auto& kept = (*keep)[index];
      kept.push_back(std::move(output));
    }
    // Inside fit the ranks end together, so they ask together: after batches that all of them have.
    if (!run.fitting_ || run.fabric_->world_size() == 1 || i < data.common[index]) run.check_stop_requests();
  }
  source.finish();
  note_end(run, loader, done);
  run.at_.reset();
  run.dataloader_idx_ = -1;
  return done;
}

void run_eval(Run& run, Stage stage, int64_t limit, Outputs* keep) {
  const auto& hooks = hooks_of(stage);
  auto& module = run.module();
  auto& data = run.eval_data(stage);
  const auto outer_stage = run.stage_;
  const bool was_last = run.is_last_batch_;
  run.stage_ = stage;
  KeepModes modes(module);
  (module.*hooks.model_eval)();
  {
    // Tensors made in inference mode may not take part in training afterwards, and a group's operations refuse them.
    const bool inference = run.plan_.inference_mode && !run.fitting_ && run.fabric_->world_size() == 1;
    const c10::InferenceMode inference_guard(inference);
    const at::NoGradGuard no_grad;
    call_both(run, hooks.start, hooks.on_start, hooks.module_start);
    call_both(run, hooks.epoch_start, hooks.on_epoch_start, hooks.module_epoch_start);
    if (keep) keep->assign(data.loaders.size(), {});
    std::vector<int64_t> done;
    for (size_t i = 0; i < data.loaders.size(); ++i) done.push_back(run_loader(run, stage, i, limit, keep));
    call_both(run, hooks.epoch_end, hooks.on_epoch_end, hooks.module_epoch_end);
    run.set_site(kNoLogging);
    if (stage != Stage::kPredict) {
      MetricLog::Published values;
      run.metric_log(stage).publish_epoch(values, *run.fabric_);
      run.metric_log(stage).publish_epoch(run.published_, *run.fabric_);
      if (stage != Stage::kSanity) run.send_row(values.log, run.row_step());
    }
    // Only now: what a checkpoint cuts off starts anew, with its rows.
    for (size_t i = 0; i < done.size() && stage != Stage::kSanity; ++i) data.seen[i] += done[i];
    if (run.fitting_ && stage == Stage::kValidate) {
      run.progress_.validated_at = run.progress_.total_batches;
      run.rng_before_validation_.reset();
      run.logs_before_validation_.reset();
    }
    call_both(run, hooks.end, hooks.on_end, hooks.module_end);
  }
  run.set_site(kNoLogging);
  modes.restore();
  if (hooks.model_train) (module.*hooks.model_train)();
  run.stage_ = outer_stage;
  run.is_last_batch_ = was_last;
}

}  // namespace

void run_eval_loop(Run& run, Stage stage, int64_t limit) {
  auto& data = run.eval_data(stage);
  if (data.loaders.empty()) return;
  if (run.fitting_ && stage == Stage::kValidate) {
    run.rng_before_validation_ = run.rng_state();
    // What is judged is the model that checkpoints hold, on every rank.
    if (auto& sync = run.wrapped_->setup_call().sync) sync->sync_buffers();
  }
  run.metric_log(stage).reset();
  run_eval(run, stage, limit, nullptr);
}

std::vector<std::vector<StepOutput>> run_predict_loop(Run& run, bool keep) {
  Outputs outputs;
  if (!run.predict_data_.loaders.empty()) run_eval(run, Stage::kPredict, -1, keep ? &outputs : nullptr);
  return outputs;
}

}  // namespace levin::detail
