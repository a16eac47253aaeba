#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "levin/core/error.h"
#include "levin/nn/call.h"
#include "levin/nn/failed_unit.h"
#include "levin/nn/interceptor.h"

namespace levin {
namespace detail {

/// The declared form of a forward that is neither overloaded nor a template.
template <class R, bool Const, class... P>
struct Signature {};
struct NoSignature {};

template <class F>
struct SignatureOfPointer {
  using type = NoSignature;
};
template <class C, class R, class... P>
struct SignatureOfPointer<R (C::*)(P...)> {
  using type = Signature<R, false, P...>;
};
template <class C, class R, class... P>
struct SignatureOfPointer<R (C::*)(P...) const> {
  using type = Signature<R, true, P...>;
};
template <class C, class R, class... P>
struct SignatureOfPointer<R (C::*)(P...) noexcept> {
  using type = Signature<R, false, P...>;
};
template <class C, class R, class... P>
struct SignatureOfPointer<R (C::*)(P...) const noexcept> {
  using type = Signature<R, true, P...>;
};

template <class Impl>
struct SignatureOf {
  static auto find() {
    if constexpr (requires { &Impl::forward; })
      return typename SignatureOfPointer<decltype(&Impl::forward)>::type();
    else
      return NoSignature();
  }
  using type = decltype(find());
};

// What Hooked needs and unit.cpp does, so that a module costs little to compile.
void set_class_name(const torch::nn::Module& module, const std::type_info& type);
void begin_clone(torch::nn::Module& copy);
void finish_clone(torch::nn::Module& copy, const torch::nn::Module& original, const std::optional<c10::Device>& device);
[[noreturn]] void fail_cannot_clone(const torch::nn::Module& module);
[[noreturn]] void fail_empty_holder(const std::type_info& type);

/// The user's Impl and the mix-in. Names are unlikely ones: a name here would hide a member of the user's class.
template <class Impl>
class UnitOf : public Impl, public Unit {
  static_assert(std::derived_from<Impl, torch::nn::Module>,
                "levin: LEVIN_MODULE(Name) needs `struct NameImpl : torch::nn::Module`");
  static_assert(!std::derived_from<Impl, Unit>, "levin: LEVIN_MODULE(Name) needs a plain NameImpl, not one of a unit");

 public:
  using Impl::Impl;
  torch::nn::Module& as_module() final { return *this; }

  /// The plain forward, or another method in its place, for the innermost end of a call. An error of torch learns where
  /// it was.
  template <auto kMethod, class R, class... P>
  static R levin_plain(Unit& unit, P&&... args) {
    auto& self = static_cast<UnitOf&>(unit);
    const std::tuple<InputNote<P>...> notes{InputNote<P>(args)...};
    try {
      if constexpr (std::is_null_pointer_v<decltype(kMethod)>)
        return self.Impl::forward(std::forward<P>(args)...);
      else
        return (self.*kMethod)(std::forward<P>(args)...);
    } catch (c10::Error& error) {
      std::string inputs;
      std::apply([&](const auto&... note) { (note.describe(inputs), ...); }, notes);
      note_failed_unit(error, self, inputs);
      throw;
    }
  }

  template <auto kMethod, class R, class C, class... P>
  R levin_method(R (C::*)(P...), std::type_identity_t<P>... args) {
    return levin_run_method<kMethod, R, P...>(std::forward<P>(args)...);
  }

 protected:
  template <class R, class... P>
  R levin_run(std::type_identity_t<P>&&... args) {
    return levin_run_method<nullptr, R, P...>(std::forward<P>(args)...);
  }

 private:
  template <auto kMethod, class R, class... P>
  R levin_run_method(std::type_identity_t<P>&&... args) {
    if (!this->intercepted()) [[likely]]
      return levin_plain<kMethod, R, P...>(*this, std::forward<P>(args)...);
    return intercept<R, P...>(*this, &UnitOf::template levin_plain<kMethod, R, P...>, std::forward<P>(args)...);
  }

