#include "levin/io/weights/safetensors_model.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kLongestIndex = 100'000'000;
constexpr const char* kFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

fs::path find_file(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  for (const char* name : {kFile, kIndex})
    if (fs::exists(path / name)) return path / name;
  throw Error(fmt::format("[safetensors] \"{}\" has neither {} nor {}", path.string(), kFile, kIndex));
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

}  // namespace

SafetensorsModel::SafetensorsModel(const fs::path& path) : where_(path.string()) {
  const auto file = find_file(path);
  if (file.extension() == ".json") {
    add_index(file);
  } else {
    files_.emplace_back(file);
    for (const auto& entry : files_[0].entries()) files_of_.emplace(entry.name, 0);
  }
  for (const auto& [name, index] : files_of_) names_.push_back(name);
  std::sort(names_.begin(), names_.end());
}

void SafetensorsModel::add_index(const fs::path& path) {
  const auto where = path.string();
  const auto text = read_file(path, kLongestIndex);
  const auto index = nlohmann::json::parse(text, nullptr, false);
  LEVIN_CHECK(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(), "[safetensors] \"",
              where, "\" is not an index: a JSON object with a weight_map is needed");
  std::map<std::string, size_t> opened;
  for (const auto& [name, file] : index["weight_map"].items()) {
    LEVIN_CHECK(file.is_string() && is_plain_name(file.get<std::string>()), "[safetensors] \"", where, "\": \"", name,
                "\" is said to be in ", file.dump(), "; only names of files beside the index are allowed");
    const auto file_name = file.get<std::string>();
    auto found = opened.find(file_name);
    if (found == opened.end()) {
      files_.emplace_back(path.parent_path() / file_name);
      found = opened.emplace(file_name, files_.size() - 1).first;
    }
    LEVIN_CHECK(files_[found->second].find(name), "[safetensors] \"", where, "\": \"", name, "\" is said to be in \"",
                file_name, "\", it is not");
    files_of_.emplace(name, found->second);
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const auto& entry : files_[i].entries()) {
      const auto found = files_of_.find(entry.name);
      LEVIN_CHECK(found != files_of_.end(), "[safetensors] \"", where, "\": \"", entry.name, "\" of \"",
                  files_[i].path().filename().string(), "\" is not in the index");
      LEVIN_CHECK(found->second == i, "[safetensors] \"", where, "\": \"", entry.name, "\" is in two files, \"",
                  files_[found->second].path().filename().string(), "\" and \"", files_[i].path().filename().string(),
                  "\"");
    }
  }
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
  if (shards.size() == 1) {
    write_safetensors(folder / kFile, tensors, metadata);
    return;
  }
  nlohmann::ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", nlohmann::ordered_json::object()}};
  std::map<std::string, std::string> places;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder / name, shards[i], metadata);
    for (const auto& item : shards[i])
      LEVIN_CHECK(places.emplace(item.first, name).second, "[safetensors] two tensors named \"", item.first, "\"");
  }
  for (const auto& [name, file] : places) index["weight_map"][name] = file;
  write_file(folder / kIndex, index.dump(2) + "\n");
}

}  // namespace levin
