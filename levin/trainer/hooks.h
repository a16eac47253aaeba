#pragma once

#include <cstddef>

/// Every hook of a run, once: HOOK(name, what log() means in it, parameters, arguments). Callback, LambdaCallback, the
/// rows of a profile, the places of errors and the calls of the loops come from this list. A new hook is a line here,
/// and a call where it happens; a TrainModule hook of the same name is called after those of the callbacks.
///
///   setup, teardown         `stage`: "fit", "validate", "test" or "predict"
///   on_train_batch_end      the output is freed after it; detach what is kept of it, or its graph stays too
///   on_save_checkpoint,     the checkpoint about to be written, and the one that was read: entries may be added and
///   on_load_checkpoint      changed
///   on_exception            an exception, Ctrl-C or a signal ends the run
// clang-format off
#define LEVIN_HOOKS(HOOK)                                                                                                                                                  \
  HOOK(setup,                     kRefused,   (TrainerContext& run, std::string_view stage),                                              (run, stage))                    \
  HOOK(teardown,                  kRefused,   (TrainerContext& run, std::string_view stage),                                              (run, stage))                    \
  HOOK(on_fit_start,              kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_fit_end,                kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_sanity_check_start,     kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_sanity_check_end,       kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_train_start,            kEpoch,     (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_train_end,              kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_train_epoch_start,      kEpoch,     (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_train_epoch_end,        kEpoch,     (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_train_batch_start,      kTrainStep, (TrainerContext& run, const AnyBatch& batch, int64_t batch_idx),                            (run, batch, batch_idx))         \
  HOOK(on_train_batch_end,        kTrainStep, (TrainerContext& run, const StepOutput& output, const AnyBatch& batch, int64_t batch_idx),  (run, output, batch, batch_idx)) \
  HOOK(on_before_zero_grad,       kTrainStep, (TrainerContext& run, Optimizer& optimizer),                                                (run, optimizer))                \
  HOOK(on_before_backward,        kTrainStep, (TrainerContext& run, const Tensor& loss),                                                  (run, loss))                     \
  HOOK(on_after_backward,         kTrainStep, (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_before_optimizer_step,  kTrainStep, (TrainerContext& run, Optimizer& optimizer),                                                (run, optimizer))                \
  HOOK(on_validation_start,       kEpoch,     (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_validation_end,         kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_validation_epoch_start, kEpoch,     (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_validation_epoch_end,   kEpoch,     (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_validation_batch_start, kEvalStep,  (TrainerContext& run, const AnyBatch& batch, const StepInfo& at),                           (run, batch, at))                \
  HOOK(on_validation_batch_end,   kEvalStep,  (TrainerContext& run, const StepOutput& output, const AnyBatch& batch, const StepInfo& at), (run, output, batch, at))        \
  HOOK(on_test_start,             kEpoch,     (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_test_end,               kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_test_epoch_start,       kEpoch,     (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_test_epoch_end,         kEpoch,     (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_test_batch_start,       kEvalStep,  (TrainerContext& run, const AnyBatch& batch, const StepInfo& at),                           (run, batch, at))                \
  HOOK(on_test_batch_end,         kEvalStep,  (TrainerContext& run, const StepOutput& output, const AnyBatch& batch, const StepInfo& at), (run, output, batch, at))        \
  HOOK(on_predict_start,          kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_predict_end,            kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_predict_epoch_start,    kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_predict_epoch_end,      kRefused,   (TrainerContext& run),                                                                      (run))                           \
  HOOK(on_predict_batch_start,    kRefused,   (TrainerContext& run, const AnyBatch& batch, const StepInfo& at),                           (run, batch, at))                \
  HOOK(on_predict_batch_end,      kRefused,   (TrainerContext& run, const StepOutput& output, const AnyBatch& batch, const StepInfo& at), (run, output, batch, at))        \
  HOOK(on_save_checkpoint,        kRefused,   (TrainerContext& run, StateDict& checkpoint),                                               (run, checkpoint))               \
  HOOK(on_load_checkpoint,        kRefused,   (TrainerContext& run, StateDict& checkpoint),                                               (run, checkpoint))               \
  HOOK(on_exception,              kRefused,   (TrainerContext& run, const std::exception& error),                                         (run, error))
// clang-format on

namespace levin {

enum class Hook {
#define LEVIN_HOOK(name, kind, parameters, arguments) name,
  LEVIN_HOOKS(LEVIN_HOOK)
#undef LEVIN_HOOK
};

namespace detail {

/// A place in which log() may be called, and what it means there.
struct LogSite {
  enum class Kind {
    kRefused,
    /// Values of steps, by default; epochs too when asked.
    kTrainStep,
    /// Values of epochs, by default; steps too when asked.
    kEvalStep,
    /// Values of epochs, nothing else.
    kEpoch,
  };
  const char* hook = "";
  Kind kind = Kind::kRefused;
};

/// Of each hook, in their order.
inline constexpr LogSite kHookSites[]{
#define LEVIN_HOOK(name, kind, parameters, arguments) {#name, LogSite::Kind::kind},
    LEVIN_HOOKS(LEVIN_HOOK)
#undef LEVIN_HOOK
};
inline constexpr size_t kHookCount = sizeof(kHookSites) / sizeof(*kHookSites);

constexpr const LogSite& hook_site(Hook hook) {
  return kHookSites[static_cast<size_t>(hook)];
}

}  // namespace detail

}  // namespace levin
