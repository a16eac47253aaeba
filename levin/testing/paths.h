#pragma once

#include <string>

namespace levin::testing {

/// Where the programs of this build are: found from the running one, so that nothing compiled holds a path (two clones
/// then share a compiler cache).
std::string binary_dir();
/// Where the sources of this build are, with the tests' fixtures.
std::string source_dir();

}  // namespace levin::testing
