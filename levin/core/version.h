#pragma once

namespace levin {

/// The version of Levin that this header belongs to, as in CMakeLists.txt (a test compares them).
inline constexpr const char* kVersion = "0.1.0";

}  // namespace levin
