#pragma once

#include <string>

#include "levin/loggers/numbers.h"

namespace levin::detail {

/// A number as JSON has it: nan and inf, which JSON lacks, become strings.
std::string json_number(const Number& value);
std::string json_string(const std::string& text);

}  // namespace levin::detail
