// Training steps on the side, for tuners: everything is put back afterwards.
#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/state_copy.h"
#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/trainer/run.h"

namespace levin::detail {
namespace {

/// What training changes, as it was.
class Snapshot {
 public:
  explicit Snapshot(Run& run)
      : run_(run),
        model_(copy_of_state(module_state_dict(run.module())).to_dict()),
        rng_(RngState::capture()),
        progress_(run.progress_),
        published_(run.published_),
        train_data_(run.train_data_),
        asked_train_(run.asked_train_),
        stage_(run.stage_),
        site_(run.site_),
        doing_(run.doing_) {
    for (const auto& optimizer : run.optimizers_) optimizers_.push_back(copy_of_state(optimizer.state_dict()));
    for (const auto& config : run.schedulers_) schedulers_.push_back(copy_of_state(config.scheduler.state_dict()));
    if (auto* scaler = run.fabric().grad_scaler()) scaler_ = scaler->state_dict();
    if (!run.fabric().device().is_cpu()) device_rng_ = run.fabric().accelerator().rng_state(run.fabric().device());
    loggers_.swap(run.loggers_);
    listeners_.swap(run.listeners_);
    flags_ = {run.should_stop_, run.batch_stepped_, run.is_last_batch_, run.inside_batch_};
  }
  /// An Error when it cannot be: the run must not go on then. What needs no memory comes first.
  void put_back() {
    run_.progress_ = progress_;
    run_.published_ = std::move(published_);
    run_.train_data_ = std::move(train_data_);
    run_.asked_train_ = std::move(asked_train_);
    run_.stage_ = stage_;
    run_.train_log_.clear();
    run_.waiting_.clear();
    run_.loggers_.swap(loggers_);
    run_.listeners_.swap(listeners_);
    std::tie(run_.should_stop_, run_.batch_stepped_, run_.is_last_batch_, run_.inside_batch_) = flags_;
    run_.window_open_ = false;
    run_.batch_ = AnyBatch();
    run_.at_.reset();
    run_.site_ = site_;
    run_.doing_ = doing_;
    try {
      for (auto& optimizer : run_.optimizers_) optimizer.zero_grad();  // their memory may be needed
      load_module_state_dict(run_.module(), model_);
      for (size_t i = 0; i < optimizers_.size(); ++i) run_.optimizers_[i].load_state_dict(optimizers_[i].to_dict());
      for (size_t i = 0; i < schedulers_.size(); ++i)
        run_.schedulers_[i].scheduler.load_state_dict(schedulers_[i].to_dict());
      if (auto* scaler = run_.fabric().grad_scaler()) scaler->load_state_dict(scaler_);
      if (device_rng_.defined()) run_.fabric().accelerator().set_rng_state(run_.fabric().device(), device_rng_);
      rng_.restore();
    } catch (const std::exception& error) {
      fail(concat("[trainer] the state before a trial could not be put back: ", one_line(error)));
    }
  }

 private:
  Run& run_;
  StateDict model_;
  StateList optimizers_, schedulers_;
  StateDict scaler_;
  RngState rng_;
  Tensor device_rng_;
  Progress progress_;
  MetricLog::Published published_;
  StageData train_data_;
  AnyLoaders asked_train_;
  Stage stage_;
  const LogSite* site_;
  Run::Doing doing_;
  std::vector<std::shared_ptr<Logger>> loggers_;
  std::vector<Callback*> listeners_;
  std::tuple<bool, bool, bool, bool> flags_;
};

bool run_trial_steps(Run& run, const Trial& trial) {
  run.stage_ = Stage::kTrain;
  if (trial.batch_size > 0)
    run.set_train_batch_size(trial.batch_size);
  else
    run.load_train_data();
  auto& source = *run.train_data_.loaders.front();
  run.module().train();
  StepOutput output;
  int64_t batch_idx = 0;
  source.start(run.progress_.epoch);
  bool complete = true;
  for (int64_t step = 0; step < trial.steps;) {
    void* batch = run.next_batch(source, {batch_idx, 0});
    if (!batch) {
      complete = batch_idx > 0;
      if (!complete) break;
      source.start(run.progress_.epoch);  // a short loader goes round
      batch_idx = 0;
      continue;
    }
    if (trial.before_step) trial.before_step(step);
    run.inside_batch_ = true;
    run.batch_ = source.any(batch);
    run.train_log_.start_batch();
    run.is_last_batch_ = false;
    const bool stepped = run_training_batch(run, batch, batch_idx++, output);
    run.inside_batch_ = false;
    if (!stepped) continue;
    const double loss = output.loss.defined() ? output.loss.item<double>() : 0;
    const bool go_on = !trial.after_step || trial.after_step(step, loss);
    ++step;
    if (!go_on) {
      complete = false;
      break;
    }
  }
  source.finish();
  return complete;
}

}  // namespace

bool Run::run_trial(const Trial& trial) {
  LEVIN_CHECK(fitting_ && !inside_batch_ && progress_.batch == 0 && !optimizers_.empty(),
              "[trainer] a trial can run in on_fit_start and on_train_start of a fit with an optimizer");
  Snapshot snapshot(*this);
  bool complete = false;
  try {
    complete = run_trial_steps(*this, trial);
  } catch (...) {
    // Here what the steps had made is gone again: there is memory to put things back.
    snapshot.put_back();
    throw;
  }
  snapshot.put_back();
  return complete;
}

}  // namespace levin::detail
