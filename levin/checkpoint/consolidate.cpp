// A checkpoint of many ranks as one process would have written it, without ranks.
#include "levin/checkpoint/reader.h"
#include "levin/checkpoint/state_files.h"
#include "levin/core/files.h"
#include "levin/core/words.h"

namespace levin {

void consolidate_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& out,
                            const ConsolidateOptions& options) {
  const detail::CheckpointReader reader(folder);
  detail::check_replaceable(out);
  std::map<std::string, Tensor> described;
  StateDict state;
  const auto all = reader.keys();
  for (const auto& key : options.keys)
    if (!reader.contains(key)) fail_unknown("checkpoint.consolidate", reader.where() + ": name", key, all);
  for (const auto& key : options.keys.empty() ? all : options.keys) state[key] = reader.describe(key, described);
  uint64_t done = 0;
  uint64_t all_bytes = 0;
  const auto progress = [&](uint64_t bytes) {
    done += bytes;
    if (options.progress) options.progress(done, all_bytes);
  };
  std::unordered_map<const c10::TensorImpl*, std::string> ids;
  for (const auto& [id, tensor] : described) ids.emplace(tensor.unsafeGetTensorImpl(), id);

  detail::StateFiles files([&](const Tensor& tensor) { return ids.at(tensor.unsafeGetTensorImpl()); });
  const auto tree = detail::tree_text(
      state, [&](const detail::StatePath& path, const Tensor& tensor) { return files.place(path, tensor); });
  for (const auto& tensor : reader.manifest().tensors) all_bytes += reader.like(tensor.id).nbytes();
  for (const auto& file : files.files())
    for (const auto& item : file.items) all_bytes += item.tensor.nbytes();
  reader.verify(0, 1, progress);
  auto manifest = detail::new_manifest(reader.manifest().world_size);
  // It is the same state, and no newer than it was.
  manifest.saved_at = reader.manifest().saved_at;
  AtomicFolder target(out);
  for (const auto& file : files.files())
    detail::write_whole_file(
        target.path(), file,
        [&](const detail::StateFiles::Item& item) {
          auto tensor = reader.read_tensor(ids.at(item.tensor.unsafeGetTensorImpl()));
          progress(tensor.nbytes());
          return tensor;
        },
        manifest);
  detail::write_tree_and_manifest(target.path(), tree, manifest);
  target.commit();
}

}  // namespace levin
