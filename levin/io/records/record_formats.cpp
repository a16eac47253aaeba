#include "levin/io/records/record_formats.h"

#include <algorithm>
#include <array>
#include <span>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace fs = std::filesystem;

const std::vector<RecordFormat>& all_record_formats() {
  static const std::vector<RecordFormat> table{
      tar_format(),     tfrecord_format(), lmdb_format(), hdf5_format(), image_folder_format(),
      cifar10_format(), cifar100_format(), idx_format(),  csv_format(),  text_format(),
  };
  return table;
}

const RecordFormat* find_record_format(std::string_view name) {
  for (const auto& format : all_record_formats())
    if (format.name == name) return &format;
  return nullptr;
}

const RecordFormat& record_format(const std::string& name) {
  if (const auto* format = find_record_format(name)) return *format;
  std::vector<std::string> known{"auto"};
  for (const auto& format : all_record_formats()) known.emplace_back(format.name);
  fail_unknown("records", "format", name, known);
}

const RecordFormat* record_format_by_end(const fs::path& path) {
  auto name = path.filename().string();
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (const auto& format : all_record_formats())
    for (const auto end : format.ends)
      if (name.ends_with(end)) return &format;
  return nullptr;
}

const RecordFormat* record_format_by_content(const fs::path& path) {
  const FileReader file(path);
  std::array<char, 512> buffer{};
  const auto count = static_cast<size_t>(std::min<uint64_t>(buffer.size(), file.size()));
  file.read(0, std::as_writable_bytes(std::span(buffer).first(count)));
  for (const auto& format : all_record_formats())
    if (format.matches && format.matches({buffer.data(), count})) return &format;
  return nullptr;
}

const RecordFormat& format_to_write(const std::string& path, const std::string& asked) {
  if (asked != "auto") return record_format(asked);
  if (const auto* format = record_format_by_end(path)) return *format;
  const auto end = fs::path(path).extension();
  std::vector<std::string> known;
  for (const auto& format : all_record_formats())
    if (!format.ends.empty()) known.emplace_back(format.ends.front());
  LEVIN_CHECK(end.empty(), "[records] \"", path, "\": no format is known by the end \"", end.string(),
              "\" (known: ", join(known), "; a name without an end is a folder of images)");
  return *find_record_format("folder");
}

}  // namespace levin::detail

namespace levin {

std::vector<std::string> record_formats() {
  std::vector<std::string> names;
  for (const auto& format : detail::all_record_formats())
    if (format.available()) names.emplace_back(format.name);
  return names;
}

}  // namespace levin
