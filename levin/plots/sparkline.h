#pragma once

#include <string>
#include <vector>

namespace levin {

/// A curve in one line of block characters, `width` of them, from the lowest value to the highest; blanks where there
/// is no value.
std::string sparkline(const std::vector<double>& values, int width);

}  // namespace levin
