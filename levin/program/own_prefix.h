#pragma once

#include <filesystem>

namespace levin::cli {

/// The prefix that this program was installed in, or the build folder that it lies in: what CMAKE_PREFIX_PATH must name
/// for find_package(Levin). Empty when it lies in neither.
std::filesystem::path own_prefix();

}  // namespace levin::cli
