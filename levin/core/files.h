#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Files that are there whole or not at all. Every error names the path and the system's reason:
///
///     [file] cannot write "run/last/model.safetensors": No space left on device

/// A file being written, buffered; the errors of write and close are not lost. Nothing is promised before close().
class FileWriter {
 public:
  /// Makes the file, or empties it.
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(FileWriter&& other) noexcept;
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Writes what is buffered, waits until it is on the disk, and closes.
  void close();

  /// Bytes given to write() so far.
  uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void flush();
  void put(const std::byte* at, size_t count);

  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
};

/// A file open for reading at any place; a short file is an Error, never a crash (nothing is mapped). Threads may share
/// one.
class FileReader {
 public:
  explicit FileReader(std::filesystem::path path);
  ~FileReader();
  FileReader(FileReader&& other) noexcept;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  void read(uint64_t offset, std::span<std::byte> into) const;
  uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

/// A new content for a file: written beside it, synced, and renamed over it by commit(). Without commit() nothing
/// changes.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  FileWriter& writer() { return writer_; }
  void write(std::string_view text) { writer_.write(text); }
  void commit();

 private:
  std::filesystem::path path_;
  FileWriter writer_;
  bool done_ = false;
};

/// A new content for a folder: files go to path(), a hidden folder beside the real one, and commit() swaps the two and
/// deletes the old. Readers see the old folder or the new one; where the file system can exchange names there is no
/// moment without one.
class AtomicFolder {
 public:
  explicit AtomicFolder(const std::filesystem::path& path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  bool done_ = false;
};

/// The whole of a file; one that is larger than `limit` bytes is refused before it is read.
std::string read_file(const std::filesystem::path& path, uint64_t limit = uint64_t{1} << 30);
/// Replaces the content of a file, whole or not at all.
void write_file(const std::filesystem::path& path, std::string_view content);
/// Makes a folder and those above it; an Error when it cannot be, or when no file can be made in it. Long jobs ask at
/// the start, not when the first checkpoint is due.
void check_writable(const std::filesystem::path& folder);
/// Waits until the names in a folder are on the disk.
void sync_folder(const std::filesystem::path& folder);

namespace detail {
/// `.<name>.tmp-<host>-<process>-<n>`, beside path. Also deletes what processes of this host that have died left there.
std::filesystem::path temporary_beside(const std::filesystem::path& path);
/// Brings a folder back that a process of this host was replacing, without an exchange of names, when it died.
void restore_replaced(const std::filesystem::path& path);
[[noreturn]] void fail_file(std::string_view what, const std::filesystem::path& path, int error);
}  // namespace detail

}  // namespace levin
