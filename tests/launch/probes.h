#pragma once

#include <string>

#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {

/// The program that acts as a rank.
inline std::string probe() {
  return test_program("launch_probe");
}

/// The program that starts its own ranks and prints its place.
inline std::string self_probe() {
  return test_program("self_probe");
}

/// Where the ranks of a run wait for each other; gives the action.
class Meeting {
 public:
  std::string operator()(const std::string& name = "rank") const { return "meet=" + (folder_.path() / name).string(); }

 private:
  const TemporaryFolder folder_;
};

}  // namespace levin::testing
