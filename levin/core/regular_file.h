#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include <unistd.h>

namespace levin::detail {

/// Opens a file for reading; the caller closes it. Anything but a regular file (a FIFO, a socket, a device, a folder)
/// is an Error, and is not waited for. `size` gets its bytes.
int open_regular(const std::filesystem::path& path, uint64_t* size = nullptr);

/// A regular file for a library that opens files itself: name() is this very file, whatever stands at its path by then.
class PinnedFile {
 public:
  explicit PinnedFile(const std::filesystem::path& path) : fd_(open_regular(path)) {}
  ~PinnedFile() { ::close(fd_); }
  PinnedFile(const PinnedFile&) = delete;
  PinnedFile& operator=(const PinnedFile&) = delete;

  /// Good for as long as this object lives.
  std::string name() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace levin::detail