  struct LevinName {
    explicit LevinName(const torch::nn::Module& self) { set_class_name(self, typeid(Impl)); }
    LevinName(const LevinName&) noexcept {}
    LevinName& operator=(const LevinName&) noexcept { return *this; }
  };
  [[no_unique_address]] LevinName levin_name_{*this};
};

template <class Impl, class... A>
concept CallableWith = requires(Impl& impl, A&&... args) {
  impl.forward(std::forward<A>(args)...);
};

template <class Taken, class... P>
struct AllButLast {
  using type = void;
};
template <class... T, class P, class Q, class... Rest>
struct AllButLast<std::tuple<T...>, P, Q, Rest...> : AllButLast<std::tuple<T..., P>, Q, Rest...> {};
template <class... T, class P>
struct AllButLast<std::tuple<T...>, P> {
  using type = std::tuple<T...>;
};
template <class... P>
using WithoutLast = typename AllButLast<std::tuple<>, P...>::type;

struct Nothing;

// A virtual forward of the user's is overridden by Hooked; the overloads on the way there hide it on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverloaded-virtual"

/// One overload for each shorter list of arguments that the default arguments of forward allow. Their qualifiers keep
/// them out of the way of torch::nn::AnyModule, which looks for the one unqualified forward.
template <class Impl, class R, bool Const, class Taken>
class Shorter : public UnitOf<Impl> {
 public:
  using UnitOf<Impl>::UnitOf;
  void forward(Nothing&) const& = delete;  // hides Impl::forward, which would pass the interceptors by
};
template <class Impl, class R, class... P>
requires CallableWith<Impl, P...>
class Shorter<Impl, R, false, std::tuple<P...>> : public Shorter<Impl, R, false, WithoutLast<P...>> {
  using LevinBase = Shorter<Impl, R, false, WithoutLast<P...>>;

 public:
  using LevinBase::forward;
  using LevinBase::LevinBase;
  R forward(P... args) & { return this->template levin_run<R, P...>(std::forward<P>(args)...); }
};
template <class Impl, class R, class... P>
requires CallableWith<Impl, P...>
class Shorter<Impl, R, true, std::tuple<P...>> : public Shorter<Impl, R, true, WithoutLast<P...>> {
  using LevinBase = Shorter<Impl, R, true, WithoutLast<P...>>;

 public:
  using LevinBase::forward;
  using LevinBase::LevinBase;
  R forward(P... args) const {
    return const_cast<Shorter*>(this)->template levin_run<R, P...>(std::forward<P>(args)...);
  }
};

#pragma GCC diagnostic pop

template <class Derived, class Impl>
std::shared_ptr<torch::nn::Module> clone_unit(const Derived& original, const std::optional<c10::Device>& device) {
  if constexpr (requires(Impl & impl) { impl.reset(); } && std::is_copy_constructible_v<Impl>) {
    c10::AutoGradMode no_grad(false);
    auto copy = std::make_shared<Derived>(original);
    begin_clone(*copy);
    copy->reset();
    finish_clone(*copy, original, device);
    return copy;
  } else {
    fail_cannot_clone(original);
  }
}

/// The declared type of an argument for an overloaded or templated forward, seen from the call alone.
template <class A>
using SeenArgument = std::conditional_t<
    std::is_lvalue_reference_v<A>,
    std::conditional_t<TensorNest<std::remove_cvref_t<A>> && !std::is_aggregate_v<std::remove_cvref_t<A>>,
                       const std::remove_cvref_t<A>&, A>,
    std::remove_cvref_t<A>>;

}  // namespace detail

/// What LEVIN_MODULE makes of a user's Impl: the same class, with a forward that runs the unit's interceptors around
/// the Impl's own. It can be called with all that the Impl's can (const, default arguments, overloads, templates).
template <class Impl, class Signature = typename detail::SignatureOf<Impl>::type>
class Hooked final : public detail::UnitOf<Impl> {
 public:
  using detail::UnitOf<Impl>::UnitOf;

  template <class... A>
  requires detail::CallableWith<Impl, A...>
  decltype(auto) forward(A&&... args) {
    using R = decltype(std::declval<Impl&>().forward(std::forward<A>(args)...));
    if constexpr (detail::CallableWith<Impl, detail::SeenArgument<A>...>)
      return this->template levin_run<R, detail::SeenArgument<A>...>(std::forward<A>(args)...);
    else
      return this->template levin_run<R, A...>(std::forward<A>(args)...);
  }

