#include <chrono>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/format.h"
#include "levin/checkpoint/module_state.h"
#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/version.h"
#include "levin/core/words.h"
#include "levin/io/safetensors.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

/// The tensors of a state, given to files: one file per name at the top, each tensor once.
class Files {
 public:
  struct File {
    std::string name;
    NamedTensors tensors;
    std::vector<std::string> ids;  // beside tensors
    std::unordered_set<std::string> taken;
  };

  /// The id of a tensor at that place; a tensor that was seen under another name keeps its first one.
  std::string place(const detail::StatePath& path, const Tensor& tensor) {
    const auto key = detail::memory_key(tensor);
    if (!key.empty()) {
      if (const auto found = seen_.find(key); found != seen_.end()) return found->second;
    }
    // A tensor right at the top shares a file with the others of its kind.
    auto& file = file_of(path.size() == 1 ? std::string() : path[0]);
    const auto first = path.begin() + (path.size() == 1 ? 0 : 1);
    auto name = fmt::format("{}", fmt::join(first, path.end(), "."));
    // {"a": {"b.c": x}, "a.b": {"c": y}} would give two tensors one name.
    for (int n = 2; !file.taken.insert(name).second; ++n)
      name = fmt::format("{}#{}", fmt::join(first, path.end(), "."), n);
    auto id = path.size() == 1 ? name : fmt::format("{}.{}", path[0], name);
    for (int n = 2; !ids_.insert(id).second; ++n) id = fmt::format("{}.{}#{}", path[0], name, n);
    file.tensors.emplace_back(std::move(name), tensor);
    file.ids.push_back(id);
    if (!key.empty()) seen_.emplace(key, id);
    return id;
  }

  const std::vector<File>& files() const { return files_; }

 private:
  File& file_of(const std::string& key) {
    for (size_t i = 0; i < keys_.size(); ++i)
      if (keys_[i] == key) return files_[i];
    auto stem = key.empty() ? std::string("tensors") : key.substr(0, 100);
    for (auto& c : stem)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-') c = '_';
    auto name = stem;
    for (int n = 2; !names_.insert(name).second; ++n) name = fmt::format("{}-{}", stem, n);
    keys_.push_back(key);
    files_.push_back({name + ".safetensors", {}, {}, {}});
    return files_.back();
  }

  std::vector<std::string> keys_;
  std::vector<File> files_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> ids_;
  std::unordered_map<std::string, std::string> seen_;
};

/// Only what is a checkpoint and nothing more may be replaced: `folder` may be a typing error.
void check_replaceable(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  LEVIN_CHECK(fs::is_directory(folder, error), "[checkpoint.save] \"", folder.string(),
              "\" is a file, a folder is needed");
  if (fs::is_empty(folder, error)) return;
  std::unordered_set<std::string> own{detail::kManifestFile};
  if (fs::exists(folder / detail::kManifestFile, error)) {
    try {
      for (const auto& file : detail::parse_manifest(read_file(folder / detail::kManifestFile), folder.string()).files)
        own.insert(file.name);
    } catch (const Error&) {
      // A damaged or newer checkpoint: told by the kinds of its files.
      for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".safetensors" || entry.path().filename() == detail::kStateFile)
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

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void detail::save_checkpoint_dict(const fs::path& folder, const StateDict& state, const SaveOptions& options) {
  check_replaceable(folder);
  Files files;
  const auto tree = tree_text(options.filter.empty() ? state : filtered(state, options.filter),
                              [&](const StatePath& path, const Tensor& tensor) { return files.place(path, tensor); });

  Manifest manifest{kCheckpointVersion, kVersion, TORCH_VERSION, options.world_size, now(), {}, {}};
  AtomicFolder target(folder);
  for (const auto& file : files.files()) {
    std::unordered_map<std::string_view, std::string_view> ids;
    for (size_t i = 0; i < file.ids.size(); ++i) ids.emplace(file.tensors[i].first, file.ids[i]);
    FileWriter writer(target.path() / file.name);
    for (auto& record : write_safetensors(writer, file.tensors, {{"format", "pt"}})) {
      const auto id = ids.at(record.name);
      TensorPart part{file.name, record.name, std::vector<int64_t>(record.shape.size(), 0), record.shape,
                      checksum_text(record.checksum)};
      manifest.tensors.push_back({std::string(id), record.dtype, record.shape, {std::move(part)}});
    }
    writer.close();
    const SafetensorsFile written(target.path() / file.name);
    manifest.files.push_back({file.name, writer.size(), checksum_text(written.header_checksum())});
  }
  const auto put = [&](const char* name, const std::string& text) {
    FileWriter writer(target.path() / name);
    writer.write(text);
    writer.close();
  };
  put(kStateFile, tree);
  manifest.files.push_back({kStateFile, tree.size(), checksum_text(crc32c(tree))});
  put(kManifestFile, manifest_text(manifest));
  target.commit();
}

void save_checkpoint(const fs::path& folder, const State& state, const SaveOptions& options) {
  detail::save_checkpoint_dict(folder, state.state_dict(), options);
}

}  // namespace levin
