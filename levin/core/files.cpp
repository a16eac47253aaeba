#include "levin/core/files.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/regular_file.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

/// Only one writer per file is meant, so what cannot be closed is not worth an exception.
void close_quietly(int& fd) noexcept {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

[[noreturn]] void refuse_irregular(const fs::path& path, mode_t mode) {
  const char* what = S_ISFIFO(mode) ? "a FIFO" : S_ISSOCK(mode) ? "a socket" : "a device";
  throw Error(detail::concat("[file] \"", path.string(), "\" is ", what, "; only regular files are read"));
}

}  // namespace

void detail::fail_file(std::string_view what, const fs::path& path, int error) {
  throw Error(concat("[file] cannot ", what, " \"", path.string(),
                     "\": ", std::error_code(error, std::generic_category()).message()));
}

FileWriter::FileWriter(fs::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) detail::fail_file("create", path_, errno);
  buffer_.reserve(kBufferBytes);
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      waiting_(other.waiting_),
      buffer_(std::move(other.buffer_)) {}

FileWriter::~FileWriter() {
  close_quietly(fd_);
}

void FileWriter::put(const std::byte* at, size_t count) {
  while (count > 0) {
    const ssize_t written = ::write(fd_, at, std::min<size_t>(count, size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) detail::fail_file("write", path_, errno);
    at += written;
    count -= static_cast<size_t>(written);
    waiting_ += static_cast<uint64_t>(written);
  }
  // The disk works while the next bytes are made, not only when close() waits for it. What refuses waits there.
  constexpr uint64_t kLeast = uint64_t{16} << 20;
  if (waiting_ < kLeast) return;
  ::sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);  // of the whole file
  waiting_ = 0;
}

void FileWriter::flush() {
  put(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void FileWriter::write(std::span<const std::byte> bytes) {
  LEVIN_CHECK(fd_ >= 0, "[file] \"", path_.string(), "\" was closed, nothing can be written to it");
  size_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes)
    put(bytes.data(), bytes.size());
  else
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void FileWriter::close() {
  if (fd_ < 0) return;
  flush();
  // Some file systems report a full disk only here.
  if (::fsync(fd_) != 0 && errno != EINVAL) detail::fail_file("write", path_, errno);
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 && errno != EINTR) detail::fail_file("write", path_, errno);
}

int detail::open_regular(const fs::path& path, uint64_t* size) {
  // A FIFO that nobody writes to would be waited for; what was opened is looked at, not what the name stands for later.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  // A socket cannot be opened at all.
  if (fd < 0 && errno == ENXIO) refuse_irregular(path, S_IFSOCK);
  if (fd < 0) fail_file("open", path, errno);
  struct stat status {};
  const int error = ::fstat(fd, &status) != 0 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  if (error != 0 || !S_ISREG(status.st_mode)) close_quietly(fd);
  if (error != 0) fail_file("read", path, error);
  if (!S_ISREG(status.st_mode)) refuse_irregular(path, status.st_mode);
  if (size) *size = static_cast<uint64_t>(status.st_size);
  return fd;
}

FileReader::FileReader(fs::path path) : path_(std::move(path)) {
  fd_ = detail::open_regular(path_, &size_);
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

FileReader::~FileReader() {
  close_quietly(fd_);
}

void FileReader::read(uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t count =
        ::pread(fd_, into.data(), std::min<size_t>(into.size(), size_t{1} << 30), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) detail::fail_file("read", path_, errno);
    LEVIN_CHECK(count > 0, "[file] \"", path_.string(), "\" ends at byte ", offset, ", ", into.size(),
                " bytes too early");
    offset += static_cast<uint64_t>(count);
    into = into.subspan(static_cast<size_t>(count));
  }
}

std::string read_file(const fs::path& path, uint64_t limit) {
  const FileReader reader(path);
  LEVIN_CHECK(reader.size() <= limit, "[file] \"", path.string(), "\" has ", reader.size(), " bytes, at most ", limit,
              " are read");
  std::string content(reader.size(), '\0');
  reader.read(0, std::as_writable_bytes(std::span(content)));
  return content;
}

void write_file(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) detail::fail_file("create folder", folder, error.value());
}

void check_writable(const fs::path& folder) {
  make_folder(folder);
  const auto probe = detail::temporary_beside(folder / "probe");
  const int fd = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) detail::fail_file("write to folder", folder, errno);
  ::close(fd);
  ::unlink(probe.c_str());
}

void sync_folder(const fs::path& folder) {
  const auto name = folder.empty() ? fs::path(".") : folder;
  int fd = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) detail::fail_file("open folder", name, errno);
  // File systems that cannot sync a folder say EINVAL; there is nothing more to be done on them.
  const int error = ::fsync(fd) != 0 && errno != EINVAL ? errno : 0;
  close_quietly(fd);
  if (error != 0) detail::fail_file("sync folder", name, error);
}

void sync_file(const fs::path& path) {
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) detail::fail_file("write", path, errno);
  const int error = ::fsync(fd) != 0 && errno != EINVAL ? errno : 0;
  close_quietly(fd);
  if (error != 0) detail::fail_file("write", path, error);
}

void check_destination(std::string_view operation, const fs::path& path, OutputKind kind, bool overwrite,
                       std::string_view consent) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return;
  const bool is_folder = fs::is_directory(path, error), wants_folder = kind == OutputKind::kFolder;
  LEVIN_CHECK(is_folder == wants_folder, "[", operation, "] \"", path.string(), "\" is a ",
              is_folder ? "folder; a file is written" : "file; a folder is written");
  if (is_folder && fs::is_empty(path, error)) return;
  LEVIN_CHECK(overwrite, "[", operation, "] \"", path.string(), "\" is there already; ", consent, " replaces it");
}

}  // namespace levin
