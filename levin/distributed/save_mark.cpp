#include "levin/distributed/save_mark.h"

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/file.h>

namespace levin {

// A lock of a file goes with its process, whatever ends that: no mark is left behind.
SaveMark::SaveMark() {
  const char* path = std::getenv(detail::kSaveMarkVariable);
  if (!path || !*path) return;
  file_ = detail::Fd(::open(path, O_RDWR | O_CLOEXEC));
  if (file_)
    while (::flock(file_.get(), LOCK_SH) != 0 && errno == EINTR) {
    }
}

bool detail::is_marked(const std::string& path) {
  if (path.empty()) return false;
  const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  return file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace levin
