// Training steps on the side, for tuners: everything is put back afterwards.
#include "levin/checkpoint/module_state.h"
#include "levin/core/error.h"
#include "levin/trainer/run.h"

namespace levin::detail {
namespace {

StateValue copy_of(const StateValue& value) {
  if (value.is_tensor()) return value.to_tensor().defined() ? value.to_tensor().detach().clone() : Tensor();
  if (value.is_list()) {
    StateList list;
    for (const auto& element : value.to_list()) list.push_back(copy_of(element));
    return list;
  }
  if (value.is_dict()) {
    StateDict dict;
    for (const auto& [name, element] : value.to_dict()) dict[name] = copy_of(element);
    return dict;
  }
  return value;
}

/// What training changes, as it was; put back when it dies.
class Snapshot {
 public:
  explicit Snapshot(Run& run)
      : run_(run),
        model_(copy_of(module_state_dict(run.module())).to_dict()),
        rng_(RngState::capture()),
        progress_(run.progress_),
        published_(run.published_),
        train_data_(run.train_data_),
        asked_train_(run.asked_train_),
        stage_(run.stage_) {
    for (const auto& optimizer : run.optimizers_) optimizers_.push_back(copy_of(optimizer.state_dict()));
    for (const auto& config : run.schedulers_) schedulers_.push_back(copy_of(config.scheduler.state_dict()));
    if (auto* scaler = run.fabric().grad_scaler()) scaler_ = scaler->state_dict();
    if (!run.fabric().device().is_cpu()) device_rng_ = run.fabric().accelerator().rng_state(run.fabric().device());
    loggers_.swap(run.loggers_);
    hooks_.swap(run.hooks_);
    flags_ = {run.should_stop_, run.batch_stepped_, run.is_last_batch_, run.inside_batch_};
  }
  ~Snapshot() {
    load_module_state_dict(run_.module(), model_);
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      run_.optimizers_[i].load_state_dict(optimizers_[i].to_dict());
      run_.optimizers_[i].zero_grad();
    }
    for (size_t i = 0; i < schedulers_.size(); ++i)
      run_.schedulers_[i].scheduler.load_state_dict(schedulers_[i].to_dict());
    if (auto* scaler = run_.fabric().grad_scaler()) scaler->load_state_dict(scaler_);
    if (device_rng_.defined()) run_.fabric().accelerator().set_rng_state(run_.fabric().device(), device_rng_);
    rng_.restore();
    run_.progress_ = progress_;
    run_.published_ = published_;
    run_.train_data_ = train_data_;
    run_.asked_train_ = asked_train_;
    run_.stage_ = stage_;
    run_.train_log_.clear();
    run_.waiting_.clear();
    run_.loggers_.swap(loggers_);
    run_.hooks_.swap(hooks_);
    std::tie(run_.should_stop_, run_.batch_stepped_, run_.is_last_batch_, run_.inside_batch_) = flags_;
    run_.window_open_ = false;
    run_.batch_ = AnyBatch();
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
  std::vector<std::shared_ptr<Logger>> loggers_;
  decltype(Run::hooks_) hooks_;
  std::tuple<bool, bool, bool, bool> flags_;
};

}  // namespace

bool Run::run_trial(const Trial& trial) {
  LEVIN_CHECK(fitting_ && !inside_batch_ && progress_.batch == 0 && !optimizers_.empty(),
              "[trainer] a trial can run in on_fit_start and on_train_start of a fit with an optimizer");
  const auto* site = site_;
  const Snapshot snapshot(*this);
  stage_ = Stage::kTrain;
  if (trial.batch_size > 0)
    set_train_batch_size(trial.batch_size);
  else
    load_train_data();
  auto& source = *train_data_.loaders.front();
  module_->train();
  StepOutput output;
  int64_t batch_idx = 0;
  source.start(progress_.epoch);
  bool complete = true;
  for (int64_t step = 0; step < trial.steps;) {
    void* batch = next_batch(source, {batch_idx, 0});
    if (!batch) {
      complete = batch_idx > 0;
      if (!complete) break;
      source.start(progress_.epoch);  // a short loader goes round
      batch_idx = 0;
      continue;
    }
    if (trial.before_step) trial.before_step(step);
    inside_batch_ = true;
    batch_ = source.any(batch);
    train_log_.start_batch();
    is_last_batch_ = false;
    const bool stepped = run_training_batch(*this, batch, batch_idx++, output);
    inside_batch_ = false;
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
  site_ = site;
  return complete;
}

}  // namespace levin::detail
