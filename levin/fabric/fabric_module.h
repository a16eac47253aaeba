#pragma once

#include <atomic>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "levin/checkpoint/state.h"
#include "levin/core/each_tensor.h"
#include "levin/kernels/fp8/fp8_layers.h"
#include "levin/kernels/linear/weight_casts.h"
#include "levin/nn/failed_unit.h"
#include "levin/precision/precision.h"
#include "levin/strategies/strategy.h"

namespace levin {

template <class M>
class FabricModule;

namespace detail {

struct FabricCore;

/// One output of a call, counted from its forward until a backward has been through it or its graph is gone. A hook on
/// the output owns it.
class PendingOutput {
 public:
  using Count = std::shared_ptr<std::atomic<int64_t>>;

  explicit PendingOutput(Count count) : count_(std::move(count)) { ++*count_; }
  ~PendingOutput() { reached(); }
  PendingOutput(const PendingOutput&) = delete;
  PendingOutput& operator=(const PendingOutput&) = delete;
  void reached() {
    if (!reached_.exchange(true)) --*count_;
  }

 private:
  Count count_;
  std::atomic<bool> reached_ = false;
};

/// What surrounds the calls of one module that was set up. Shared by all copies of its FabricModule.
struct ModuleCall {
  std::shared_ptr<FabricCore> core;
  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<ModuleSync> sync;
  PrecisionPlan precision;
  /// Null unless the precision multiplies in float8.
  std::shared_ptr<kernels::Fp8Layers> fp8;
  /// Null unless autocast casts weights that are all in place when forward begins.
  std::unique_ptr<kernels::WeightCasts> weight_casts;
  c10::DeviceType device = c10::DeviceType::CPU;
  /// Nothing has to be done around a call: one branch, then the user's forward.
  bool plain = true;
  /// Outputs that a backward may still come to.
  PendingOutput::Count pending = std::make_shared<std::atomic<int64_t>>(0);
  /// A forward has returned a leaf (a parameter as it is) since the last backward: no hook can be on it.
  bool handed_out_leaf = false;
  /// Calls under way.
  int running = 0;
  /// loss.backward() without fabric.backward(loss) would give wrong gradients.
  bool guards_backward = false;
  /// One parameter, and the dtype that it had at setup: module->to(dtype) after it is refused.
  Tensor witness;
  c10::ScalarType witness_dtype = c10::ScalarType::Undefined;

  /// Whether the next backward may reach it.
  bool armed() const { return *pending > 0 || handed_out_leaf || running > 0; }
};

/// Sets everything up before a forward and puts it back after, also when it throws.
class CallScope {
 public:
  explicit CallScope(ModuleCall& call);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  /// The end of a forward that returned: what fails here is its error. After an exception the destructor does it.
  void leave();

