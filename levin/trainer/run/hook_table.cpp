#include "levin/trainer/run/hook_table.h"

#include <algorithm>
#include <set>
#include <typeinfo>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

std::vector<CallbackRef> in_order(std::vector<CallbackRef> callbacks) {
  std::stable_sort(callbacks.begin(), callbacks.end(), [](const CallbackRef& a, const CallbackRef& b) {
    // A monitor keeps its place among the ordinary ones, except at the end of an epoch.
    const auto rank = [](const CallbackRef& c) {
      const auto order = c->order();
      return order == CallbackOrder::kTuner ? 0 : order == CallbackOrder::kCheckpoint ? 2 : 1;
    };
    return rank(a) < rank(b);
  });
  std::set<std::string> keys;
  for (const auto& callback : callbacks)
    if (!callback->state_dict().empty())
      LEVIN_CHECK(keys.insert(callback->state_key()).second, "[trainer] two callbacks keep a state under the key \"",
                  callback->state_key(), "\"; give them different options, or override state_key()");
  return callbacks;
}

}  // namespace

HookTable::HookTable(std::vector<CallbackRef> callbacks, std::shared_ptr<Profiler> profiler)
    : base_(std::move(callbacks)), callbacks_(in_order(base_)), profiler_(std::move(profiler)) {}

void HookTable::begin(const std::vector<CallbackRef>& own) {
  callbacks_ = base_;
  for (const auto& callback : own) {
    const Callback& mine = *callback.get();
    std::erase_if(callbacks_, [&](const CallbackRef& c) {
      const Callback& other = *c.get();
      return typeid(other) == typeid(mine);
    });
    callbacks_.push_back(callback);
  }
  callbacks_ = in_order(std::move(callbacks_));
  listeners_.clear();
  for (const auto& callback : callbacks_) listeners_.push_back(callback.get().get());
}

void HookTable::register_actions(const std::string& module, const std::string& strategy) {
  const auto of_module = concat("[TrainModule]", module, ".");
  const auto of_strategy = concat("[Strategy]", strategy, ".");
  const std::array<std::string, static_cast<size_t>(Action::kCount)> names{"run_training_epoch",
                                                                           "run_training_batch",
                                                                           "[TrainLoop].train_dataloader_next",
                                                                           "[EvalLoop].dataloader_next",
                                                                           of_strategy + "batch_to_device",
                                                                           of_strategy + "training_step",
                                                                           of_strategy + "validation_step",
                                                                           of_strategy + "test_step",
                                                                           of_strategy + "predict_step",
                                                                           of_module + "optimizer_zero_grad",
                                                                           of_strategy + "backward",
                                                                           of_module + "optimizer_step",
                                                                           of_module + "configure_gradient_clipping",
                                                                           of_module + "lr_scheduler_step",
                                                                           "save_checkpoint",
                                                                           "run_validation"};
  for (size_t i = 0; i < names.size(); ++i) actions_[i] = profiler_->register_action(names[i]);
  for (size_t hook = 0; hook < kHookCount; ++hook) {
    const char* name = kHookSites[hook].hook;
    module_actions_[hook] = profiler_->register_action(of_module + name);
    auto& actions = callback_actions_[hook];
    actions.assign(callbacks_.size(), std::nullopt);
    for (size_t i = 0; i < callbacks_.size(); ++i)
      if (callbacks_[i].overrides(static_cast<Hook>(hook)))
        actions[i] = profiler_->register_action(concat("[Callback]", callbacks_[i]->state_key(), ".", name));
  }
}

}  // namespace levin::detail
