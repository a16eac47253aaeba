#include "levin/trainer/run/loop_state.h"

#include <algorithm>

namespace levin::detail {
namespace {

constexpr LogSite kTrainingStep{"training_step", LogSite::Kind::kTrainStep};
constexpr LogSite kValidationStep{"validation_step", LogSite::Kind::kEvalStep};
constexpr LogSite kTestStep{"test_step", LogSite::Kind::kEvalStep};
constexpr LogSite kPredictStep{"predict_step", LogSite::Kind::kRefused};

}  // namespace

const LogSite& step_site(Stage stage) {
  switch (stage) {
    case Stage::kTrain:
      return kTrainingStep;
    case Stage::kTest:
      return kTestStep;
    case Stage::kPredict:
      return kPredictStep;
    case Stage::kIdle:
    case Stage::kSanity:
    case Stage::kValidate:
      return kValidationStep;
  }
  return kValidationStep;
}

void LoopState::rewind() {
  const int64_t done = window_open ? progress.batch - window_begin : 0;
  progress.batch -= done;
  progress.total_batches -= done;
  leave_batch();
  window_open = false;
  batch_stepped = true;
}

void LoopState::move_to(int64_t batch) {
  const bool validated = progress.validated_at == progress.total_batches;
  progress.total_batches += batch - progress.batch;
  progress.batch = batch;
  progress.validated_at =
      validated ? progress.total_batches : std::min(progress.validated_at, progress.total_batches - 1);
}

StateDict LoopState::state_dict() const {
  return {{"epoch", progress.epoch},
          {"global_step", progress.global_step},
          {"batch", progress.batch},
          {"total_batches", progress.total_batches},
          {"stepped_batches", progress.stepped_batches},
          {"validated_at", progress.validated_at},
          {"closing_epoch", progress.closing_epoch},
          {"epoch_cut", progress.epoch_cut},
          {"batches_done", batches_done},
          {"batch_stepped", batch_stepped},
          {"rollbacks", rollbacks}};
}

void LoopState::load_state_dict(const StateDict& state) {
  progress = {.epoch = state.at("epoch").to_int(),
              .global_step = state.at("global_step").to_int(),
              .batch = state.at("batch").to_int(),
              .total_batches = state.at("total_batches").to_int(),
              .stepped_batches = state.at("stepped_batches").to_int(),
              .validated_at = state.at("validated_at").to_int(),
              .closing_epoch = state.at("closing_epoch").to_bool(),
              .epoch_cut = state.at("epoch_cut").to_bool()};
  const auto* done = state.find("batches_done");  // not in checkpoints of earlier versions
  batches_done = done && done->to_bool();
  batch_stepped = state.at("batch_stepped").to_bool();
  const auto* returns = state.find("rollbacks");
  rollbacks = returns ? returns->to_int() : 0;
}

}  // namespace levin::detail
