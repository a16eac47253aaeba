#pragma once

#include <string>

namespace levin::testing {

/// Where the programs of this build are: found from the running one, so that nothing compiled holds a path (two clones
/// then share a compiler cache).
std::string binary_dir();
/// The program `levin` of this build; it is not there when the build has left it out.
std::string levin_program();
/// A program beside the test programs, such as "launch_probe".
std::string test_program(const std::string& name);
/// Where the sources of this build are, with the tests' fixtures.
std::string source_dir();

}  // namespace levin::testing
