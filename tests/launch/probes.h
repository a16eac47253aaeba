#pragma once

#include <string>

#include "levin/testing/paths.h"

namespace levin::testing {

/// The program that acts as a rank.
inline std::string probe() {
  return test_program("launch_probe");
}

/// The program that starts its own ranks and prints its place.
inline std::string self_probe() {
  return test_program("self_probe");
}

}  // namespace levin::testing
