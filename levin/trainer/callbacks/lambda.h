#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string_view>
#include <utility>

#include "levin/trainer/callback.h"

namespace levin {

/// Functions by the names of Callback's hooks; those that are not set are not called.
struct LambdaHooks {
#define LEVIN_HOOK(name, kind, parameters, arguments) std::function<void parameters> name = {};
  LEVIN_HOOKS(LEVIN_HOOK)
#undef LEVIN_HOOK
};

/// A callback of functions, for when a class is too much:
///
///     levin::LambdaCallback({.on_train_epoch_end = [](levin::TrainerContext& run) { run.print("done"); }})
class LambdaCallback : public Callback {
 public:
  explicit LambdaCallback(LambdaHooks hooks) : hooks_(std::move(hooks)) {}

#define LEVIN_HOOK(name, kind, parameters, arguments) \
  void name parameters override {                     \
    if (hooks_.name) hooks_.name arguments;           \
  }
  LEVIN_HOOKS(LEVIN_HOOK)
#undef LEVIN_HOOK

  bool hears(Hook hook) const override {
    switch (hook) {
#define LEVIN_HOOK(name, kind, parameters, arguments) \
  case Hook::name:                                    \
    return static_cast<bool>(hooks_.name);
      LEVIN_HOOKS(LEVIN_HOOK)
#undef LEVIN_HOOK
    }
    return true;
  }

 private:
  LambdaHooks hooks_;
};

}  // namespace levin