 private:
  ModuleCall& call_;
  bool left_ = false;
  std::optional<Autocast> autocast_;
  std::optional<kernels::Fp8Scope> fp8_;
  std::optional<kernels::WeightCastsScope> weight_casts_;
  std::optional<c10::ScalarType> default_dtype_;
};

Tensor cast_floating(const Tensor& tensor, c10::ScalarType dtype);
/// Casts the outputs and tells the strategy and the backward guard about those that need a gradient.
void finish_call(ModuleCall& call, std::vector<Tensor*>& outputs);

/// A holder (torch's or Levin's) or a shared_ptr to a module: something that can be copied without copying the module.
template <class T>
concept ModuleHandle = ModuleHolder<T> || SharedModule<T>;

template <ModuleHandle M>
std::shared_ptr<torch::nn::Module> module_ptr(const M& module) {
  if constexpr (SharedModule<M>) {
    return module;
  } else {
    if constexpr (requires { module.is_empty(); })
      if (module.is_empty()) return nullptr;
    return const_cast<M&>(module).ptr();
  }
}

// By `->forward`: torch's holders get the result type of a templated forward (Sequential) wrong in their own call.
template <class M, class... Args>
concept Forwardable = requires(M& m, Args&&... args) {
  m->forward(std::forward<Args>(args)...);
};

/// The argument with its floating tensors in `dtype`; what holds no tensor passes untouched.
template <class A>
decltype(auto) cast_argument(A&& argument, std::optional<c10::ScalarType> dtype) {
  using T = std::remove_cvref_t<A>;
  if constexpr (std::same_as<T, Tensor>) {
    return dtype ? cast_floating(argument, *dtype) : Tensor(std::forward<A>(argument));
  } else if constexpr (Leaf<T> || !TensorNest<T> || !std::copy_constructible<T>) {
    return std::forward<A>(argument);
  } else {
    T copy(std::forward<A>(argument));
    if (dtype) each_tensor(copy, [&](Tensor& t) { t = cast_floating(t, *dtype); });
    return copy;
  }
}

template <class F, class... Args>
auto run_call(ModuleCall& call, F&& f, Args&&... args) {
  using Result = std::invoke_result_t<F, decltype(cast_argument(std::forward<Args>(args), {}))...>;
  if constexpr (std::is_void_v<Result>) {
    {
      CallScope scope(call);
      f(cast_argument(std::forward<Args>(args), call.precision.inputs)...);
      scope.leave();
    }
    std::vector<Tensor*> outputs;
    finish_call(call, outputs);
  } else {
    std::optional<std::remove_cvref_t<Result>> result;
    {
      CallScope scope(call);
      result.emplace(f(cast_argument(std::forward<Args>(args), call.precision.inputs)...));
      scope.leave();
    }
    std::vector<Tensor*> outputs;
    each_tensor(*result, [&](Tensor& t) {
      if (t.defined()) outputs.push_back(&t);
    });
    finish_call(call, outputs);
    return std::move(*result);
  }
}

}  // namespace detail

/// A module that was set up: call it as the module itself. A handle: copies share, and it keeps the module alive.
template <class M>
class FabricModule {
 public:
  FabricModule(M module, std::shared_ptr<detail::ModuleCall> call)
      : module_(std::move(module)), call_(std::move(call)) {}

  /// The module's forward, in the run's precision, under the care of its strategy.
  template <class... Args>
  auto operator()(Args&&... args) const {
    static_assert(detail::Forwardable<M, Args...>,
                  "levin: this module's forward cannot be called with these arguments");
    if constexpr (detail::Forwardable<M, Args...>) {
      try {
        if (call_->plain) [[likely]]
          return module_->forward(std::forward<Args>(args)...);
        return detail::run_call(
            *call_, [this](auto&&... x) -> decltype(auto) { return module_->forward(std::forward<decltype(x)>(x)...); },
            std::forward<Args>(args)...);
      } catch (c10::Error& error) {
        std::string inputs;
        (detail::InputNote<Args&>(args).describe(inputs), ...);
        detail::note_failed_call(error, *call_->module, inputs);
        throw;
      }
    }
  }

  /// Another method that computes, under the same care, or a function of the module (of a method with overloads, say):
  ///
  ///     auto code = net.call(&NetImpl::encode, x);
  ///     auto both = net.call([](NetImpl& module, const Tensor& x) { return module.decode(module.encode(x)); }, x);
  template <class F, class... Args>
  auto call(F&& f, Args&&... args) const {
    constexpr bool fits =
        std::invocable<F&, decltype(*module_.get()), decltype(detail::cast_argument(std::forward<Args>(args), {}))...>;
    static_assert(fits,
                  "levin: call takes a method of the module (&NetImpl::encode), or a function of the module, and then "
                  "its arguments; these do not fit");
    if constexpr (fits)
      return detail::run_call(
          *call_,
          [&](auto&&... x) -> decltype(auto) { return std::invoke(f, *operator->(), std::forward<decltype(x)>(x)...); },
          std::forward<Args>(args)...);
  }

  /// The user's module.
  auto* operator->() const { return module_.get(); }
  const M& module() const { return module_; }
  std::shared_ptr<torch::nn::Module> ptr() const { return call_->module; }

  detail::ModuleCall& setup_call() const { return *call_; }

 private:
  mutable M module_;
  std::shared_ptr<detail::ModuleCall> call_;
};

}  // namespace levin
