#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin {

using at::Tensor;

class StateValue;

/// An ordered tree of named values: what anything that can be saved gives out and takes back.
/// Optimizers, schedulers, scalers, loaders and callbacks all speak it; checkpoint/ turns it into files.
///
///     StateDict state{{"step", 3}, {"scale", 65536.0}};
///     int64_t step = state.at("step").to_int();
class StateDict {
 public:
  using Item = std::pair<std::string, StateValue>;

  StateDict();
  StateDict(std::initializer_list<std::pair<std::string_view, StateValue>> items);

  /// The value of that name, made empty when there is none.
  StateValue& operator[](std::string_view name);
  /// The value of that name; an Error that lists the names when there is none.
  const StateValue& at(std::string_view name) const;
  const StateValue* find(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  bool erase(std::string_view name);

  bool empty() const;
  size_t size() const;
  std::vector<Item>::iterator begin();
  std::vector<Item>::iterator end();
  std::vector<Item>::const_iterator begin() const;
  std::vector<Item>::const_iterator end() const;

 private:
  std::vector<Item> items_;
};

using StateList = std::vector<StateValue>;

/// One value of a StateDict. The `to_*` readers throw an Error that names what is there instead.
class StateValue {
 public:
  using Variant = std::variant<std::monostate, Tensor, bool, int64_t, double, std::string, StateList, StateDict>;

  StateValue() = default;
  StateValue(Tensor v) : value_(std::move(v)) {}
  StateValue(std::string v) : value_(std::move(v)) {}
  StateValue(std::string_view v) : value_(std::string(v)) {}
  StateValue(const char* v) : value_(std::string(v)) {}
  StateValue(StateList v) : value_(std::move(v)) {}
  StateValue(StateDict v) : value_(std::move(v)) {}
  template <class T>
  requires std::is_arithmetic_v<T> StateValue(T v) {
    if constexpr (std::same_as<T, bool>)
      value_ = v;
    else if constexpr (std::integral<T>)
      value_ = static_cast<int64_t>(v);
    else
      value_ = static_cast<double>(v);
  }

  const Variant& variant() const { return value_; }
  bool empty() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_tensor() const { return std::holds_alternative<Tensor>(value_); }
  bool is_dict() const { return std::holds_alternative<StateDict>(value_); }
  bool is_list() const { return std::holds_alternative<StateList>(value_); }

  const Tensor& to_tensor() const;
  bool to_bool() const;
  int64_t to_int() const;
  /// Accepts integers too.
  double to_double() const;
  const std::string& to_string() const;
  const StateList& to_list() const;
  const StateDict& to_dict() const;
  StateDict& to_dict();

 private:
  Variant value_;
};

}  // namespace levin
