#include "levin/checkpoint/folder_format.h"

#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/reader.h"
#include "levin/checkpoint/state_files.h"
#include "levin/core/files.h"

namespace levin::detail {
namespace fs = std::filesystem;

bool FolderFormat::recognizes(const fs::path& path) const {
  std::error_code error;
  return fs::exists(path / kManifestFile, error);
}

void FolderFormat::save_with(const fs::path& path, const StateDict& state, const SaveOptions& options) const {
  if (options.shards) {
    const bool full = options.full || options.shards->saves_full();
    return full ? save_full(path, state, options) : save_shards(path, state, options);
  }
  check_replaceable(path);
  StateFiles files(memory_key);
  const auto tree = tree_text(options.filter.empty() ? state : filtered(state, options.filter),
                              [&](const StatePath& place, const Tensor& tensor) { return files.place(place, tensor); });
  auto manifest = new_manifest(options.world_size);
  AtomicFolder target(path);
  for (const auto& file : files.files())
    write_whole_file(
        target.path(), file, [](const StateFiles::Item& item) { return item.tensor; }, manifest);
  write_tree_and_manifest(target.path(), tree, manifest);
  target.commit();
}

std::unique_ptr<OpenCheckpoint> FolderFormat::open(const fs::path& path) const {
  return std::make_unique<CheckpointReader>(path);
}

}  // namespace levin::detail
