#pragma once

#include <type_traits>
#include <utility>

#include "levin/trainer/run/run.h"

namespace levin::detail {

/// The member of Callback that a hook is, and the module's of the same name, where it has one.
template <Hook H>
struct HookOf;
#define LEVIN_HOOK(name, kind, parameters, arguments)     \
  template <>                                             \
  struct HookOf<Hook::name> {                             \
    static constexpr auto callback = &Callback::name;     \
    template <class M>                                    \
    static constexpr auto module() {                      \
      if constexpr (requires { &M::name; }) /* its own */ \
        return &M::name;                                  \
      else                                                \
        return nullptr;                                   \
    }                                                     \
  };
LEVIN_HOOKS(LEVIN_HOOK)
#undef LEVIN_HOOK

/// The hook of one callback.
template <Hook H, class... A>
void call_one(Run& run, size_t index, A&&... args) {
  auto& place = run.state.place;
  auto& callback = run.hooks[index];
  const auto outer = place.doing;
  place.site = &hook_site(H);
  place.doing = {place.site->hook, &callback};
  const auto span = run.hooks.callback_span(H, index);
  (callback.*HookOf<H>::callback)(run.context, args...);
  place.doing = outer;
}

/// The hook of every callback.
template <Hook H, class... A>
void call_callbacks(Run& run, A&&... args) {
  for (size_t i = 0; i < run.hooks.size(); ++i) call_one<H>(run, i, args...);
}

/// Something of the module that counts as its hook.
template <class F>
void call_module(Run& run, Hook hook, F&& f) {
  auto& place = run.state.place;
  const auto outer = place.doing;
  place.site = &hook_site(hook);
  place.doing = {place.site->hook};
  const auto span = run.hooks.module_span(hook);
  f();
  place.doing = outer;
}

/// The hook of the module.
template <Hook H, class... A>
void call_module(Run& run, A&&... args) {
  call_module(run, H, [&] { (run.model.module->*HookOf<H>::template module<TrainModuleBase>())(args...); });
}

/// The hook of every callback, then the module's.
template <Hook H, class... A>
void call(Run& run, A&&... args) {
  call_callbacks<H>(run, args...);
  if constexpr (!std::is_null_pointer_v<decltype(HookOf<H>::template module<TrainModuleBase>())>)
    call_module<H>(run, args...);
}

}  // namespace levin::detail
