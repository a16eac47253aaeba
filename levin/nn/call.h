#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "levin/core/each_tensor.h"
#include "levin/nn/interceptor.h"

namespace levin::detail {

inline constexpr int kBeforeAll = std::numeric_limits<int>::min();

/// How an argument of declared type P stands in a frame. Tensors (and nests of them) are owned, so that interceptors
/// can replace them without touching the caller's; what is declared as a plain reference is the caller's own.
template <class P>
struct Argument {
  using Owned = std::remove_cvref_t<P>;
  static constexpr bool kValue = !std::is_lvalue_reference_v<P>;
  static constexpr bool kCopied = std::is_lvalue_reference_v<P> && std::is_const_v<std::remove_reference_t<P>> &&
                                  TensorNest<Owned> && std::is_copy_constructible_v<Owned>;
  static constexpr bool kOwned = kValue || kCopied;
  static constexpr bool kVisible = TensorNest<Owned> && (kOwned || !std::is_const_v<std::remove_reference_t<P>>);
  using Stored = std::conditional_t<kOwned, Owned, std::remove_reference_t<P>*>;

  template <class A>
  static Stored store(A&& a) {
    if constexpr (kOwned)
      return Stored(std::forward<A>(a));
    else
      return &a;
  }
  static auto& value(Stored& stored) {
    if constexpr (kOwned)
      return stored;
    else
      return *stored;
  }
  static P&& pass(Stored& stored) { return static_cast<P&&>(value(stored)); }
};

/// Whether all tensors of a value are there when it is made: tensors, and structs, tuples and arrays of them. The
/// elements of a vector are not.
template <class T>
struct HasFixedTensors : std::bool_constant<std::is_aggregate_v<T>> {};
template <>
struct HasFixedTensors<Tensor> : std::true_type {};
template <class... T>
struct HasFixedTensors<std::tuple<T...>> : std::bool_constant<(std::is_same_v<T, Tensor> && ...)> {};
template <class A, class B>
struct HasFixedTensors<std::pair<A, B>> : std::bool_constant<std::is_same_v<A, Tensor> && std::is_same_v<B, Tensor>> {};

/// What an argument is copied to when a call must run again later: itself, or the owner of what it views.
template <class T>
struct Kept {
  using type = T;
};
template <class T>
struct Kept<c10::ArrayRef<T>> {
  using type = std::vector<T>;
};
template <class T, size_t N>
struct Kept<std::span<T, N>> {
  using type = std::vector<std::remove_cv_t<T>>;
};
template <>
struct Kept<std::string_view> {
  using type = std::string;
};
template <class T>
using KeptType = typename Kept<std::remove_cvref_t<T>>::type;

template <class T>
KeptType<T> keep(const T& value) {
  if constexpr (std::is_same_v<KeptType<T>, T>)
    return value;
  else
    return KeptType<T>(value.begin(), value.end());
}

/// Marks a unit and the units below it as being run again in backward.
class RecomputeScope {
 public:
  explicit RecomputeScope(Unit& unit);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

 private:
  std::vector<Unit*> marked_;
};

/// Shares ownership of the module of a unit.
std::shared_ptr<torch::nn::Module> share_module(Unit& unit);
[[noreturn]] void fail_cannot_replay(Unit& unit);
[[noreturn]] void fail_cannot_see_output(Unit& unit);

template <class F>
auto defined_only(F&& f) {
  return [&f](auto& tensor) {
    if constexpr (std::is_const_v<std::remove_reference_t<decltype(tensor)>>) {
      Tensor copy = tensor;
      if (copy.defined()) f(copy);
    } else if (tensor.defined()) {
      f(tensor);
    }
  };
}

/// A call of a forward with the declared types R(P...). It depends on the signature alone: modules share it.
template <class R, class... P>
class Frame final : public Call {
 public:
  using Forward = R (*)(Unit&, P&&...);

  Frame(Unit& unit, int after_order, Forward forward, P&&... args)
      : Call(unit, after_order), forward_(forward), args_(Argument<P>::store(std::forward<P>(args))...) {}

  R result() {
    run();
    if constexpr (std::is_reference_v<R>)
      return static_cast<R>(*result_);
    else if constexpr (!std::is_void_v<R>)
      return std::move(*result_);
  }

