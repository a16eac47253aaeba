#include "levin/io/records/records.h"

#include <algorithm>
#include <array>
#include <span>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/record_formats.h"
#include "levin/io/records/record_paths.h"
#include "levin/io/records/tfrecord/format.h"

namespace levin {
namespace fs = std::filesystem;

const FieldValue* Record::find(std::string_view name) const {
  for (const auto& [field, value] : fields)
    if (field == name) return &value;
  return nullptr;
}

void Record::set(std::string_view name, FieldValue value) {
  for (auto& [field, old] : fields)
    if (field == name) {
      old = std::move(value);
      return;
    }
  fields.emplace_back(name, std::move(value));
}

namespace {

using detail::Paths;

struct RecordFormat {
  std::string_view name;
  /// Ends of file names, lower case.
  std::vector<std::string_view> ends;
  std::unique_ptr<RecordReader> (*open)(const Paths&, const RecordOptions&);
  std::unique_ptr<RecordWriter> (*create)(const fs::path&, const RecordWriterOptions&);
  /// Whether a pattern of several files is one reader.
  bool many = false;
  bool (*here)() = [] { return true; };
};

const std::vector<RecordFormat>& formats() {
  using namespace detail;
  static const std::vector<RecordFormat> table{
      {"tar", {".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"}, open_tar, create_tar, true},
      {"tfrecord",
       {".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrecord.zlib"},
       open_tfrecord,
       create_tfrecord,
       true},
      {"lmdb", {".lmdb", ".mdb"}, open_lmdb, create_lmdb, false, has_lmdb},
      {"hdf5", {".h5", ".hdf5", ".hdf", ".he5"}, open_hdf5, create_hdf5, false, has_hdf5},
      {"folder", {}, open_image_folder, create_image_folder},
      {"cifar10", {}, open_cifar, create_cifar},
      {"cifar100", {}, open_cifar, create_cifar},
      {"idx", {"-ubyte", "-ubyte.gz", ".idx", ".idx.gz"}, open_idx, create_idx},
      {"csv", {".csv", ".tsv", ".csv.gz", ".tsv.gz"}, open_csv, create_csv, true},
      {"text", {".txt", ".text", ".txt.gz"}, open_text, create_text, true},
  };
  return table;
}

const RecordFormat* find_format(std::string_view name) {
  for (const auto& format : formats())
    if (format.name == name) return &format;
  return nullptr;
}

const RecordFormat& named_format(std::string_view operation, const std::string& name) {
  const auto* format = find_format(name);
  if (!format) {
    std::vector<std::string> known{"auto"};
    for (const auto& one : formats()) known.emplace_back(one.name);
    fail_unknown(operation, "format", name, known);
  }
  return *format;
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

const RecordFormat* format_by_end(const fs::path& path) {
  const auto name = lower(path.filename().string());
  for (const auto& format : formats())
    for (const auto end : format.ends)
      if (name.ends_with(end)) return &format;
  return nullptr;
}

/// By what a file begins with; null when that tells nothing.
const RecordFormat* format_by_content(const fs::path& path) {
  const FileReader file(path);
  std::array<char, 512> buffer{};
  const auto count = static_cast<size_t>(std::min<uint64_t>(buffer.size(), file.size()));
  file.read(0, std::as_writable_bytes(std::span(buffer).first(count)));
  const std::string_view head(buffer.data(), count);
  if (head.size() > 262 && head.substr(257, 5) == "ustar") return find_format("tar");
  if (head.starts_with("\x89HDF\r\n\x1a\n")) return find_format("hdf5");
  // The first page of a database: a head of 16 bytes, then the magic number.
  if (head.size() > 20 && head.substr(16, 4) == "\xde\xc0\xef\xbe") return find_format("lmdb");
  if (detail::is_tfrecord_head(head)) return find_format("tfrecord");
  if (head.size() > 8 && head.substr(0, 2) == std::string_view("\0\0", 2) && head[2] >= 8 && head[2] <= 14 &&
      head[3] >= 1 && head[3] <= 4)
    return find_format("idx");
  return nullptr;
}

/// A folder of shards and nothing else is read as all of them.
std::pair<const RecordFormat*, Paths> format_of_folder(const fs::path& folder) {
  std::error_code error;
  auto has = [&](std::string_view name) { return fs::exists(folder / name, error); };
  if (has("data.mdb")) return {find_format("lmdb"), {folder}};
  if (const auto cifar = detail::cifar_format(folder); !cifar.empty()) return {find_format(cifar), {folder}};
  if (detail::is_idx(folder)) return {find_format("idx"), {folder}};
  Paths shards;
  const RecordFormat* common = nullptr;
  bool only_shards = true;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (name.starts_with('.') || name.ends_with(".index") || name.ends_with(".labels.txt") || name == "labels.txt")
      continue;
    const auto* format = entry->is_directory(error) ? nullptr : format_by_end(entry->path());
    if (format && format->name == "idx" && name.find("ubyte") != std::string::npos) return {format, {folder}};
    if (name.ends_with(".idx")) continue;
    only_shards =
        only_shards && format && (!common || common == format) && (format->name == "tar" || format->name == "tfrecord");
    if (!only_shards) break;
    common = format;
    shards.push_back(entry->path());
  }
  if (error) detail::fail_file("read folder", folder, error.value());
  if (!only_shards || shards.empty()) return {find_format("folder"), {folder}};
  std::sort(shards.begin(), shards.end());
  return {common, std::move(shards)};
}

/// "tar (.tar, .tgz), ..." for those that a name can ask for.
std::string known_ends() {
  std::vector<std::string> words;
  for (const auto& format : formats())
    if (!format.ends.empty()) words.emplace_back(format.ends.front());
  return join(words);
}

}  // namespace

std::unique_ptr<RecordReader> open_records(const std::string& path, const RecordOptions& options) {
  const auto* format = options.format == "auto" ? nullptr : &named_format("records", options.format);
  auto paths = detail::expand_record_paths(path);
  std::error_code error;
  const bool folder = fs::is_directory(paths.front(), error);
  if (paths.size() == 1 && folder && (!format || format->many)) {
    auto [found, files] = format_of_folder(paths.front());
    if (!format) format = found;
    if (format == found) paths = std::move(files);
  } else if (!format && !folder) {
    format = format_by_content(paths.front());
    if (!format) format = format_by_end(paths.front());
  }
  LEVIN_CHECK(format, "[records] \"", paths.front().string(),
              "\" is of no format that is known by its name or its first bytes; name it (format: ",
              join(record_formats()), ")");
  LEVIN_CHECK(paths.size() == 1 || format->many, "[records] \"", path, "\" is ", paths.size(), " files; the format ",
              format->name, " is of one");
  LEVIN_CHECK(!format->many || !fs::is_directory(paths.front(), error), "[records] \"", path,
              "\" is a folder without files of the format ", format->name);
  auto resolved = options;
  resolved.format = format->name;
  return format->open(paths, resolved);
}

std::string detail::format_to_write(const std::string& path, const std::string& asked) {
  const auto* format = asked == "auto" ? format_by_end(path) : &named_format("records", asked);
  const auto end = fs::path(path).extension();
  if (!format && end.empty()) format = find_format("folder");
  LEVIN_CHECK(format, "[records] \"", path, "\": no format is known by the end \"", end.string(),
              "\" (known: ", known_ends(), "; a name without an end is a folder of images)");
  return std::string(format->name);
}

std::unique_ptr<RecordWriter> create_records(const std::string& path, const RecordWriterOptions& options) {
  LEVIN_CHECK(!path.empty(), "[records] the path is empty");
  LEVIN_CHECK(path.find('{') == std::string::npos && path.find('*') == std::string::npos, "[records] \"", path,
              "\" is a pattern; shards are written by shard_records or shard_bytes, or by %06d in the name");
  const auto name = lower(fs::path(path).filename().string());
  for (const std::string_view end : {".gz", ".tgz", ".zst", ".tzst", ".zlib"})
    LEVIN_CHECK(!name.ends_with(end), "[records] \"", path, "\": compressed files (", end,
                ") are read, but not written; leave the end out and compress the file afterwards");
  auto resolved = options;
  resolved.format = detail::format_to_write(path, options.format);
  return find_format(resolved.format)->create(path, resolved);
}

std::vector<std::string> record_formats() {
  std::vector<std::string> names;
  for (const auto& format : formats())
    if (format.here()) names.emplace_back(format.name);
  return names;
}

}  // namespace levin
