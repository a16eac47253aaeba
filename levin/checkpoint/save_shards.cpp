// Saving by ranks that each hold a shard of the state.
#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/state_files.h"
#include "levin/checkpoint/together.h"
#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/files.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

using EntriesJson = nlohmann::json;

/// Writes one file of this rank, and tells of it: files as [name, bytes, checksum], parts as [id, file, first row,
/// rows, dtype, checksum]. A full tensor has no rows.
void write_own_file(const fs::path& folder, const std::string& name, const std::vector<const StateFiles::Item*>& items,
                    EntriesJson& told) {
  if (items.empty()) return;
  NamedTensors tensors;
  std::unordered_map<std::string_view, const StateFiles::Item*> by_name;
  for (const auto* item : items) {
    by_name.emplace(item->name, item);
    const bool scalar = item->place && item->place->sizes.empty();
    tensors.emplace_back(item->name, scalar ? item->tensor.detach().reshape(at::IntArrayRef()) : item->tensor);
  }
  FileWriter writer(folder / name);
  for (const auto& record : write_safetensors(writer, tensors, {{"format", "pt"}})) {
    const auto& item = *by_name.at(record.name);
    told["parts"].push_back({item.id, told["files"].size(), item.place ? item.place->start : 0,
                             item.place ? rows_of(item.tensor) : -1, record.dtype, checksum_text(record.checksum)});
  }
  writer.close();
  const auto file = describe_file(folder, name, writer.size());
  told["files"].push_back({file.name, file.bytes, file.checksum});
}

std::string write_own_files(const fs::path& folder, const StateFiles& files, int rank) {
  std::error_code error;
  const bool exists = fs::is_directory(folder, error);
  LEVIN_CHECK(!error || error == std::errc::no_such_file_or_directory, "[checkpoint.save] \"", folder.string(),
              "\": ", error.message());
  LEVIN_CHECK(exists, "[checkpoint.save] \"", folder.string(),
              "\", which rank 0 has made, is not there; ranks that hold shards need a folder that all of them see");
  EntriesJson told{{"files", EntriesJson::array()}, {"parts", EntriesJson::array()}};
  for (const auto& file : files.files()) {
    std::vector<const StateFiles::Item*> whole;
    std::vector<const StateFiles::Item*> parts;
    for (const auto& item : file.items) {
      if (!file.writes(item)) continue;
      if (!item.place && rank == 0) whole.push_back(&item);
      if (item.place && item.place->writes && item.tensor.numel() > 0) parts.push_back(&item);
    }
    // A file with the plain name would pass for all of the weights.
    write_own_file(folder, file.stem + (file.divided ? ".whole.safetensors" : ".safetensors"), whole, told);
    write_own_file(folder, fmt::format("{}.rank-{}.safetensors", file.stem, rank), parts, told);
  }
  return told.dump();
}

/// What all ranks have told, as a manifest; rank 0's state says which tensors there are.
Manifest merge(const std::vector<std::string>& told, const StateFiles& files, const fs::path& folder,
               int64_t world_size) {
  auto manifest = new_manifest(world_size);
  std::unordered_map<std::string, size_t> index;
  std::unordered_map<std::string, const std::string*> names;
  for (const auto& file : files.files()) {
    for (const auto& item : file.items) {
      if (!file.writes(item)) continue;
      index.emplace(item.id, manifest.tensors.size());
      names.emplace(item.id, &item.name);
      const auto* type = find_safetensors_type(item.tensor.scalar_type());
      LEVIN_CHECK(type, "[checkpoint.save] \"", item.id, "\" is ", item.tensor.scalar_type(),
                  ", a type that safetensors files do not have");
      manifest.tensors.push_back(
          {item.id, std::string(type->name), item.place ? item.place->sizes : item.tensor.sizes().vec(), {}});
    }
  }
  for (size_t rank = 0; rank < told.size(); ++rank) {
    const auto json = EntriesJson::parse(told[rank]);
    for (const auto& file : json["files"]) manifest.files.push_back({file[0], file[1], file[2]});
    for (const auto& part : json["parts"]) {
      const auto id = part[0].get<std::string>();
      const auto found = index.find(id);
      LEVIN_CHECK(found != index.end(), "[checkpoint.save] rank ", rank, " has a shard of \"", id,
                  "\", of which rank 0's state knows nothing");
      auto& tensor = manifest.tensors[found->second];
      const auto dtype = part[4].get<std::string>();
      LEVIN_CHECK(dtype == tensor.dtype, "[checkpoint.save] \"", id, "\" is ", dtype, " on rank ", rank, " and ",
                  tensor.dtype, " on rank 0");
      TensorPart entry{json["files"][part[1].get<size_t>()][0], *names.at(id),
                       std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape, part[5]};
      if (part[3] >= 0 && !tensor.shape.empty()) {
        entry.start[0] = part[2];
        entry.shape[0] = part[3];
      }
      tensor.parts.push_back(std::move(entry));
    }
  }
  for (const auto& tensor : manifest.tensors) check_parts(tensor, folder.string());
  return manifest;
}

}  // namespace

void save_shards(const fs::path& folder, const StateDict& state, const SaveOptions& options) {
  auto& shards = *options.shards;
  auto& group = shards.group();
  StateFiles files(shard_key, &shards, options.targets);
  std::string tree;
  std::optional<AtomicFolder> target;
  std::string temporary;
  together(group, [&] {
    shards.refresh();
    tree = tree_text(options.filter.empty() ? state : filtered(state, options.filter),
                     [&](const StatePath& path, const Tensor& tensor) { return files.place(path, tensor); });
    if (group.rank() != 0) return;
    check_replaceable(folder);
    target.emplace(folder);
    temporary = fs::absolute(target->path()).string();
  });
  temporary = broadcast_string(group, std::move(temporary));
  const auto told = gather_together(group, [&] { return write_own_files(temporary, files, group.rank()); });
  together(group, [&] {
    if (group.rank() != 0) return;
    auto manifest = merge(told, files, folder, options.world_size);
    write_tree_and_manifest(target->path(), tree, manifest);
    target->commit();
  });
}

}  // namespace levin::detail
