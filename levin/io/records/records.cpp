#include "levin/io/records/records.h"

#include <algorithm>
#include <cctype>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/records/record_formats.h"
#include "levin/io/records/record_paths.h"

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
using detail::RecordFormat;

/// What a folder is, and the files to read; of shards and nothing else all of them.
std::pair<const RecordFormat*, Paths> format_of_folder(const fs::path& folder) {
  for (const auto& format : detail::all_record_formats())
    if (format.matches_folder && format.matches_folder(folder)) return {&format, {folder}};
  std::error_code error;
  Paths shards;
  const RecordFormat* common = nullptr;
  bool only_shards = true;
  for (auto entry = fs::directory_iterator(folder, error); !error && only_shards && entry != fs::directory_iterator();
       entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (name.starts_with('.') || name.ends_with(".index") || name.ends_with(".idx") || name.ends_with(".labels.txt") ||
        name == "labels.txt")
      continue;
    const auto* format = entry->is_directory(error) ? nullptr : detail::record_format_by_end(entry->path());
    only_shards = format && format->many_in_folder && (!common || common == format);
    common = format;
    shards.push_back(entry->path());
  }
  if (error) detail::fail_file("read folder", folder, error.value());
  if (!only_shards || shards.empty()) return {detail::find_record_format("folder"), {folder}};
  std::sort(shards.begin(), shards.end());
  return {common, std::move(shards)};
}

}  // namespace

std::unique_ptr<RecordReader> open_records(const std::string& path, const RecordOptions& options) {
  const auto* format = options.format == "auto" ? nullptr : &detail::record_format(options.format);
  auto paths = detail::expand_record_paths(path);
  std::error_code error;
  const bool folder = fs::is_directory(paths.front(), error);
  if (paths.size() == 1 && folder && (!format || format->many)) {
    auto [found, files] = format_of_folder(paths.front());
    if (!format) format = found;
    if (format == found) paths = std::move(files);
  } else if (!format && !folder) {
    format = detail::record_format_by_content(paths.front());
    if (!format) format = detail::record_format_by_end(paths.front());
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

std::unique_ptr<RecordWriter> create_records(const std::string& path, const RecordWriterOptions& options) {
  LEVIN_CHECK(!path.empty(), "[records] the path is empty");
  LEVIN_CHECK(path.find('{') == std::string::npos && path.find('*') == std::string::npos, "[records] \"", path,
              "\" is a pattern; shards are written by shard_records or shard_bytes, or by %06d in the name");
  auto end = fs::path(path).extension().string();
  std::transform(end.begin(), end.end(), end.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view compressed : {".gz", ".tgz", ".zst", ".tzst", ".zlib"})
    LEVIN_CHECK(end != compressed, "[records] \"", path, "\": compressed files (", end,
                ") are read, but not written; leave the end out and compress the file afterwards");
  const auto& format = detail::format_to_write(path, options.format);
  auto resolved = options;
  resolved.format = format.name;
  return format.create(path, resolved);
}

}  // namespace levin
