#include "levin/devices/host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "levin/core/error.h"

namespace levin {

std::optional<int64_t> available_host_memory() {
  if (const char* told = std::getenv("LEVIN_HOST_MEMORY_GB"); told != nullptr && *told != '\0') {
    char* end = nullptr;
    const double gigabytes = std::strtod(told, &end);
    LEVIN_CHECK(*end == '\0' && gigabytes > 0 && gigabytes < 1e9, "[host memory] LEVIN_HOST_MEMORY_GB=", told,
                " is not a number of gigabytes, such as 120");
    return static_cast<int64_t>(gigabytes * 1e9);
  }
  std::optional<int64_t> bytes;
  std::ifstream info("/proc/meminfo");
  int64_t kilobytes = 0;
  for (std::string word; !bytes && info >> word;)
    if (word == "MemAvailable:" && info >> kilobytes) bytes = kilobytes * 1024;
  // "max" where the container has no limit, which is no number.
  int64_t allowed = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> allowed && std::ifstream("/sys/fs/cgroup/memory.current") >> used)
    bytes = std::min(bytes.value_or(allowed), std::max<int64_t>(allowed - used, 0));
  return bytes;
}

}  // namespace levin
