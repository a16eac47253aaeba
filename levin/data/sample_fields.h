#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/core/each_tensor.h"

namespace levin::detail {

/// A tensor of a sample and what it is called there: "image", "input.ids", "[2]", "1" (the second of a struct or
/// tuple). Tensors of different samples belong together when their names are equal.
struct SampleField {
  std::string name;
  Tensor* tensor = nullptr;
};

/// Batch, CombinedBatch and the like: walked by their own each_tensor, in the order of their named items.
template <class T>
concept NamedItems = requires(T& value, void (*f)(Tensor&)) {
  value.each_tensor(f);
  { value.begin()->first } -> std::convertible_to<std::string_view>;
  value.begin()->second;
  value.end();
};

inline std::string below(const std::string& name, std::string_view part) {
  return name.empty() ? std::string(part) : name + "." + std::string(part);
}

/// The tensors that each_tensor visits, in the same order, with their names.
template <class T>
void add_sample_fields(T& value, const std::string& name, std::vector<SampleField>& fields) {
  using U = std::remove_cv_t<T>;
  // What cannot be told apart by a name is told apart by its place.
  const auto number = [&, first = fields.size()] { return below(name, std::to_string(fields.size() - first)); };
  if constexpr (std::same_as<U, Tensor>) {
    fields.push_back({name, &value});
  } else if constexpr (NamedItems<U>) {
    for (auto& [key, item] : value) add_sample_fields(item, below(name, key), fields);
  } else if constexpr (requires(void (*f)(Tensor&)) { value.each_tensor(f); }) {
    value.each_tensor([&](Tensor& tensor) { fields.push_back({number(), &tensor}); });
  } else if constexpr (Leaf<U>) {
  } else if constexpr (IsNullable<U>::value) {
    if (value) add_sample_fields(*value, name, fields);
  } else if constexpr (IsSequence<U>::value) {
    if constexpr (!Leaf<typename U::value_type>)
      for (size_t i = 0; i < value.size(); ++i)
        add_sample_fields(value[i], name + "[" + std::to_string(i) + "]", fields);
  } else if constexpr (IsMap<U>::value) {
    for (auto& [key, item] : value) {
      if constexpr (std::convertible_to<decltype(key), std::string_view>)
        add_sample_fields(item, below(name, key), fields);
      else if constexpr (std::integral<std::remove_cvref_t<decltype(key)>>)
        add_sample_fields(item, below(name, std::to_string(key)), fields);
      else
        add_sample_fields(item, number(), fields);
    }
  } else if constexpr (IsVariant<U>::value) {
    const auto which = "<" + std::to_string(value.index()) + ">";
    std::visit([&](auto& alternative) { add_sample_fields(alternative, name + which, fields); }, value);
  } else if constexpr (TupleLike<U>) {
    size_t i = 0;
    std::apply([&](auto&... item) { (add_sample_fields(item, below(name, std::to_string(i++)), fields), ...); }, value);
  } else if constexpr (std::is_aggregate_v<U>) {
    size_t i = 0;
    each_field(value, [&](auto& field) { add_sample_fields(field, below(name, std::to_string(i++)), fields); });
  } else {
    each_tensor(value, [&](Tensor& tensor) { fields.push_back({number(), &tensor}); });
  }
}

template <class S>
std::vector<SampleField> sample_fields(S& sample) {
  std::vector<SampleField> fields;
  fields.reserve(8);
  add_sample_fields(sample, {}, fields);
  return fields;
}

/// Samples whose tensors are stacked may hold nothing else, however deep: a batch would lose it.
template <class T>
consteval void check_stackable() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::same_as<U, Tensor> || std::same_as<U, std::monostate>) {
  } else if constexpr (requires(U & u, void (*f)(Tensor&)) { u.each_tensor(f); }) {
  } else if constexpr (Leaf<U>) {
    static_assert(!Leaf<U>,
                  "levin: a number or text in a sample cannot be stacked into a batch; make the field a Tensor, or "
                  "give the dataset get_batch(indices)");
  } else if constexpr (IsNullable<U>::value) {
    check_stackable<std::remove_cvref_t<decltype(*std::declval<U&>())>>();
  } else if constexpr (IsSequence<U>::value) {
    check_stackable<typename U::value_type>();
  } else if constexpr (IsMap<U>::value) {
    check_stackable<typename U::mapped_type>();
  } else if constexpr (IsVariant<U>::value) {
    []<class... A>(std::variant<A...>*) { (check_stackable<A>(), ...); }(static_cast<U*>(nullptr));
  } else if constexpr (TupleLike<U>) {
    []<size_t... I>(std::index_sequence<I...>) {
      (check_stackable<std::tuple_element_t<I, U>>(), ...);
    }
    (std::make_index_sequence<std::tuple_size_v<U>>());
  } else if constexpr (std::is_aggregate_v<U>) {
    using Check = decltype([](U& sample) {
      each_field(sample, [](auto& field) { check_stackable<std::remove_cvref_t<decltype(field)>>(); });
    });
    static_assert(std::is_invocable_v<Check, U&>);
  }
}

}  // namespace levin::detail
