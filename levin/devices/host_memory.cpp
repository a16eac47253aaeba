#include "levin/devices/host_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace levin {

std::optional<int64_t> available_host_memory() {
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
