#pragma once

#include <array>
#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin {

using at::Tensor;

template <class T, class F>
void each_tensor(T& value, F&& f);

namespace detail {

template <class T>
struct IsSequence : std::false_type {};
template <class T, class A>
struct IsSequence<std::vector<T, A>> : std::true_type {};

template <class T>
struct IsMap : std::false_type {};
template <class K, class V, class... R>
struct IsMap<std::map<K, V, R...>> : std::true_type {};
template <class K, class V, class... R>
struct IsMap<std::unordered_map<K, V, R...>> : std::true_type {};

template <class T>
struct IsNullable : std::false_type {};
template <class T>
struct IsNullable<std::optional<T>> : std::true_type {};
template <class T>
struct IsNullable<std::shared_ptr<T>> : std::true_type {};
template <class T>
struct IsNullable<std::unique_ptr<T>> : std::true_type {};

template <class T>
struct IsVariant : std::false_type {};
template <class... T>
struct IsVariant<std::variant<T...>> : std::true_type {};

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

/// Types that hold no tensor and may stand in a batch or an output all the same.
template <class T>
concept Leaf = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::same_as<T, std::string> ||
    std::same_as<T, std::string_view> || std::same_as<T, const char*> || std::same_as<T, std::monostate> ||
    std::same_as<T, std::nullopt_t> || std::same_as<T, c10::Device> || std::same_as<T, c10::ScalarType>;

/// torch::data::Example, or anything else of that shape.
template <class T>
concept ExampleLike = std::is_class_v<T> && !std::is_aggregate_v<T> && requires(T & t) {
  t.data;
}
&&!requires(T & t) {
  t.data();
};

struct AnyField {
  template <class T>
  operator T() const;
};

template <class T, class... Fields>
consteval size_t count_fields() {
  if constexpr (requires { T{Fields{}..., AnyField{}}; })
    return count_fields<T, Fields..., AnyField>();
  else
    return sizeof...(Fields);
}

template <class T, class F>
void each_field(T& t, F&& f) {
  constexpr size_t n = count_fields<std::remove_cv_t<T>>();
  static_assert(n <= 12,
                "levin: this batch or output struct has more than 12 fields; give it `template <class F> void "
                "each_tensor(F&& f)`");
  // clang-format off
  if constexpr (n == 1) { auto& [a] = t; f(a); }
  else if constexpr (n == 2) { auto& [a, b] = t; f(a); f(b); }
  else if constexpr (n == 3) { auto& [a, b, c] = t; f(a); f(b); f(c); }
  else if constexpr (n == 4) { auto& [a, b, c, d] = t; f(a); f(b); f(c); f(d); }
  else if constexpr (n == 5) { auto& [a, b, c, d, e] = t; f(a); f(b); f(c); f(d); f(e); }
  else if constexpr (n == 6) { auto& [a, b, c, d, e, g] = t; f(a); f(b); f(c); f(d); f(e); f(g); }
  else if constexpr (n == 7) { auto& [a, b, c, d, e, g, h] = t; f(a); f(b); f(c); f(d); f(e); f(g); f(h); }
  else if constexpr (n == 8) { auto& [a, b, c, d, e, g, h, i] = t; f(a); f(b); f(c); f(d); f(e); f(g); f(h); f(i); }
  else if constexpr (n == 9) { auto& [a, b, c, d, e, g, h, i, j] = t; f(a); f(b); f(c); f(d); f(e); f(g); f(h); f(i); f(j); }
  else if constexpr (n == 10) { auto& [a, b, c, d, e, g, h, i, j, k] = t; f(a); f(b); f(c); f(d); f(e); f(g); f(h); f(i); f(j); f(k); }
  else if constexpr (n == 11) { auto& [a, b, c, d, e, g, h, i, j, k, l] = t; f(a); f(b); f(c); f(d); f(e); f(g); f(h); f(i); f(j); f(k); f(l); }
  else if constexpr (n == 12) { auto& [a, b, c, d, e, g, h, i, j, k, l, m] = t; f(a); f(b); f(c); f(d); f(e); f(g); f(h); f(i); f(j); f(k); f(l); f(m); }
  // clang-format on
}

}  // namespace detail

/// Whether each_tensor can see the tensors in T.
template <class T>
concept TensorNest = std::same_as<std::remove_cv_t<T>, Tensor> || detail::Leaf<std::remove_cv_t<T>> ||
    requires(T& t, void (*f)(Tensor&)) {
  t.each_tensor(f);
} || detail::IsSequence<std::remove_cv_t<T>>::value || detail::IsMap<std::remove_cv_t<T>>::value ||
    detail::IsNullable<std::remove_cv_t<T>>::value || detail::IsVariant<std::remove_cv_t<T>>::value ||
    detail::TupleLike<std::remove_cv_t<T>> || std::is_aggregate_v<std::remove_cv_t<T>> ||
    detail::ExampleLike<std::remove_cv_t<T>>;

/// Calls `f(Tensor&)` for every tensor in a value: a Tensor, optional, pointer, vector, array, map, pair, tuple,
/// variant, plain aggregate of such, torch::data::Example, or a class with a member `template <class F> void
/// each_tensor(F&& f)`. Batches, outputs and states are cast, moved, pinned and gathered through this one function.
///
///     struct Graph { Tensor nodes, edges; int64_t count = 0; };
///     levin::each_tensor(graph, [](Tensor& t) { t = t.to(at::kDouble); });
template <class T, class F>
void each_tensor(T& value, F&& f) {
  using U = std::remove_cv_t<T>;
  if constexpr (std::same_as<U, Tensor>) {
    f(value);
  } else if constexpr (requires { value.each_tensor(f); }) {
    value.each_tensor(f);
  } else if constexpr (detail::Leaf<U>) {
  } else if constexpr (detail::IsNullable<U>::value) {
    if (value) each_tensor(*value, f);
  } else if constexpr (detail::IsSequence<U>::value) {
    if constexpr (!detail::Leaf<typename U::value_type>)
      for (auto& element : value) each_tensor(element, f);
  } else if constexpr (detail::IsMap<U>::value) {
    for (auto& [key, element] : value) each_tensor(element, f);
  } else if constexpr (detail::IsVariant<U>::value) {
    std::visit([&](auto& alternative) { each_tensor(alternative, f); }, value);
  } else if constexpr (detail::TupleLike<U>) {
    std::apply([&](auto&... element) { (each_tensor(element, f), ...); }, value);
  } else if constexpr (std::is_aggregate_v<U>) {
    detail::each_field(value, [&](auto& field) { each_tensor(field, f); });
  } else if constexpr (detail::ExampleLike<U>) {
    each_tensor(value.data, f);
    if constexpr (requires { value.target; }) each_tensor(value.target, f);
  } else {
    static_assert(sizeof(U) == 0,
                  "levin: cannot see the tensors in this type; make it a plain struct or give it `template <class F> "
                  "void each_tensor(F&& f)`");
  }
}

}  // namespace levin