  void each_input(c10::function_ref<void(Tensor&)> f) override {
    check_before_forward("see the inputs");
    std::apply([&](auto&... stored) { (see<P>(stored, f), ...); }, args_);
  }

  void each_output(c10::function_ref<void(Tensor&)> f) override {
    check_after_forward("see the outputs");
    if constexpr (std::is_void_v<R>)
      return;
    else if constexpr (TensorNest<std::remove_cvref_t<R>>)
      each_tensor(*result_, defined_only(f));
    else
      fail_cannot_see_output(unit());
  }

  void each_result(c10::function_ref<void(Tensor&)> f) override {
    check_after_forward("see the result");
    if constexpr (std::is_void_v<R>)
      return;
    else if constexpr (TensorNest<std::remove_cvref_t<R>>)
      each_tensor(*result_, [&](auto& tensor) {
        Tensor copy = tensor;
        f(copy);
      });
    else
      fail_cannot_see_output(unit());
  }

  std::function<void()> replay() override {
    check_before_forward("keep the call");
    if constexpr ((std::is_copy_constructible_v<KeptType<P>> && ...)) {
      using Kept = std::tuple<KeptType<P>...>;
      auto kept = std::apply(
          [](auto&... stored) {
            return std::make_shared<const Kept>(keep(std::as_const(Argument<P>::value(stored)))...);
          },
          args_);
      return [owner = share_module(unit()), target = &unit(), after = order(), forward = forward_, kept] {
        RecomputeScope scope(*target);
        again(*target, after, forward, *kept, std::index_sequence_for<P...>());
      };
    } else {
      fail_cannot_replay(unit());
    }
  }

 private:
  using Stored = std::tuple<typename Argument<P>::Stored...>;
  using Result = std::conditional_t<std::is_void_v<R>, bool,
                                    std::conditional_t<std::is_reference_v<R>, std::remove_reference_t<R>*,
                                                       std::optional<std::remove_reference_t<R>>>>;

  template <class Q>
  static void see(typename Argument<Q>::Stored& stored, c10::function_ref<void(Tensor&)> f) {
    if constexpr (Argument<Q>::kVisible) each_tensor(Argument<Q>::value(stored), defined_only(f));
  }

  template <class Kept, size_t... I>
  static void again(Unit& unit, int after, Forward forward, const Kept& kept, std::index_sequence<I...>) {
    [[maybe_unused]] Kept mine = kept;  // forward may consume its arguments, and this may not be the last time
    [[maybe_unused]] std::tuple<std::remove_cvref_t<P>...> args(std::get<I>(mine)...);
    Frame(unit, after, forward, static_cast<P&&>(std::get<I>(args))...).result();
  }

  bool make_result(c10::function_ref<void(Tensor&)> f) override {
    if constexpr (std::is_void_v<R>) {
      return true;
    } else if constexpr (std::is_reference_v<R> || !HasFixedTensors<R>::value || !std::is_default_constructible_v<R>) {
      return false;
    } else {
      result_.emplace();
      each_tensor(*result_, [&](Tensor& tensor) { f(tensor); });
      return true;
    }
  }

  void invoke() override {
    std::apply(
        [&](auto&... stored) {
          if constexpr (std::is_void_v<R>)
            forward_(unit(), Argument<P>::pass(stored)...);
          else if constexpr (std::is_reference_v<R>)
            result_ = &forward_(unit(), Argument<P>::pass(stored)...);
          else
            result_.emplace(forward_(unit(), Argument<P>::pass(stored)...));
        },
        args_);
  }

  Forward forward_;
  Stored args_;
  Result result_{};
};

/// Out of line, so that a forward without interceptors stays small.
template <class R, class... P>
[[gnu::noinline, gnu::cold]] R intercept(Unit& unit, R (*forward)(Unit&, P&&...), std::type_identity_t<P>&&... args) {
  return Frame<R, P...>(unit, kBeforeAll, forward, std::forward<P>(args)...).result();
}

// The usual signatures, compiled once in unit.cpp.
extern template class Frame<Tensor, Tensor>;
extern template class Frame<Tensor, const Tensor&>;
extern template class Frame<Tensor, const Tensor&, const Tensor&>;

}  // namespace levin::detail
