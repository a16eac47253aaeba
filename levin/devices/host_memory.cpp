#include "levin/devices/host_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "levin/core/error.h"

namespace levin {

std::optional<int64_t> available_host_memory() {
  if (const char* told = std::getenv("LEVIN_HOST_MEMORY_GB"); told != nullptr && *told != '\0') {
    const std::string_view word(told);
    double gigabytes = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), gigabytes);
    LEVIN_CHECK(error == std::errc() && end == word.data() + word.size() && gigabytes > 0 && gigabytes < 1e9,
                "[host memory] LEVIN_HOST_MEMORY_GB=", told, " is not a number of gigabytes, such as 120");
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

at::Tensor on_large_pages(at::Tensor fresh) {
  constexpr size_t kWorthIt = size_t{1} << 22;
  if (!fresh.is_cpu() || fresh.nbytes() < kWorthIt) return fresh;
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto memory = reinterpret_cast<uintptr_t>(fresh.mutable_data_ptr());
  const auto begin = (memory + page - 1) / page * page, end = (memory + fresh.nbytes()) / page * page;
  // A system that has none says so, and nothing is lost.
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  return fresh;
}

}  // namespace levin
