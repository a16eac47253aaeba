#pragma once

#include <string>

#include "levin/core/state_dict.h"

namespace levin::detail {

/// A tree without tensors as JSON text; a tensor becomes its shape and dtype.
std::string to_json(const StateDict& values);
/// A number as JSON has it: nan and inf, which JSON lacks, become strings.
std::string json_number(double value);
std::string json_string(const std::string& text);

}  // namespace levin::detail