  std::shared_ptr<torch::nn::Module> clone(const std::optional<c10::Device>& device = std::nullopt) const {
    return detail::clone_unit<Hooked, Impl>(*this, device);
  }
};

template <class Impl, class R, class... P>
class Hooked<Impl, detail::Signature<R, false, P...>> final
    : public detail::Shorter<Impl, R, false, detail::WithoutLast<P...>> {
  using LevinBase = detail::Shorter<Impl, R, false, detail::WithoutLast<P...>>;

 public:
  using LevinBase::forward;
  using LevinBase::LevinBase;
  R forward(P... args) { return this->template levin_run<R, P...>(std::forward<P>(args)...); }

  std::shared_ptr<torch::nn::Module> clone(const std::optional<c10::Device>& device = std::nullopt) const {
    return detail::clone_unit<Hooked, Impl>(*this, device);
  }
};

template <class Impl, class R, class... P>
class Hooked<Impl, detail::Signature<R, true, P...>> final
    : public detail::Shorter<Impl, R, true, detail::WithoutLast<P...>> {
  using LevinBase = detail::Shorter<Impl, R, true, detail::WithoutLast<P...>>;

 public:
  using LevinBase::forward;
  using LevinBase::LevinBase;
  R forward(P... args) { return this->template levin_run<R, P...>(std::forward<P>(args)...); }
  R forward(P... args) const {
    return const_cast<Hooked*>(this)->template levin_run<R, P...>(std::forward<P>(args)...);
  }

  std::shared_ptr<torch::nn::Module> clone(const std::optional<c10::Device>& device = std::nullopt) const {
    return detail::clone_unit<Hooked, Impl>(*this, device);
  }
};

namespace detail {
// A name that both bases have is ambiguous: `&BothForwards::forward` is only well-formed when Impl has none.
struct OwnForward {
  int forward;
};
template <class Impl>
struct BothForwards : Impl, OwnForward {};
template <class Impl>
concept LacksForward = !std::is_final_v<Impl> && requires {
  &BothForwards<Impl>::forward;
};
}  // namespace detail

/// The base of what LEVIN_MODULE declares: a torch::nn::ModuleHolder that makes units.
template <class Impl>
class Holder : public torch::nn::ModuleHolder<Hooked<Impl>> {
  static_assert(!std::is_final_v<Impl>, "levin: LEVIN_MODULE(Name) derives from NameImpl; take its `final` away");
  static_assert(!detail::LacksForward<Impl>, "levin: LEVIN_MODULE(Name) needs a member function forward in NameImpl");

 public:
  using torch::nn::ModuleHolder<Hooked<Impl>>::ModuleHolder;

  template <class T>
  requires std::same_as<std::remove_cvref_t<T>, std::shared_ptr<Impl>>
  explicit Holder(T&&) {
    static_assert(
        sizeof(T) == 0,
        "levin: make_shared<NameImpl> gives a module without interceptors; construct it as Name(...) instead");
  }

  /// Calls forward, through the unit's interceptors.
  template <class... A>
  requires detail::CallableWith<Hooked<Impl>, A...>
  decltype(auto) operator()(A&&... args) const {
    if (!this->impl_) [[unlikely]]
      detail::fail_empty_holder(typeid(Impl));
    return this->impl_->forward(std::forward<A>(args)...);
  }

  /// Calls another method of the Impl as if it were forward: through the unit's interceptors. It has no default
  /// arguments.
  ///
  ///     auto [x, branch] = block.call<&BlockImpl::open>(x, branch);
  template <auto kMethod, class... A>
  decltype(auto) call(A&&... args) const {
    if (!this->impl_) [[unlikely]]
      detail::fail_empty_holder(typeid(Impl));
    return this->impl_->template levin_method<kMethod>(kMethod, std::forward<A>(args)...);
  }
};

/// Declares `Name`, the holder of a NameImpl whose forward can be intercepted. Use it in place of TORCH_MODULE(Name).
///
///     struct BlockImpl : torch::nn::Module { Tensor forward(const Tensor& x); };
///     LEVIN_MODULE(Block);
///     Block block;  block(x);
#define LEVIN_MODULE(Name)                          \
  class Name : public ::levin::Holder<Name##Impl> { \
   public:                                          \
    using ::levin::Holder<Name##Impl>::Holder;      \
    using Impl [[maybe_unused]] = Name##Impl;       \
  }

/// The class of a module for people: "Linear" for a torch::nn::LinearImpl.
std::string class_name(const torch::nn::Module& module);

}  // namespace levin

/// torch::nn::AnyModule (and Sequential with it) asks this before it takes a module; its own test knows no overloads.
template <class Impl, class Signature>
struct torch::detail::has_forward<levin::Hooked<Impl, Signature>> {
  static constexpr bool value = !std::is_same_v<Signature, levin::detail::NoSignature>;
};
