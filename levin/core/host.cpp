#include "levin/core/host.h"

#include <array>

#include <unistd.h>

namespace levin {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "localhost";
}

}  // namespace levin
