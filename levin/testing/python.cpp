#include "levin/testing/python.h"

#include <cstdlib>

#include "levin/testing/process.h"

namespace levin::testing {

std::optional<std::string> python_with(const std::string& modules) {
  if (const char* named = std::getenv("LEVIN_PEER_PYTHON")) return named;
  if (run_program({"python3", "-c", "import " + modules}).status != 0) return std::nullopt;
  return "python3";
}

}  // namespace levin::testing
