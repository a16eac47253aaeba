#pragma once

#include <c10/core/ScalarType.h>

#include "levin/config/fields.h"
#include "levin/optim/per_group.h"

// How option types of optimizers and schedulers are read from words.
namespace levin::config {

/// One number here: a command line makes one parameter group.
template <>
struct Codec<optim::PerGroup> {
  static std::string type() { return "X"; }
  static optim::PerGroup read(const Node& node) {
    return node.is_null() ? optim::PerGroup() : optim::PerGroup(detail::read_double(node));
  }
  static Node write(const optim::PerGroup& value) {
    return value.empty() ? Node() : Codec<double>::write(value.resolve("config", "value", 1)[0]);
  }
};

/// The dtypes that options of optimizers take.
template <>
struct Codec<c10::ScalarType> {
  static std::string type() { return "DTYPE"; }
  static c10::ScalarType read(const Node& node) {
    const auto text = detail::read_text(node);
    if (text == "float32") return c10::ScalarType::Float;
    if (text == "bfloat16") return c10::ScalarType::BFloat16;
    throw BadValue("is not a dtype: float32 or bfloat16");
  }
  static Node write(const c10::ScalarType& value) {
    return Node::of_text(value == c10::ScalarType::Float ? "float32" : "bfloat16");
  }
};

}  // namespace levin::config
