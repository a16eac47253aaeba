// One pass over the loaders of validation, test or prediction.
#include <c10/core/InferenceMode.h>

#include "levin/core/error.h"
#include "levin/trainer/loops/loops.h"
#include "levin/trainer/loops/together.h"
#include "levin/trainer/run/call.h"
#include "levin/trainer/run/profiling.h"
#include "levin/trainer/run/run.h"
#include "levin/trainer/run/step.h"

namespace levin::detail {
namespace {

/// The hooks of one kind of evaluation.
struct EvalHooks {
  void (*start)(Run&);
  void (*end)(Run&);
  void (*epoch_start)(Run&);
  void (*epoch_end)(Run&);
  void (*batch_start)(Run&, const AnyBatch&, const StepInfo&);
  void (*batch_end)(Run&, const StepOutput&, const AnyBatch&, const StepInfo&);
  void (TrainModuleBase::*model_eval)();
  void (TrainModuleBase::*model_train)();  // null: there is no such hook
  Action step;
};

/// A hook of a batch: of the callbacks, then of the module.
template <Hook H>
void call_batch_start(Run& run, const AnyBatch& batch, const StepInfo& at) {
  call_callbacks<H>(run, batch, at);
  call_module(run, H, [&] { run.model.module->any_batch_start(run.state.stage, batch, at); });
}
template <Hook H>
void call_batch_end(Run& run, const StepOutput& output, const AnyBatch& batch, const StepInfo& at) {
  call_callbacks<H>(run, output, batch, at);
  call_module(run, H, [&] { run.model.module->any_batch_end(run.state.stage, output, batch, at); });
}

constexpr EvalHooks kValidation{.start = call<Hook::on_validation_start>,
                                .end = call<Hook::on_validation_end>,
                                .epoch_start = call<Hook::on_validation_epoch_start>,
                                .epoch_end = call<Hook::on_validation_epoch_end>,
                                .batch_start = call_batch_start<Hook::on_validation_batch_start>,
                                .batch_end = call_batch_end<Hook::on_validation_batch_end>,
                                .model_eval = &TrainModuleBase::on_validation_model_eval,
                                .model_train = &TrainModuleBase::on_validation_model_train,
                                .step = Action::kValidationStep};
constexpr EvalHooks kTest{.start = call<Hook::on_test_start>,
                          .end = call<Hook::on_test_end>,
                          .epoch_start = call<Hook::on_test_epoch_start>,
                          .epoch_end = call<Hook::on_test_epoch_end>,
                          .batch_start = call_batch_start<Hook::on_test_batch_start>,
                          .batch_end = call_batch_end<Hook::on_test_batch_end>,
                          .model_eval = &TrainModuleBase::on_test_model_eval,
                          .model_train = &TrainModuleBase::on_test_model_train,
                          .step = Action::kTestStep};
constexpr EvalHooks kPrediction{.start = call<Hook::on_predict_start>,
                                .end = call<Hook::on_predict_end>,
                                .epoch_start = call<Hook::on_predict_epoch_start>,
                                .epoch_end = call<Hook::on_predict_epoch_end>,
                                .batch_start = call_batch_start<Hook::on_predict_batch_start>,
                                .batch_end = call_batch_end<Hook::on_predict_batch_end>,
                                .model_eval = &TrainModuleBase::on_predict_model_eval,
                                .model_train = nullptr,
                                .step = Action::kPredictStep};

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

using Outputs = std::vector<std::vector<StepOutput>>;

/// Step metrics of a batch, for the loggers.
void log_eval_step(Run& run, Stage stage, const MetricLog& log, int64_t row) {
  if (!log.logs_steps() || stage == Stage::kSanity) return;
  MetricLog::Published values;
  log.publish_step(values, run.state.place.dataloader_idx);
  for (const auto& [name, value] : values.log) run.metrics.published.log[name] = value;
  // A checkpoint that cuts the validation off starts it again, and so must its rows.
  auto& positions = run.checkpoints.logs_before_validation;
  if (run.state.fitting && !positions) positions = log_positions(run);
  send_row(run, values.log, row, /*with_epoch=*/false);
}

/// Returns how many batches it had.
int64_t run_loader(Run& run, Stage stage, size_t index, int64_t limit, Outputs* keep) {
  const auto& hooks = hooks_of(stage);
  auto& module = *run.model.module;
  auto& state = run.state;
  auto& data = run.data.eval(stage);
  auto& source = *data.loaders[index];
  auto most = data.batches[index];
  if (limit >= 0) most = most ? std::min(*most, limit) : limit;
  auto* log = stage == Stage::kPredict ? nullptr : &run.metrics.of(stage);
  state.place.dataloader_idx = data.loaders.size() > 1 ? static_cast<int64_t>(index) : -1;
  source.start(state.progress.epoch);
  const auto loader = data.name_of(index);
  int64_t done = 0;
  for (int64_t i = 0; !most || i < *most; ++i) {
    const StepInfo at{i, static_cast<int64_t>(index)};
    note_batch(run, loader, i, most);
    if (!state.fitting) begin_profiled_step(run);
    const auto batch = next_batch(run, source, at);
    if (batch.empty()) break;
    state.place.batch = batch;
    state.is_last_batch = most && i + 1 >= *most;
    if (log) log->start_batch();
    hooks.batch_start(run, batch, at);
    state.place.set_site(step_site(stage));
    StepOutput output;
    {
      const auto time = run.hooks.span(hooks.step);
      const auto step = [&] {
        if (const int parts = step_parts(run, batch)) return run_in_parts(run, stage, batch, at, parts);
        return run_step(run, [&] { return module.any_step(stage, batch, at); });
      };
      if (auto* compiled = compiled_steps(run, stage)) {
        StepCall call{.name = step_site(stage).hook};
        call.key.add(at.dataloader_idx);
        output = compiled->run(run, std::move(call), batch, step);
      } else {
        output = step();
      }
    }
    hooks.batch_end(run, output, batch, at);
    state.place.set_site(kNoLogging);
    if (log) log_eval_step(run, stage, *log, data.seen[index] + i);
    ++done;
    state.place.batch = AnyBatch();
    state.place.at.reset();
    if (keep) (*keep)[index].push_back(std::move(output));
    // Inside fit the ranks end together, so they ask together: after batches that all of them have.
    if (!state.fitting || run.fabric->world_size() == 1 || i < data.common[index]) check_stop_requests(run);
  }
  if (!state.fitting) end_profiled_step(run);
  source.finish();
  note_end(run, loader, done);
  state.place.at.reset();
  state.place.dataloader_idx = -1;
  return done;
}

void run_eval(Run& run, Stage stage, int64_t limit, Outputs* keep) {
  const auto& hooks = hooks_of(stage);
  auto& module = *run.model.module;
  auto& state = run.state;
  auto& data = run.data.eval(stage);
  const auto outer_stage = state.stage;
  const bool was_last = state.is_last_batch;
  state.stage = stage;
  KeepModes modes(module);
  (module.*hooks.model_eval)();
  {
    // Tensors made in inference mode may not take part in training afterwards, and a group's operations refuse them.
    const bool inference = run.plan.inference_mode && !state.fitting && run.fabric->world_size() == 1;
    const c10::InferenceMode inference_guard(inference);
    const at::NoGradGuard no_grad;
    hooks.start(run);
    hooks.epoch_start(run);
    if (keep) keep->assign(data.loaders.size(), {});
    std::vector<int64_t> done;
    const ProfiledLoop profiled(run, !state.fitting);
    for (size_t i = 0; i < data.loaders.size(); ++i) done.push_back(run_loader(run, stage, i, limit, keep));
    hooks.epoch_end(run);
    state.place.set_site(kNoLogging);
    if (stage != Stage::kPredict) {
      MetricLog::Published values;
      run.metrics.of(stage).publish_epoch(values, *run.fabric);
      run.metrics.of(stage).publish_epoch(run.metrics.published, *run.fabric);
      if (stage != Stage::kSanity) send_row(run, values.log, row_step(run));
    }
    // Only now: what a checkpoint cuts off starts again, with its rows.
    for (size_t i = 0; i < done.size() && stage != Stage::kSanity; ++i) data.seen[i] += done[i];
    if (state.fitting && stage == Stage::kValidate) {
      state.progress.validated_at = state.progress.total_batches;
      run.checkpoints.rng_before_validation.reset();
      run.checkpoints.logs_before_validation.reset();
    }
    hooks.end(run);
  }
  state.place.set_site(kNoLogging);
  modes.restore();
  if (hooks.model_train) (module.*hooks.model_train)();
  state.stage = outer_stage;
  state.is_last_batch = was_last;
}

}  // namespace

void run_eval_loop(Run& run, Stage stage, int64_t limit) {
  if (run.data.eval(stage).loaders.empty()) return;
  if (run.state.fitting && stage == Stage::kValidate) {
    run.checkpoints.rng_before_validation = rng_state(run);
    // What is judged is the model that checkpoints hold, on every rank.
    if (auto& sync = run.model.wrapped->setup_call().sync) sync->sync_buffers();
  }
  run.metrics.of(stage).reset();
  run_eval(run, stage, limit, nullptr);
}

std::vector<std::vector<StepOutput>> run_predict_loop(Run& run, bool keep) {
  Outputs outputs;
  if (!run.data.predict.loaders.empty()) run_eval(run, Stage::kPredict, -1, keep ? &outputs : nullptr);
  return outputs;
}

}  // namespace levin::detail
