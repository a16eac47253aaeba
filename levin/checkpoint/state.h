#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "levin/core/error.h"
#include "levin/core/state_dict.h"
#include "levin/optim/optimizer.h"

namespace levin {

class StateRef;

namespace detail {

template <class T>
concept ModuleHolder = requires(T& m) {
  { m.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};
template <class T>
concept SharedModule = std::convertible_to<T, std::shared_ptr<torch::nn::Module>>;
template <class T>
concept Stateful = requires(T& object, const StateDict& state) {
  { std::as_const(object).state_dict() } -> std::convertible_to<StateDict>;
  object.load_state_dict(state);
};
/// A class that says itself what is to be saved of it: `StateRef state_ref() const`.
template <class T>
concept HasStateRef = requires(T& object) {
  { object.state_ref() } -> std::same_as<StateRef>;
};
template <class T>
concept StateHandle = HasStateRef<T> || std::derived_from<T, Optimizer> || ModuleHolder<T> || SharedModule<T>;
template <class T>
concept StateNumber = std::same_as<T, bool> || std::floating_point<T> ||(std::integral<T> && !std::same_as<T, char>);
template <class T>
concept StateVariable =
    StateNumber<T> || std::same_as<T, std::string> || std::same_as<T, StateDict> || std::same_as<T, StateList> ||
    std::same_as<T, Tensor> || std::same_as<T, std::vector<double>> || std::same_as<T, std::vector<int64_t>>;
/// A data loader of torch, as it is, behind a pointer, or set up with a Fabric.
template <class T>
struct IsTorchDataLoader : std::false_type {};
template <class T>
requires requires(T& loader) {
  typename T::BatchRequestType;
  loader.options().enforce_ordering;
}
struct IsTorchDataLoader<T> : std::true_type {};
template <class T>
requires requires {
  typename T::Range;
}
struct IsTorchDataLoader<T> : IsTorchDataLoader<std::remove_cvref_t<typename T::Range>> {};
template <class T>
requires requires {
  typename T::element_type;
}
struct IsTorchDataLoader<T> : IsTorchDataLoader<typename T::element_type> {};

/// Whether a State can hold `T` (with its reference and const, as the argument has them).
template <class T>
concept StateBindable = StateHandle<std::remove_cvref_t<T>> ||
                        (std::is_lvalue_reference_v<T>&& Stateful<std::remove_reference_t<T>>) ||
                        (std::is_lvalue_reference_v<T> &&
                         std::derived_from<std::remove_cvref_t<T>, torch::nn::Module>) ||
                        (std::is_lvalue_reference_v<T> && !std::is_const_v<std::remove_reference_t<T>> &&
                         StateVariable<std::remove_cvref_t<T>>);

template <class T>
void load_number(T& variable, const StateValue& value) {
  if constexpr (std::same_as<T, bool>) {
    variable = value.to_bool();
  } else if constexpr (std::floating_point<T>) {
    variable = static_cast<T>(value.to_double());
  } else {
    const int64_t number = value.to_int();
    LEVIN_CHECK(std::in_range<T>(number), "[state] ", number, " does not fit the variable");
    variable = static_cast<T>(number);
  }
}

}  // namespace detail

/// One thing that can be saved and loaded again, bound to where it lives: a module (any holder, shared_ptr, or a
/// reference), an optimizer, anything with `StateDict state_dict() const` and `load_state_dict(const StateDict&)`, a
/// Tensor, or a variable (number, bool, string, StateDict, vector of numbers). Handles are kept alive, variables must
/// outlive it.
class StateRef {
 public:
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, StateRef>)
      StateRef(T&& object) {  // NOLINT: implicit on purpose, `{"epoch", epoch}`
    using U = std::remove_cvref_t<T>;
    static_assert(
        !detail::IsTorchDataLoader<U>::value,
        "levin: a torch data loader cannot resume where it stopped, so a State does not hold one: write "
        "levin::make_loader(dataset, {.batch_size = ..., .shuffle = true}) for it, which can; over a stateful "
        "dataset an epoch starts again");
    static_assert(
        detail::StateBindable<T> || detail::IsTorchDataLoader<U>::value,
        "levin: a State binds variables, so that load can write to them: a number or string must be a variable that is "
        "not const (int64_t epoch = 3; State state{{\"epoch\", epoch}}), anything else needs state_dict() const and "
        "load_state_dict(const StateDict&)");
    if constexpr (detail::StateBindable<T>) bind<U>(object);
  }

