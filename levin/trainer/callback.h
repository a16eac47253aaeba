#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "levin/core/state_dict.h"
#include "levin/fabric/options.h"
#include "levin/optim/optimizer.h"
#include "levin/trainer/hooks.h"
#include "levin/trainer/step.h"

namespace levin {

class TrainerContext;

namespace detail {
template <class... A>
constexpr void unused(const A&...) {}
}  // namespace detail

/// When a callback's turn is. Tuners come first and checkpoints last; at the end of an epoch monitors and checkpoints
/// come after the module, so that they see what it logged there.
enum class CallbackOrder { kTuner, kOrdinary, kMonitor, kCheckpoint };

/// Something that happens along the way: derive from it and override what you need. What is not overridden costs a
/// call of an empty function.
///
///     struct PrintLoss : levin::Callback {
///       void on_train_epoch_end(levin::TrainerContext& run) override {
///         run.print("epoch ", run.current_epoch(), ": ", run.metric("train_loss").value_or(0));
///       }
///     };
///     levin::Trainer trainer({.callbacks = {PrintLoss{}}});
class Callback : public CallbackBase {
 public:
  virtual CallbackOrder order() const { return CallbackOrder::kOrdinary; }
  /// Distinguishes the states of callbacks in a checkpoint. Two callbacks with a state and the same key are refused.
  virtual std::string state_key() const;
  /// What a checkpoint keeps of it; empty: nothing.
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}
  /// The run goes back to the weights of a checkpoint (`on_nonfinite = "rollback"`): an average of weights goes back
  /// with them, and may put other weights into "model" before the module takes them. Nothing else of a callback does.
  virtual void on_rollback(TrainerContext&, StateDict& /*checkpoint*/) {}
  /// Whether a hook that it overrides does anything. A training step with a hook of a callback inside is not compiled.
  virtual bool hears(Hook) const { return true; }

  // The hooks; levin/trainer/hooks.h lists them with their parameters.
#define LEVIN_HOOK(name, kind, parameters, arguments) \
  virtual void name parameters {                      \
    detail::unused arguments;                         \
  }
  LEVIN_HOOKS(LEVIN_HOOK)
#undef LEVIN_HOOK
};

namespace detail {

/// Whether `T` has a member from Callback unchanged, as far as that can be seen: a private one, or one with an overload
/// beside it, counts as its own.
template <class T, class Member>
constexpr bool is_unchanged(Member) {
  if constexpr (std::is_invocable_v<Member, std::type_identity<T>>)
    return std::is_same_v<std::invoke_result_t<Member, std::type_identity<T>>,
                          std::invoke_result_t<Member, std::type_identity<Callback>>>;
  else
    return false;
}

/// The hooks that a profile of `T` has rows for. Who is called does not depend on it: every hook of every callback is.
template <class T>
constexpr uint64_t overridden_hooks() {
  uint64_t mask = 0;
#define LEVIN_HOOK(name, kind, parameters, arguments)                                                 \
  if (!is_unchanged<T>([]<class C>(std::type_identity<C>) -> decltype(&C::name) { return nullptr; })) \
    mask |= uint64_t{1} << static_cast<int>(Hook::name);
  LEVIN_HOOKS(LEVIN_HOOK)
#undef LEVIN_HOOK
  return mask;
}

}  // namespace detail

/// A callback as `callbacks = {...}` takes it: a value, which the trainer keeps, or a shared_ptr, which you keep too.
class CallbackRef {
 public:
  template <std::derived_from<Callback> T>
  CallbackRef(std::shared_ptr<T> callback)
      // What stands behind a pointer to a base may override any of them.
      : hooks_(callback && typeid(*callback) == typeid(T) ? detail::overridden_hooks<T>() : ~uint64_t{0}),
        callback_(std::move(callback)) {}
  template <class T>
  requires std::derived_from<std::remove_cvref_t<T>, Callback> CallbackRef(T&& callback)
      : hooks_(detail::overridden_hooks<std::remove_cvref_t<T>>()),
        callback_(std::make_shared<std::remove_cvref_t<T>>(std::forward<T>(callback))) {
    static_assert(!std::is_lvalue_reference_v<T>,
                  "levin: this would copy the callback; pass std::make_shared<...> to keep it, or the value itself");
  }

  const std::shared_ptr<Callback>& get() const { return callback_; }
  Callback* operator->() const { return callback_.get(); }
  /// Whether a profile has a row for it; true where that cannot be known.
  bool overrides(Hook hook) const { return (hooks_ >> static_cast<int>(hook)) & 1; }

 private:
  uint64_t hooks_ = 0;
  std::shared_ptr<Callback> callback_;
};

}  // namespace levin
