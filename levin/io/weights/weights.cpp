#include "levin/io/weights/weights.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/torch_file.h"
#include "levin/io/weights/weight_formats.h"

namespace levin {
namespace fs = std::filesystem;

int64_t WeightEntry::numel() const {
  int64_t count = 1;
  for (const auto size : shape) count *= size;
  return count;
}

WeightFile::WeightFile(const fs::path& path, const WeightOptions& options) : path_(path) {
  LEVIN_CHECK(fs::exists(path), "[weights] \"", path.string(), "\" does not exist");
  const auto file = fs::is_directory(path) ? detail::weights_in(path) : path;
  std::optional<detail::WeightIndex> index;
  if (file.extension() == ".json") index = detail::read_weight_index("weights", file);
  const auto& format = detail::weight_format_of(index ? file.parent_path() / index->places.front().second : file);
  format_ = format.name;
  open_ = format.open(file, index ? &*index : nullptr, options);
  entries_ = open_->entries;
  if (files().size() > 1)
    std::sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

const std::vector<fs::path>& WeightFile::files() const {
  return open_->files;
}

const std::map<std::string, std::string>& WeightFile::metadata() const {
  return open_->metadata;
}

const std::string& WeightFile::root() const {
  return open_->root;
}

const std::string& WeightFile::stripped() const {
  return open_->stripped;
}

const WeightEntry* WeightFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const WeightEntry& WeightFile::at(std::string_view name) const {
  if (const auto* entry = find(name)) return *entry;
  std::vector<std::string> names;
  for (const auto& entry : entries_) names.push_back(entry.name);
  const auto nearest = nearest_word(name, names);
  throw Error(fmt::format("[weights] \"{}\" has no tensor \"{}\"{}", path_.string(), name,
                          nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest)));
}

Tensor WeightFile::read(std::string_view name) const {
  return open_->read(at(name).name);
}

NamedTensors WeightFile::read(const std::vector<std::string>& names) const {
  for (const auto& name : names) at(name);
  return open_->read_all(names);
}

void WeightFile::read_into(std::string_view name, Tensor& into) const {
  open_->read_into(at(name).name, into);
}

void WeightFile::read_rows(std::string_view name, int64_t first, Tensor& into) const {
  open_->read_rows(at(name).name, first, into);
}

uint64_t WeightFile::bytes() const {
  uint64_t sum = 0;
  for (const auto& entry : entries_) sum += entry.bytes;
  return sum;
}

std::string dtype_name(c10::ScalarType type) {
  for (const auto& known : detail::torch_types())
    if (known.type == type) return known.name;
  return c10::toString(type);
}

c10::ScalarType dtype_from_name(std::string_view operation, std::string_view name) {
  std::vector<std::string> names;
  for (const auto& known : detail::torch_types()) {
    if (name == known.name) return known.type;
    names.emplace_back(known.name);
  }
  fail_unknown(operation, "dtype", name, names);
}

}  // namespace levin
