#include "levin/io/records/record_files.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>
#include <unistd.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

/// Processes may have 1024 descriptors, and a program has several readers.
constexpr size_t kMostOpenFiles = 200;

}  // namespace

RecordFiles::RecordFiles(Paths paths) : paths_(std::move(paths)), files_(paths_.size()) {
  all_open_ = paths_.size() <= kMostOpenFiles;
  if (all_open_)
    for (size_t i = 0; i < paths_.size(); ++i) files_[i] = std::make_shared<const FileReader>(paths_[i]);
}

std::shared_ptr<const FileReader> RecordFiles::open(size_t file) const {
  {
    const std::lock_guard lock(mutex_);
    if (files_[file]) return files_[file];
  }
  auto opened = std::make_shared<const FileReader>(paths_[file]);
  const std::lock_guard lock(mutex_);
  if (files_[file]) return files_[file];
  if (opened_.size() >= kMostOpenFiles) {
    files_[opened_.front()].reset();
    opened_.pop_front();
  }
  opened_.push_back(file);
  return files_[file] = std::move(opened);
}

void RecordFiles::read(size_t file, uint64_t offset, std::span<std::byte> into) const {
  if (all_open_)
    files_[file]->read(offset, into);
  else
    open(file)->read(offset, into);
}

std::string RecordFiles::read(size_t file, uint64_t offset, uint64_t size) const {
  std::string bytes(size, '\0');
  read(file, offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void check_destination(const fs::path& path, OutputKind kind, const RecordWriterOptions& options) {
  levin::check_destination("records", path, kind, options.overwrite);
  make_folder(path.parent_path());
}

ShardWriter::ShardWriter(const fs::path& path, const RecordWriterOptions& options,
                         std::function<void(FileWriter&)> begin, std::function<void(FileWriter&)> finish)
    : begin_(std::move(begin)), finish_(std::move(finish)) {
  LEVIN_CHECK(options.shard_records >= 0 && options.shard_bytes >= 0,
              "[records] shard_records = ", options.shard_records, ", shard_bytes = ", options.shard_bytes,
              "; neither can be below 0");
  shard_records_ = options.shard_records;
  shard_bytes_ = static_cast<uint64_t>(options.shard_bytes);
  const auto text = path.string();
  if (const auto percent = text.find('%'); percent != std::string::npos) {
    const auto end = text.find('d', percent);
    const char* from = text.data() + percent + 1;
    const char* to = text.data() + std::min(end, text.size());
    const auto [stop, error] = std::from_chars(from, to, digits_);
    LEVIN_CHECK(end != std::string::npos && *from == '0' && error == std::errc() && stop == to && digits_ <= 18 &&
                    text.find('%', end) == std::string::npos,
                "[records] \"", text, "\": the number of a shard is written %06d");
    before_ = text.substr(0, percent);
    after_ = text.substr(end + 1);
    sharded_ = true;
  } else {
    sharded_ = shard_records_ > 0 || shard_bytes_ > 0;
    const auto extension = path.extension().string();
    before_ = text.substr(0, text.size() - extension.size()) + (sharded_ ? "-" : "");
    after_ = extension;
  }
  check_destination(shard_path(0), OutputKind::kFile, options);
  begin_file();
}

fs::path ShardWriter::shard_path(int64_t shard) const {
  return sharded_ ? fmt::format("{}{:0{}}{}", before_, shard, digits_, after_) : before_ + after_;
}

std::vector<fs::path> ShardWriter::standing() const {
  std::vector<fs::path> found;
  std::error_code error;
  for (int64_t shard = 0;; ++shard) {
    auto path = shard_path(shard);
    if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return found;
    found.push_back(std::move(path));
    if (!sharded_) return found;
  }
}

void ShardWriter::begin_file() {
  file_.emplace(staged_.add(shard_path(shards_++)));
  in_shard_ = 0;
  begin_(*file_);
}

void ShardWriter::finish_file() {
  finish_(*file_);
  file_->close();
  file_.reset();
}

FileWriter& ShardWriter::next(uint64_t bytes) {
  LEVIN_CHECK(!closed_, "[records] \"", shard_path(0).string(), "\" was closed, nothing can be written to it");
  const bool full =
      (shard_records_ > 0 && in_shard_ >= shard_records_) || (shard_bytes_ > 0 && file_->size() + bytes > shard_bytes_);
  if (sharded_ && in_shard_ > 0 && full) {
    finish_file();
    begin_file();
  }
  ++in_shard_;
  ++records_;
  return *file_;
}

void ShardWriter::close(const std::vector<std::pair<std::string, std::string>>& beside) {
  if (closed_) return;
  finish_file();
  for (const auto& [extension, content] : beside) {
    FileWriter file(staged_.add(shard_path(0).replace_extension(extension)));
    file.write(content);
    file.close();
  }
  const auto old = standing();
  staged_.commit();
  closed_ = true;
  // What a longer run of shards left would be read as part of this one.
  for (size_t i = static_cast<size_t>(shards_); i < old.size(); ++i) ::unlink(old[i].c_str());
}

std::string numbered_key(int64_t index) {
  std::string key(8, '0');
  std::array<char, 24> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), index).ptr;
  const auto count = static_cast<size_t>(end - digits.data());
  if (count >= key.size()) return {digits.data(), count};
  std::copy(digits.data(), end, key.end() - static_cast<std::ptrdiff_t>(count));
  return key;
}

std::string join_classes(const std::vector<std::string>& classes) {
  std::string lines;
  for (const auto& name : classes) {
    LEVIN_CHECK(!name.empty() && name.find('\n') == std::string::npos, "[records] the class name \"",
                name.substr(0, name.find('\n')), "\" is empty or has several lines");
    lines += name + "\n";
  }
  return lines;
}

std::vector<std::string> split_classes(std::string_view lines) {
  std::vector<std::string> classes;
  while (!lines.empty()) {
    const auto end = std::min(lines.find('\n'), lines.size());
    auto name = lines.substr(0, end);
    if (name.ends_with('\r')) name.remove_suffix(1);
    if (!name.empty()) classes.emplace_back(name);
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return classes;
}

}  // namespace levin::detail
