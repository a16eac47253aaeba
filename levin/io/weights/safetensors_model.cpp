#include "levin/io/weights/safetensors_model.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/indexed_files.h"
#include "levin/io/weights/weight_formats.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

fs::path find_file(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  const auto format = detail::safetensors_format();
  for (const auto& name : {format.file_name(0, 1), format.index_name()})
    if (fs::exists(path / name)) return path / name;
  throw Error(fmt::format("[safetensors] \"{}\" has neither {} nor {}", path.string(), format.file_name(0, 1),
                          format.index_name()));
}

}  // namespace

SafetensorsModel::SafetensorsModel(const fs::path& path) : where_(path.string()) {
  const auto file = find_file(path);
  if (file.extension() == ".json") {
    files_of_ = detail::open_indexed("safetensors", detail::read_weight_index("safetensors", file), files_);
  } else {
    files_.emplace_back(file);
    for (const auto& entry : files_[0].entries()) files_of_.emplace(entry.name, 0);
  }
  for (const auto& [name, index] : files_of_) names_.push_back(name);
  std::sort(names_.begin(), names_.end());
}

const SafetensorsFile& SafetensorsModel::file_of(std::string_view name) const {
  const auto found = files_of_.find(std::string(name));
  if (found != files_of_.end()) return files_[found->second];
  const auto nearest = nearest_word(name, names_);
  throw Error(fmt::format("[safetensors] \"{}\" has no tensor \"{}\"{}", where_, name,
                          nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest)));
}

void write_safetensors_model(const fs::path& folder, const NamedTensors& tensors, uint64_t shard_bytes,
                             const SafetensorsMetadata& metadata) {
  check_writable(folder);
  std::vector<NamedTensors> shards(1);
  uint64_t filled = 0;
  uint64_t total = 0;
  for (const auto& item : tensors) {
    LEVIN_CHECK(item.second.defined(), "[safetensors] \"", item.first,
                "\" is an undefined tensor, it cannot be written");
    const uint64_t bytes = item.second.nbytes();
    if (filled > 0 && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(item);
    filled += bytes;
    total += bytes;
  }
  const auto format = detail::safetensors_format();
  std::map<std::string, std::string> places;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto name = format.file_name(i, shards.size());
    write_safetensors(folder / name, shards[i], metadata);
    for (const auto& item : shards[i])
      LEVIN_CHECK(places.emplace(item.first, name).second, "[safetensors] two tensors named \"", item.first, "\"");
  }
  if (shards.size() > 1) detail::write_weight_index(folder / format.index_name(), places, total);
}

}  // namespace levin
