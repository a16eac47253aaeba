#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levin/io/weights/safetensors.h"

namespace levin {

/// The tensors of a model, whether they are in one file or in several with an index.
///
///     levin::SafetensorsModel weights("vit/");  // with model.safetensors or model.safetensors.index.json
///     for (const auto& name : weights.names()) Tensor t = weights.read(name);
///
/// An index may only name files that stand beside it: a path in it is an Error. Every tensor it names must be in the
/// file it names, and in no other.
class SafetensorsModel {
 public:
  /// A .safetensors file, an .index.json, or a folder with model.safetensors or its index.
  explicit SafetensorsModel(const std::filesystem::path& path);

  /// Sorted.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return files_of_.contains(std::string(name)); }
  /// The entry of that name, and below its data; an Error when there is none.
  const SafetensorsEntry& at(std::string_view name) const { return file_of(name).at(name); }
  Tensor read(std::string_view name) const { return file_of(name).read(name); }
  void read_into(std::string_view name, Tensor& into) const { file_of(name).read_into(at(name), into); }
  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  const SafetensorsFile& file_of(std::string_view name) const;

  std::string where_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, size_t> files_of_;
  std::vector<std::string> names_;
};

/// Writes model.safetensors, or, past `shard_bytes`, model-00001-of-0000N.safetensors and the index, as other tools
/// expect them. Each file is whole or not there; the index comes last.
void write_safetensors_model(const std::filesystem::path& folder, const NamedTensors& tensors,
                             uint64_t shard_bytes = 5'000'000'000,
                             const SafetensorsMetadata& metadata = {{"format", "pt"}});

}  // namespace levin
