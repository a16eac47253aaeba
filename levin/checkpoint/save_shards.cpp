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

/// A block of a tensor that this rank writes.
struct OwnBlock {
  const StateFiles::Item* item;
  /// In the file.
  std::string name;
  Tensor tensor;
  std::vector<int64_t> start, sizes;
};

/// What this rank writes of an item: all of a full tensor, rows of a shard, or a block for each range of a slice.
std::vector<OwnBlock> blocks_of(const StateFiles::Item& item) {
  const auto* place = item.place;
  if (!place)
    return {{&item, item.name, item.tensor, std::vector<int64_t>(item.tensor.sizes().size(), 0),
             item.tensor.sizes().vec()}};
  if (place->sizes.empty()) return {{&item, item.name, item.tensor.detach().reshape(at::IntArrayRef()), {}, {}}};
  if (!place->slice) {
    std::vector<int64_t> start(place->sizes.size(), 0);
    start[0] = place->start;
    return {{&item, item.name, item.tensor, std::move(start), item.tensor.sizes().vec()}};
  }
  std::vector<OwnBlock> blocks;
  const auto slice = place->slice->written_part();
  for (const auto& box : slice.boxes()) {
    const auto count = box.sizes[static_cast<size_t>(slice.dim)];
    auto part = item.tensor.detach().narrow(slice.dim, box.at, count);
    if (part.numel() == 0) continue;
    auto name = blocks.empty() ? item.name : fmt::format("{}#part{}", item.name, blocks.size() + 1);
    blocks.push_back({&item, std::move(name), part.contiguous(), box.start, box.sizes});
  }
  return blocks;
}

/// Writes one file of this rank, and tells of it: files as [name, bytes, checksum], parts as [id, file, name, start,
/// shape, dtype, checksum].
void write_own_file(const fs::path& folder, const std::string& name, const std::vector<const StateFiles::Item*>& items,
                    EntriesJson& told) {
  std::vector<OwnBlock> blocks;
  for (const auto* item : items)
    for (auto& block : blocks_of(*item)) blocks.push_back(std::move(block));
  if (blocks.empty()) return;
  NamedTensors tensors;
  std::unordered_map<std::string_view, const OwnBlock*> by_name;
  for (const auto& block : blocks) {
    by_name.emplace(block.name, &block);
    tensors.emplace_back(block.name, block.tensor);
  }
  FileWriter writer(folder / name);
  for (const auto& record : write_safetensors(writer, tensors, {{"format", "pt"}})) {
    const auto& block = *by_name.at(record.name);
    told["parts"].push_back({block.item->id, told["files"].size(), block.name, block.start, block.sizes, record.dtype,
                             checksum_text(record.checksum)});
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
  for (const auto& file : files.files()) {
    for (const auto& item : file.items) {
      if (!file.writes(item)) continue;
      index.emplace(item.id, manifest.tensors.size());
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
      const auto dtype = part[5].get<std::string>();
      LEVIN_CHECK(dtype == tensor.dtype, "[checkpoint.save] \"", id, "\" is ", dtype, " on rank ", rank, " and ",
                  tensor.dtype, " on rank 0");
      TensorPart entry{json["files"][part[1].get<size_t>()][0], part[2], part[3].get<std::vector<int64_t>>(),
                       part[4].get<std::vector<int64_t>>(), part[6]};
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
