#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace levin::detail {

/// A file that only grows: each write is there whole, or is taken back when it fails. Errors name path and reason.
class AppendFile {
 public:
  AppendFile() = default;
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Opens a file at its end, and makes it and its folders when they are not there. With `size` what lies behind that
  /// many bytes is cut off first.
  void open(const std::filesystem::path& path, std::optional<uint64_t> size = {});
  void write(std::string_view bytes);
  /// Waits until what was written is on the disk.
  void sync();
  void close();

  bool is_open() const { return fd_ >= 0; }
  uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// Makes a folder and those above it; an Error when it cannot be.
void make_folder(const std::filesystem::path& folder);

/// Makes `to` the first `bytes` of `from`, which may be the same file; a shorter one is taken whole. How many bytes
/// there are now.
uint64_t take_prefix(const std::filesystem::path& from, const std::filesystem::path& to, uint64_t bytes);

/// How much of a text is lines with their end: a process that died while writing leaves the last one torn.
size_t whole_lines(std::string_view text);

}  // namespace levin::detail
