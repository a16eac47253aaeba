#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <variant>

#include <c10/core/Device.h>

#include "levin/config/fields.h"
#include "levin/optim/codecs.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"

// How option types of callbacks are read from words.
namespace levin::config {

template <>
struct Codec<SaveLast> {
  static std::string type() { return "BOOL|link"; }
  static SaveLast read(const Node& node) {
    return node.text == "link" ? SaveLast("link") : SaveLast(detail::read_bool(node));
  }
  static Node write(const SaveLast& value) {
    return Node::of_text(value.is_link() ? "link" : value.is_on() ? "true" : "false");
  }
};

template <>
struct Codec<c10::Device> {
  static std::string type() { return "DEVICE"; }
  static c10::Device read(const Node& node) {
    try {
      return c10::Device(detail::read_text(node));
    } catch (const c10::Error&) {
      throw BadValue("is not a device such as cpu or cuda:0");
    }
  }
  static Node write(const c10::Device& value) { return Node::of_text(value.str()); }
};

/// An integer is a count, a number with a point a fraction. A function has no text form.
template <class... T>
requires(std::same_as<T, double> || ...) && (std::same_as<T, int64_t> || ...) struct Codec<std::variant<T...>> {
  using Value = std::variant<T...>;
  static std::string type() { return "N|FRACTION"; }
  static Value read(const Node& node) {
    const auto text = detail::read_text(node);
    if (text.find_first_of(".eE") == std::string::npos) return Codec<int64_t>::read(node);
    return Codec<double>::read(node);
  }
  static Node write(const Value& value) {
    if (const auto* count = std::get_if<int64_t>(&value)) return Codec<int64_t>::write(*count);
    const auto* fraction = std::get_if<double>(&value);
    if (!fraction) return {};
    auto node = Codec<double>::write(*fraction);
    if (node.text.find_first_of(".en") == std::string::npos) node.text += ".0";
    return node;
  }
};

/// Yes or no, or a function.
template <>
struct Codec<std::variant<bool, std::function<bool(int64_t)>>> {
  using Value = std::variant<bool, std::function<bool(int64_t)>>;
  static std::string type() { return "BOOL"; }
  static Value read(const Node& node) { return detail::read_bool(node); }
  static Node write(const Value& value) {
    const auto* on = std::get_if<bool>(&value);
    return on ? Codec<bool>::write(*on) : Node();
  }
};

}  // namespace levin::config
