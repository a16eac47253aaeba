#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/core/files.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {

/// The files of one reader. A few are kept open for good; of a thousand, only as many at a time that a process with the
/// usual limit of descriptors is not starved. Threads may share one.
class RecordFiles {
 public:
  explicit RecordFiles(Paths paths);

  size_t count() const { return paths_.size(); }
  const std::filesystem::path& path(size_t file) const { return paths_[file]; }
  void read(size_t file, uint64_t offset, std::span<std::byte> into) const;
  /// As above, into a new string.
  std::string read(size_t file, uint64_t offset, uint64_t size) const;

 private:
  std::shared_ptr<const FileReader> open(size_t file) const;

  Paths paths_;
  bool all_open_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const FileReader>> files_;
  mutable std::deque<size_t> opened_;
};

/// The one file of a writer, or its shards: "train.tar" becomes "train-000000.tar", "train-000001.tar", ... and "%06d"
/// in a name is where the number goes.
class ShardWriter {
 public:
  /// `finish` writes what a file ends with.
  ShardWriter(const std::filesystem::path& path, const RecordWriterOptions& options,
              std::function<void(FileWriter&)> begin, std::function<void(FileWriter&)> finish);

  /// The file for a record of this size.
  FileWriter& next(uint64_t bytes);
  /// Everything is at its place, with `beside` (name of the first file with another extension -> content) next to it.
  void close(const std::vector<std::pair<std::string, std::string>>& beside = {});
  bool closed() const { return closed_; }
  int64_t records() const { return records_; }

 private:
  std::filesystem::path shard_path(int64_t shard) const;
  /// Files of earlier, longer runs of shards.
  std::vector<std::filesystem::path> standing() const;
  void begin_file();
  void finish_file();

  std::string before_, after_;  // of the number
  int digits_ = 6;
  bool sharded_ = false;
  bool closed_ = false;
  int64_t shard_records_ = 0;
  uint64_t shard_bytes_ = 0;
  std::function<void(FileWriter&)> begin_, finish_;
  StagedFiles staged_;
  std::optional<FileWriter> file_;
  int64_t shards_ = 0, in_shard_ = 0, records_ = 0;
};

/// levin::check_destination for a writer of records. Makes the folder that the destination will be in.
void check_destination(const std::filesystem::path& path, OutputKind kind, const RecordWriterOptions& options);

/// The key of a record that has none: "00000042".
std::string numbered_key(int64_t index);

/// One name a line, both ways.
std::string join_classes(const std::vector<std::string>& classes);
std::vector<std::string> split_classes(std::string_view lines);

}  // namespace levin::detail
