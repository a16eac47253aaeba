#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levin/checkpoint/format.h"
#include "levin/checkpoint/open_checkpoint.h"
#include "levin/core/state_dict.h"
#include "levin/io/weights/safetensors.h"

namespace levin::detail {

/// Whether a path is a checkpoint, or what is left of one: damaged, or without its manifest.
bool looks_like_checkpoint(const std::filesystem::path& path);

/// A checkpoint folder, open for reading. Opening checks the manifest, that every file is there with its size, and that
/// what the files declare is what the manifest says; data are read when asked for.
class CheckpointReader final : public OpenCheckpoint {
 public:
  explicit CheckpointReader(const std::filesystem::path& folder);

  const Manifest& manifest() const { return manifest_; }
  const std::string& where() const override { return where_; }
  std::vector<std::string> keys() const override { return tree_->keys(); }
  bool is_dict(std::string_view key) const override { return tree_->is_dict(key); }
  /// The tensors under a name of the state: their names as a single process's file of that name has them, and their
  /// ids. A tied tensor comes under each of its names, with one id.
  std::vector<std::pair<std::string, std::string>> list(std::string_view key) const;
  /// The same for all of the state, with the names of the state before those of its tensors.
  std::vector<std::pair<std::string, std::string>> list_all() const;
  /// Whether some tensors are in shards.
  bool sharded() const;

  void verify(int share = 0, int sharers = 1, const std::function<void(uint64_t bytes)>& checked = {}) const override;
  StateValue read(std::string_view key) const override;
  StateValue read(std::string_view key, const ShardTargets& targets) const override;
  std::optional<StateValue> describe(std::string_view key, const ShardTargets* targets,
                                     std::vector<DescribedTensor>& tensors) const override;
  /// A value with tensors on the meta device; `ids` gets the id of each. One that stands in several places is one.
  StateValue describe(std::string_view key, std::map<std::string, Tensor>& ids) const;
  std::unique_ptr<TensorSource> tensors(std::string_view key) const override;

  const TensorEntry& entry(const std::string& id) const;
  Tensor like(const std::string& id) const;
  Tensor read_tensor(const std::string& id) const;
  void read_tensor_into(const std::string& id, Tensor& into) const { read_rows_into(id, 0, into); }
  /// Rows from `start` on, as many as `into` has (a contiguous CPU tensor of that dtype); of the files only these are
  /// read.
  void read_rows_into(const std::string& id, int64_t start, Tensor& into) const;

 private:
  /// The bytes of it; an Error when they are not what was written.
  uint64_t verify_part(const TensorEntry& tensor, const TensorPart& part) const;
  void check_files(const std::filesystem::path& folder);

  std::string where_;
  Manifest manifest_;
  std::unique_ptr<Tree> tree_;
  std::map<std::string, SafetensorsFile> files_;
  std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace levin::detail
