#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/profilers/profiler.h"
#include "levin/trainer/callback.h"

namespace levin::detail {

/// Something that takes time and is no hook.
enum class Action {
  kEpoch,
  kBatch,
  kNextTrainBatch,
  kNextEvalBatch,
  kTransfer,
  kTrainingStep,
  kValidationStep,
  kTestStep,
  kPredictStep,
  kZeroGrad,
  kBackward,
  kOptimizerStep,
  kClip,
  kScheduler,
  kSaveCheckpoint,
  kValidation,
  kCount
};

/// Who hears of hooks: the callbacks of a run, in order, and the profiler that times them.
class HookTable {
 public:
  HookTable(std::vector<CallbackRef> callbacks, std::shared_ptr<Profiler> profiler);

  /// A run begins: the trainer's callbacks and those of the module, which take the place of others of their class.
  void begin(const std::vector<CallbackRef>& own);
  /// What a profile calls the hooks and actions.
  void register_actions(const std::string& module, const std::string& strategy);

  const std::vector<CallbackRef>& callbacks() const { return callbacks_; }
  Profiler* profiler() const { return profiler_.get(); }

  size_t size() const { return listeners_.size(); }
  Callback& operator[](size_t index) { return *listeners_[index]; }
  /// Nobody is called any more; and what listen() takes to go back.
  std::vector<Callback*> silence() { return std::exchange(listeners_, {}); }
  void listen(std::vector<Callback*> listeners) { listeners_ = std::move(listeners); }

  Span span(Action action) { return Span(profiler_.get(), actions_[static_cast<size_t>(action)]); }
  Span module_span(Hook hook) { return Span(profiler_.get(), module_actions_[static_cast<size_t>(hook)]); }
  Span callback_span(Hook hook, size_t index) {
    if (!profiler_) return Span(nullptr, ActionId{});
    const auto& action = callback_actions_[static_cast<size_t>(hook)][index];
    return Span(action ? profiler_.get() : nullptr, action.value_or(ActionId{}));
  }

 private:
  std::vector<CallbackRef> base_, callbacks_;
  std::vector<Callback*> listeners_;
  std::shared_ptr<Profiler> profiler_;
  std::array<ActionId, static_cast<size_t>(Action::kCount)> actions_{};
  std::array<ActionId, kHookCount> module_actions_{};
  std::array<std::vector<std::optional<ActionId>>, kHookCount> callback_actions_;
};

}  // namespace levin::detail
