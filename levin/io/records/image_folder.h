#pragma once

namespace levin::detail {

/// Stands in a folder of images whose classes are numbered in another order than that of their names: a name a line, by
/// label.
inline constexpr const char* kClassOrderFile = "levin-classes.txt";

}  // namespace levin::detail
