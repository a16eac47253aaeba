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
  uint64_t waiting_ = 0;  // bytes that the system has, and was not told to write to the disk
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

/// New files, or new contents for files: each is written under a temporary name beside its destination, and commit()
/// gives all of them their names. Without commit() nothing changes.
class StagedFiles {
 public:
  StagedFiles() = default;
  ~StagedFiles();
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;

  /// Where the content of `destination` is to be written.
  std::filesystem::path add(const std::filesystem::path& destination);
  /// What was written must be closed and on the disk: see FileWriter::close and sync_file.
  void commit();

 private:
  struct Staged {
    std::filesystem::path temporary, destination;
  };
  std::vector<Staged> files_;
};

/// One staged file and its writer.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path) : writer_(staged_.add(path)) {}

  FileWriter& writer() { return writer_; }
  void write(std::string_view text) { writer_.write(text); }
  void commit();

 private:
  StagedFiles staged_;
  FileWriter writer_;
};

/// A staged folder: files go to path(), a hidden folder beside the real one. Without commit() or merge() nothing
/// changes.
class AtomicFolder {
 public:
  explicit AtomicFolder(const std::filesystem::path& path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }
  /// Swaps the two and deletes the old. Readers see the old folder or the new one; where the file system can exchange
  /// names there is no moment without one.
  void commit();
  /// Where a folder stands, puts the files into it, each whole; what else it holds stays.
  void merge();

 private:
  void finish();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  bool done_ = false;
};

/// The whole of a file; one that is larger than `limit` bytes is refused before it is read.
std::string read_file(const std::filesystem::path& path, uint64_t limit = uint64_t{1} << 30);
/// Replaces the content of a file, whole or not at all.
void write_file(const std::filesystem::path& path, std::string_view content);
/// Makes a folder and those above it; an empty path is the working folder.
void make_folder(const std::filesystem::path& folder);
/// As make_folder; also an Error when no file can be made in it. Long jobs ask at the start, not when the first
/// checkpoint is due.
void check_writable(const std::filesystem::path& folder);
/// Deletes a file or folder. A process that is killed meanwhile leaves all of it under its name, or nothing: the rest
/// has a hidden name then, and goes with what is deleted next in that folder.
void remove_whole(const std::filesystem::path& path);
/// Waits until the names in a folder are on the disk.
void sync_folder(const std::filesystem::path& folder);
/// Waits until the content of a file is on the disk: for files that others write (FileWriter::close does it by
/// default).
void sync_file(const std::filesystem::path& path);

/// What is written to a destination.
enum class OutputKind { kFile, kFolder };
/// An Error when something stands at `path` that must not be replaced. An empty folder may be replaced by a folder.
/// `consent` is how a user asks for it: "overwrite = true", "--overwrite".
///
///     [levin convert] "vit.safetensors" is there already; --overwrite replaces it
void check_destination(std::string_view operation, const std::filesystem::path& path, OutputKind kind, bool overwrite,
                       std::string_view consent = "overwrite = true");

namespace detail {
/// `.<name>.tmp-<host>-<process>-<n>`, beside path. Also deletes what processes of this host that have died left there.
std::filesystem::path temporary_beside(const std::filesystem::path& path);
/// Brings a folder back that a process of this host was replacing, without an exchange of names, when it died.
void restore_replaced(const std::filesystem::path& path);
[[noreturn]] void fail_file(std::string_view what, const std::filesystem::path& path, int error);
}  // namespace detail

}  // namespace levin
