// Writing the result of `levin convert`: one file, or several with an index.
#include <functional>
#include <set>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/weights/libtorch.h"
#include "levin/program/commands/convert/convert_plan.h"

namespace levin::cli {
namespace fs = std::filesystem;
namespace {

/// A tensor of the result, out of what it is made of.
Tensor make_item(const ConvertItem& item, const std::function<Tensor(const std::string&)>& source) {
  std::vector<Tensor> parts;
  for (const auto& name : item.weight.sources) parts.push_back(source(name));
  auto tensor = parts.size() == 1 ? parts[0] : at::cat(parts, 0);
  if (item.weight.parts > 1) {
    const auto rows = tensor.size(0) / item.weight.parts;
    tensor = tensor.slice(0, item.weight.part * rows, (item.weight.part + 1) * rows).clone();
  }
  return item.weight.transposed ? tensor.t().contiguous() : tensor;
}

/// All of a part of the result. What shared memory in the file and is not changed shares it still.
NamedTensors read_items(const WeightSource& file, std::span<const ConvertItem> items, ProgressBar& bar) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const auto& item : items)
    for (const auto& source : item.weight.sources)
      if (seen.insert(source).second) names.push_back(source);
  std::map<std::string, Tensor> sources;
  for (auto& [name, tensor] : file.read(names)) sources.emplace(name, std::move(tensor));
  std::map<std::pair<void*, c10::ScalarType>, Tensor> cast;  // tied tensors stay tied
  NamedTensors tensors;
  for (const auto& item : items) {
    auto tensor = make_item(item, [&](const std::string& name) { return sources.at(name); });
    if (tensor.scalar_type() != item.dtype) {
      auto& known = cast[{tensor.data_ptr(), item.dtype}];
      if (!known.defined() || known.sizes() != tensor.sizes() || tensor.numel() == 0) known = tensor.to(item.dtype);
      tensor = known;
    }
    tensors.emplace_back(item.weight.name, tensor);
    bar.advance(static_cast<int64_t>(item.bytes));
  }
  return tensors;
}

/// Files that write_shards may have left; others are not deleted with the folder.
bool holds_only_weights(const fs::path& folder) {
  for (const auto& item : fs::directory_iterator(folder)) {
    const auto name = item.path().filename().string();
    bool is_weights = name.ends_with(".index.json");
    for (const auto& format : levin::detail::weight_formats())
      is_weights =
          is_weights || (format.write && !format.folder_ending.empty() && name.ends_with(format.folder_ending));
    if (!item.is_regular_file() || !is_weights) return false;
  }
  return true;
}

/// Runs of items that fit into one file each.
std::vector<std::span<const ConvertItem>> split_items(std::span<const ConvertItem> items, uint64_t shard_bytes) {
  std::vector<std::span<const ConvertItem>> shards;
  uint64_t filled = 0;
  for (size_t i = 0, begin = 0; i < items.size(); ++i) {
    if (shards.empty() || (filled > 0 && filled + items[i].bytes > shard_bytes)) {
      shards.emplace_back();
      begin = i;
      filled = 0;
    }
    shards.back() = items.subspan(begin, i + 1 - begin);
    filled += items[i].bytes;
  }
  return shards;
}

}  // namespace

void check_convert_target(const fs::path& target, bool is_folder, bool overwrite) {
  check_destination("levin convert", target, is_folder ? OutputKind::kFolder : OutputKind::kFile, overwrite,
                    "--overwrite");
  LEVIN_CHECK(!is_folder || !fs::exists(target) || holds_only_weights(target), "[levin convert] \"", target.string(),
              "\" holds other things than weights; name another folder");
}

void write_for_libtorch(const fs::path& path, const WeightSource& file, std::span<const ConvertItem> items,
                        const std::vector<std::string>& modules, ProgressBar& bar) {
  write_libtorch_file(path, read_items(file, items, bar), modules);
}

void write_items(const fs::path& path, const WeightSource& file, std::span<const ConvertItem> items,
                 const levin::detail::WeightFormat& format, ProgressBar& bar) {
  if (!format.write_each) return format.write(path, read_items(file, items, bar));
  NamedTensors like;
  std::map<std::string_view, const ConvertItem*> by_name;
  for (const auto& item : items) {
    like.emplace_back(item.weight.name, at::empty(item.shape, at::TensorOptions(item.dtype).device(at::kMeta)));
    by_name.emplace(item.weight.name, &item);
  }
  const auto read = [&](const std::string& name) {
    const auto& item = *by_name.at(name);
    const auto tensor = make_item(item, [&](const std::string& source) { return file.read(source); });
    bar.advance(static_cast<int64_t>(item.bytes));
    return tensor.to(item.dtype);
  };
  format.write_each(path, like, read);
}

size_t write_shards(const WeightSource& file, const std::vector<ConvertItem>& items, const fs::path& target,
                    const levin::detail::WeightFormat& format, uint64_t shard_bytes, ProgressBar& bar) {
  const auto shards = split_items(items, shard_bytes);
  AtomicFolder folder(target);
  std::map<std::string, std::string> places;
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto name = format.file_name(i, shards.size());
    write_items(folder.path() / name, file, shards[i], format, bar);
    for (const auto& item : shards[i]) {
      places[item.weight.name] = name;
      total += item.bytes;
    }
  }
  if (shards.size() > 1) levin::detail::write_weight_index(folder.path() / format.index_name(), places, total);
  folder.commit();
  return shards.size();
}

}  // namespace levin::cli
