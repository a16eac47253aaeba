#pragma once

#include <string>

#include "levin/core/state_dict.h"

namespace levin::detail {

/// A tree as YAML, names sorted, as PyYAML writes it; a tensor becomes its dtype and shape. Every text reads back as
/// the same text: what looks like a number, a truth value or a date is quoted.
std::string to_yaml(const StateDict& values);

}  // namespace levin::detail
