#include "levin/testing/paths.h"

#include <filesystem>
#include <fstream>

namespace levin::testing {

std::string binary_dir() {
  // build/bin/tests/<program>
  return std::filesystem::canonical("/proc/self/exe").parent_path().parent_path().parent_path().string();
}

std::string levin_program() {
  return binary_dir() + "/bin/levin";
}

std::string test_program(const std::string& name) {
  return binary_dir() + "/bin/tests/" + name;
}

std::string source_dir() {
  std::ifstream file(binary_dir() + "/source_dir");
  std::string path;
  std::getline(file, path);
  return path;
}

}  // namespace levin::testing
