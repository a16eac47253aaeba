#include "levin/loggers/append_file.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"

namespace levin::detail {

AppendFile::~AppendFile() {
  close();
}

void AppendFile::open(const std::filesystem::path& path, std::optional<uint64_t> size) {
  close();
  make_folder(path.parent_path());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) fail_file("open", path, errno);
  fd_ = fd;
  path_ = path;
  if (size && ::ftruncate(fd_, static_cast<off_t>(*size)) != 0) fail_file("cut", path, errno);
  const auto end = ::lseek(fd_, 0, SEEK_END);
  if (end < 0) fail_file("open", path, errno);
  size_ = static_cast<uint64_t>(end);
}

void AppendFile::write(std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const auto count = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(size_ + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      [[maybe_unused]] const int undone = ::ftruncate(fd_, static_cast<off_t>(size_));  // the first reason is told
      fail_file("write", path_, reason);
    }
    done += static_cast<size_t>(count);
  }
  size_ += bytes.size();
}

void AppendFile::sync() {
  if (is_open() && ::fdatasync(fd_) != 0) fail_file("write", path_, errno);
}

void AppendFile::close() {
  if (is_open()) ::close(fd_);
  fd_ = -1;
  size_ = 0;
}

void make_folder(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  LEVIN_CHECK(!error, "[file] cannot make the folder \"", folder.string(), "\": ", error.message());
}

uint64_t take_prefix(const std::filesystem::path& from, const std::filesystem::path& to, uint64_t bytes) {
  std::error_code error;
  if (!std::filesystem::equivalent(from, to, error)) {
    make_folder(to.parent_path());
    std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing, error);
    LEVIN_CHECK(!error, "[file] cannot copy \"", from.string(), "\" to \"", to.string(), "\": ", error.message());
  }
  const auto size = std::min<uint64_t>(bytes, std::filesystem::file_size(to));
  std::filesystem::resize_file(to, size, error);
  LEVIN_CHECK(!error, "[file] cannot cut \"", to.string(), "\": ", error.message());
  return size;
}

size_t whole_lines(std::string_view text) {
  const auto end = text.rfind('\n');
  return end == std::string_view::npos ? 0 : end + 1;
}

}  // namespace levin::detail
