#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/state_files.h"
#include "levin/core/files.h"
#include "levin/distributed/save_mark.h"

namespace levin {
namespace fs = std::filesystem;

void detail::save_checkpoint_dict(const fs::path& folder, const StateDict& state, const SaveOptions& options) {
  const SaveMark mark;
  if (options.shards) {
    const bool full = options.full || options.shards->saves_full();
    return full ? save_full(folder, state, options) : save_shards(folder, state, options);
  }
  check_replaceable(folder);
  StateFiles files(memory_key);
  const auto tree = tree_text(options.filter.empty() ? state : filtered(state, options.filter),
                              [&](const StatePath& path, const Tensor& tensor) { return files.place(path, tensor); });
  auto manifest = new_manifest(options.world_size);
  AtomicFolder target(folder);
  for (const auto& file : files.files())
    write_whole_file(
        target.path(), file, [](const StateFiles::Item& item) { return item.tensor; }, manifest);
  write_tree_and_manifest(target.path(), tree, manifest);
  target.commit();
}

void save_checkpoint(const fs::path& folder, const State& state, const SaveOptions& options) {
  detail::save_checkpoint_dict(folder, state.state_dict(), options);
}

}  // namespace levin
