#include "levin/checkpoint/state_files.h"

#include <atomic>
#include <chrono>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/version.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace fs = std::filesystem;

std::string StateFiles::place(const StatePath& path, const Tensor& tensor) {
  const auto key = key_(tensor);
  const auto seen = key.empty() ? seen_.end() : seen_.find(key);
  const bool known = seen != seen_.end();
  // A tensor right at the top shares a file with the others of its kind.
  const auto top = path.size() == 1 ? std::string() : path[0];
  if (known && keys_[seen->second.file] != top) return files_[seen->second.file].items[seen->second.item].id;
  const auto index = file_of(top);
  auto& file = files_[index];
  const auto first = path.begin() + (path.size() == 1 ? 0 : 1);
  auto name = fmt::format("{}", fmt::join(first, path.end(), "."));
  // {"a": {"b.c": x}, "a.b": {"c": y}} would give two tensors one name.
  for (int n = 2; !file.taken.insert(name).second; ++n)
    name = fmt::format("{}#{}", fmt::join(first, path.end(), "."), n);
  auto id = path.size() == 1 ? name : fmt::format("{}.{}", path[0], name);
  for (int n = 2; !ids_.insert(id).second; ++n) id = fmt::format("{}.{}#{}", path[0], name, n);
  if (known) {
    const auto& one = file.items[seen->second.item];
    auto one_id = one.id;
    file.items.push_back({std::move(name), std::move(id), one.tensor, one.place, /*alias=*/true});
    return one_id;
  }
  const auto* part = shards_ ? shards_->find(tensor) : nullptr;
  if (!part && targets_) part = targets_->find_part(path, tensor);
  LEVIN_CHECK(!part || fits(tensor, *part), "[checkpoint.save] \"", id, "\" has shape ",
              fmt::format("{}", tensor.sizes()), ", which is no shard of ",
              fmt::format("{}", part ? part->sizes : std::vector<int64_t>()), " from row ", part ? part->start : 0,
              " on; save between steps");
  file.divided = file.divided || part;
  if (!key.empty()) seen_.emplace(key, Seen{index, file.items.size()});
  file.items.push_back({std::move(name), id, tensor, part});
  return id;
}

size_t StateFiles::file_of(const std::string& key) {
  for (size_t i = 0; i < keys_.size(); ++i)
    if (keys_[i] == key) return i;
  auto stem = key.empty() ? std::string("tensors") : key.substr(0, 100);
  for (auto& c : stem)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-') c = '_';
  auto name = stem;
  for (int n = 2; !stems_.insert(name).second; ++n) name = fmt::format("{}-{}", stem, n);
  keys_.push_back(key);
  files_.push_back({name, {}, false, {}});
  return files_.size() - 1;
}

void check_replaceable(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  LEVIN_CHECK(fs::is_directory(folder, error), "[checkpoint.save] \"", folder.string(),
              "\" is a file, a folder is needed");
  if (fs::is_empty(folder, error)) return;
  std::unordered_set<std::string> own{kManifestFile};
  if (fs::exists(folder / kManifestFile, error)) {
    try {
      for (const auto& file : parse_manifest(read_file(folder / kManifestFile), folder.string()).files)
        own.insert(file.name);
    } catch (const Error&) {
      // A damaged or newer checkpoint: told by the kinds of its files.
      for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".safetensors" || entry.path().filename() == kStateFile)
          own.insert(entry.path().filename().string());
    }
  }
  for (const auto& entry : fs::directory_iterator(folder))
    LEVIN_CHECK(own.contains(entry.path().filename().string()), "[checkpoint.save] \"", folder.string(), "\" holds \"",
                entry.path().filename().string(),
                "\", which is not part of a checkpoint; only an empty folder or a checkpoint is replaced");
}

StateDict filtered(const StateDict& state, const std::map<std::string, StateFilter>& filters) {
  std::vector<std::string> names;
  for (const auto& item : state) names.push_back(item.first);
  for (const auto& [name, filter] : filters) {
    if (!state.contains(name)) fail_unknown("checkpoint.save", "filter for", name, names);
    LEVIN_CHECK(filter && state.at(name).is_dict(), "[checkpoint.save] the filter for \"", name,
                "\" must be a function, and the value a dict or a module");
  }
  StateDict kept;
  for (const auto& [name, value] : state) {
    const auto found = filters.find(name);
    if (found == filters.end()) {
      kept[name] = value;
      continue;
    }
    StateDict entries;
    for (const auto& [entry, content] : value.to_dict())
      if (found->second(entry, content)) entries[entry] = content;
    kept[name] = std::move(entries);
  }
  return kept;
}

namespace {
std::atomic<double> newest_saved_at = 0;
}

void note_saved_at(double seconds) {
  constexpr double kLatest = 1e11;  // what is beyond is no time
  auto before = newest_saved_at.load();
  while (seconds > before && seconds < kLatest && !newest_saved_at.compare_exchange_weak(before, seconds)) {
  }
}

Manifest new_manifest(int64_t world_size) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const auto saved_at = std::max(now.count(), std::nextafter(newest_saved_at.load(), HUGE_VAL));
  note_saved_at(saved_at);
  return {kCheckpointVersion, kVersion, TORCH_VERSION, world_size, saved_at, {}, {}};
}

FileEntry describe_file(const fs::path& folder, const std::string& name, uint64_t bytes) {
  return {name, bytes, checksum_text(SafetensorsFile(folder / name).header_checksum())};
}

void write_whole_file(const fs::path& folder, const StateFiles::File& file,
                      const std::function<Tensor(const StateFiles::Item&)>& read, Manifest& manifest) {
  const auto name = file.stem + ".safetensors";
  std::unordered_map<std::string_view, const StateFiles::Item*> items;
  NamedTensors like;
  for (const auto& item : file.items) {
    items.emplace(item.name, &item);
    like.emplace_back(item.name,
                      item.place ? at::empty(item.place->sizes, item.tensor.options().device(at::kMeta)) : item.tensor);
  }
  FileWriter writer(folder / name);
  const auto records = write_safetensors(
      writer, like, [&](const std::string& tensor) { return read(*items.at(tensor)); }, {{"format", "pt"}});
  for (const auto& record : records) {
    TensorPart part{name, record.name, std::vector<int64_t>(record.shape.size(), 0), record.shape,
                    checksum_text(record.checksum)};
    manifest.tensors.push_back({items.at(record.name)->id, record.dtype, record.shape, {std::move(part)}});
  }
  writer.close();
  manifest.files.push_back(describe_file(folder, name, writer.size()));
}

void write_tree_and_manifest(const fs::path& folder, const std::string& tree, Manifest& manifest) {
  const auto put = [&](const char* name, const std::string& text) {
    FileWriter writer(folder / name);
    writer.write(text);
    writer.close();
  };
  put(kStateFile, tree);
  manifest.files.push_back({kStateFile, tree.size(), checksum_text(crc32c(tree))});
  put(kManifestFile, manifest_text(manifest));
}

}  // namespace levin::detail
