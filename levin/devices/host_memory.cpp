#include "levin/devices/host_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_file.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "levin/core/error.h"
#include "levin/core/files.h"

namespace levin {
namespace {

/// Blocks for all of a new file: writing to a mapping of it must not find the disk full, which would end the process.
void reserve_file(const std::filesystem::path& path, uintmax_t bytes) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) detail::fail_file("create", path, errno);
  const int reason = ::fallocate(file, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  ::close(file);
  if (reason == 0 || reason == EOPNOTSUPP || reason == ENOSYS) return;  // a file system that cannot reserve
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  detail::fail_file("write", path, reason);
}

}  // namespace

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

void ask_for_large_pages(void* fresh, size_t bytes) {
  constexpr size_t kWorthIt = size_t{1} << 22;
  if (bytes < kWorthIt) return;
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto memory = reinterpret_cast<uintptr_t>(fresh);
  const auto begin = (memory + page - 1) / page * page, end = (memory + bytes) / page * page;
  // A system that has none says so, and nothing is lost.
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

void keep_freed_memory() {
#ifdef __GLIBC__
  [[maybe_unused]] static const bool done = [] {
    if (std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr || std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr)
      return false;
    if (const char* tunables = std::getenv("GLIBC_TUNABLES"))
      if (std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos) return false;
    // More than this is mapped alone in any case: it is the most that glibc allows.
    constexpr int kLargest = 32 << 20, kNever = -1;
    return ::mallopt(M_MMAP_THRESHOLD, kLargest) == 1 && ::mallopt(M_TRIM_THRESHOLD, kNever) == 1;
  }();
#endif
}

void give_back_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

at::Tensor on_large_pages(at::Tensor fresh) {
  if (fresh.is_cpu()) ask_for_large_pages(fresh.mutable_data_ptr(), fresh.nbytes());
  return fresh;
}

at::Tensor detail::on_disk(const std::string& folder, int64_t numel, c10::ScalarType dtype) {
  if (numel == 0) return at::empty({0}, at::TensorOptions().dtype(dtype));  // a file of no bytes cannot be mapped
  static std::atomic<int> count = 0;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const auto path = std::filesystem::path(folder) / fmt::format(".levin-{}-{}", ::getpid(), count++);
  const auto bytes = static_cast<uintmax_t>(numel) * c10::elementSize(dtype);
  const auto space = std::filesystem::space(folder, error);
  LEVIN_CHECK(!error, "[offload] the folder \"", folder, "\" cannot be used: ", error.message());
  LEVIN_CHECK(space.available > bytes,
              fmt::format("[offload] \"{}\" has {:.1f} GB left, and {:.1f} GB are needed", folder,
                          static_cast<double>(space.available) / 1e9, static_cast<double>(bytes) / 1e9));
  reserve_file(path, bytes);
  auto tensor = at::from_file(path.string(), /*shared=*/true, numel, at::TensorOptions().dtype(dtype));
  // The mapping keeps it; without a name it is gone when the process ends, however it does.
  std::filesystem::remove(path, error);
  return tensor;
}

}  // namespace levin
