#include "levin/trainer/callbacks/weight_averaging.h"

#include "levin/checkpoint/module_state.h"
#include "levin/core/log.h"
#include "levin/trainer/context.h"
#include "levin/trainer/train_module.h"

namespace levin {
namespace {

// The names of `like`, with the tensors of `from` where it has them.
StateDict replaced(const StateDict& like, const StateDict& from) {
  StateDict out;
  for (const auto& [name, value] : like) {
    const auto* other = from.find(name);
    out[name] = other ? *other : value;
  }
  return out;
}

}  // namespace

WeightAveraging::WeightAveraging(WeightAveragingOptions options) : WeightAveraging(std::move(options), {}) {}
WeightAveraging::WeightAveraging(WeightAveragingOptions options, std::optional<double> ema_decay)
    : options_(std::move(options)), ema_decay_(ema_decay) {}

bool WeightAveraging::should_update(std::optional<int64_t> step_idx, std::optional<int64_t>) const {
  return step_idx.has_value();
}

void WeightAveraging::setup(TrainerContext&, std::string_view stage) {
  if (stage != "fit") return;
  weights_.reset();
  loaded_average_ = {};
  loaded_count_ = 0;
  latest_update_step_ = 0;
  latest_update_epoch_ = -1;
}

void WeightAveraging::on_fit_start(TrainerContext& run) {
  weights_ = std::make_shared<optim::AveragedWeights>(
      run.module(), optim::AveragedWeightsOptions{.device = options_.device,
                                                  .buffers = options_.use_buffers ? optim::AveragedBuffers::kAverage
                                                                                  : optim::AveragedBuffers::kCopy,
                                                  .ema_decay = ema_decay_,
                                                  .avg_fn = options_.avg_fn});
  if (loaded_count_ == 0) return;
  weights_->load_state_dict(loaded_average_);
  weights_->set_count(loaded_count_);
  loaded_average_ = {};
}

void WeightAveraging::on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) {
  const int64_t step = run.global_step();
  if (step <= latest_update_step_ || !should_update(step - 1, {})) return;
  weights_->update();
  latest_update_step_ = step;
}

void WeightAveraging::on_train_epoch_end(TrainerContext& run) {
  const int64_t epoch = run.current_epoch();
  if (epoch <= latest_update_epoch_ || !should_update({}, epoch)) return;
  weights_->update();
  latest_update_epoch_ = epoch;
}

// Exchanged, not copied: a checkpoint made after the run still has the weights.
void WeightAveraging::on_train_end(TrainerContext&) {
  if (has_average() && !weights_->is_swapped()) weights_->swap();
}

void WeightAveraging::on_validation_epoch_start(TrainerContext& run) {
  if (run.fitting() && has_average()) weights_->swap();
}

void WeightAveraging::on_validation_epoch_end(TrainerContext& run) {
  if (run.fitting() && has_average() && weights_->is_swapped()) weights_->swap();
}

void WeightAveraging::on_exception(TrainerContext& run, const std::exception&) {
  if (run.fitting() && has_average() && weights_->is_swapped()) weights_->swap();
}

void WeightAveraging::on_save_checkpoint(TrainerContext&, StateDict& checkpoint) {
  if (!weights_) return;
  checkpoint["averaging_state"] = StateDict{{"n_averaged", weights_->count()}};
  if (!has_average()) return;
  const StateDict in_module = checkpoint.at("model").to_dict();
  StateDict in_average = replaced(in_module, weights_->state_dict());
  const bool swapped = weights_->is_swapped();
  checkpoint["current_model_state"] = swapped ? in_average : in_module;
  checkpoint["model"] = swapped ? in_module : std::move(in_average);
}

void WeightAveraging::on_load_checkpoint(TrainerContext& run, StateDict& checkpoint) {
  if (!run.fitting()) return;
  const auto* state = checkpoint.find("averaging_state");
  if (!state) {
    log_warning("WeightAveraging: the checkpoint was made without it; the average starts again from its weights");
    return;
  }
  loaded_count_ = state->to_dict().at("n_averaged").to_int();
  if (loaded_count_ == 0) return;
  StateDict weights = checkpoint.at("current_model_state").to_dict();
  loaded_average_ = checkpoint.at("model").to_dict();
  checkpoint["model"] = std::move(weights);
}

void WeightAveraging::on_rollback(TrainerContext& run, StateDict& checkpoint) {
  if (!weights_) return;
  on_load_checkpoint(run, checkpoint);
  weights_->set_count(0);
  if (loaded_count_ == 0) return;
  weights_->load_state_dict(loaded_average_);
  weights_->set_count(std::exchange(loaded_count_, 0));
  loaded_average_ = {};
}

StateDict WeightAveraging::state_dict() const {
  return {{"latest_update_step", latest_update_step_}, {"latest_update_epoch", latest_update_epoch_}};
}

void WeightAveraging::load_state_dict(const StateDict& state) {
  latest_update_step_ = state.at("latest_update_step").to_int();
  latest_update_epoch_ = state.at("latest_update_epoch").to_int();
}

EMAWeightAveraging::EMAWeightAveraging(EMAWeightAveragingOptions options)
    : WeightAveraging(WeightAveragingOptions{.device = options.device, .use_buffers = options.use_buffers},
                      options.decay),
      options_(options) {
  LEVIN_CHECK(options.decay >= 0 && options.decay <= 1, "[EMAWeightAveraging] decay=", options.decay,
              " must be in [0, 1]");
  LEVIN_CHECK(options.update_every_n_steps >= 0,
              "[EMAWeightAveraging] update_every_n_steps=", options.update_every_n_steps, " must be at least 0");
  LEVIN_CHECK(options.update_every_n_steps > 0 || options.update_starting_at_epoch,
              "[EMAWeightAveraging] update_every_n_steps=0 without update_starting_at_epoch would never update");
}

bool EMAWeightAveraging::should_update(std::optional<int64_t> step_idx, std::optional<int64_t> epoch_idx) const {
  if (step_idx)
    return options_.update_every_n_steps > 0 && *step_idx % options_.update_every_n_steps == 0 &&
           *step_idx >= options_.update_starting_at_step.value_or(0);
  return epoch_idx && options_.update_starting_at_epoch && *epoch_idx >= *options_.update_starting_at_epoch;
}

}  // namespace levin