  /// Set for modules: their tensors are read one by one, straight into place.
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  /// Set for tensors.
  Tensor* tensor() const { return tensor_; }
  /// Set for optimizers; empty for all else.
  const Optimizer& optimizer() const { return optimizer_; }
  /// Whether this is a plain variable.
  bool is_variable() const { return variable_; }

  /// What is to be written. Tensors are not copied.
  StateValue save() const;
  /// Sets what is bound; for a module strictly. An Error when the value is of another kind.
  void load(const StateValue& value) const;

 private:
  template <class U, class T>
  void bind(T& object) {
    if constexpr (detail::HasStateRef<U>) {
      *this = object.state_ref();
    } else if constexpr (std::derived_from<U, Optimizer>) {
      const Optimizer handle = object;
      optimizer_ = handle;
      save_ = [handle] { return StateValue(handle.state_dict()); };
      load_ = [handle](const StateValue& value) { handle.load_state_dict(value.to_dict()); };
    } else if constexpr (detail::Stateful<T>) {
      save_ = [p = &object] { return StateValue(std::as_const(*p).state_dict()); };
      load_ = [p = &object](const StateValue& value) { p->load_state_dict(value.to_dict()); };
    } else if constexpr (detail::SharedModule<U>) {
      module_ = object;
    } else if constexpr (detail::ModuleHolder<U>) {
      module_ = object.ptr();
    } else if constexpr (std::derived_from<U, torch::nn::Module>) {
      // Not owned: a module that is a member or lies on the stack, and outlives the State as any variable does.
      module_ = std::shared_ptr<torch::nn::Module>(std::shared_ptr<void>(), const_cast<U*>(&object));
    } else if constexpr (std::same_as<U, Tensor>) {
      tensor_ = &object;
    } else {
      bind_variable(object);
    }
  }
  template <class U>
  void bind_variable(U& variable) {
    variable_ = true;
    if constexpr (detail::StateNumber<U>) {
      save_ = [p = &variable] { return StateValue(*p); };
      load_ = [p = &variable](const StateValue& value) { detail::load_number(*p, value); };
    } else if constexpr (std::same_as<U, std::string>) {
      save_ = [p = &variable] { return StateValue(*p); };
      load_ = [p = &variable](const StateValue& value) { *p = value.to_string(); };
    } else if constexpr (std::same_as<U, StateDict>) {
      save_ = [p = &variable] { return StateValue(*p); };
      load_ = [p = &variable](const StateValue& value) { *p = value.to_dict(); };
    } else if constexpr (std::same_as<U, StateList>) {
      save_ = [p = &variable] { return StateValue(*p); };
      load_ = [p = &variable](const StateValue& value) { *p = value.to_list(); };
    } else {
      save_ = [p = &variable] { return StateValue(StateList(p->begin(), p->end())); };
      load_ = [p = &variable](const StateValue& value) {
        U numbers;
        for (const auto& element : value.to_list()) detail::load_number(numbers.emplace_back(), element);
        *p = std::move(numbers);
      };
    }
  }

  bool variable_ = false;
  std::shared_ptr<torch::nn::Module> module_;
  Tensor* tensor_ = nullptr;
  Optimizer optimizer_;
  std::function<StateValue()> save_;
  std::function<void(const StateValue&)> load_;
};

/// What a checkpoint holds: names, each bound to something alive. The same State saves and loads.
///
///     levin::State state{{"model", net}, {"optimizer", opt}, {"epoch", epoch}};
///     levin::save_checkpoint("run/last", state);
///     levin::load_checkpoint("run/last", state);      // net, opt and epoch are as they were
class State {
 public:
  struct Item {
    std::string name;
    StateRef ref;
  };

  State() = default;
  State(std::initializer_list<Item> items);

  /// A name that is there already is an Error.
  void add(std::string name, StateRef ref);
  const StateRef* find(std::string_view name) const;
  const std::vector<Item>& items() const { return items_; }

  /// Everything, as it would be written. Tensors are not copied.
  StateDict state_dict() const;

 private:
  std::vector<Item> items_;
};

}  // namespace levin
