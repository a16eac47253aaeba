#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levin/checkpoint/format.h"
#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/shard_targets.h"
#include "levin/core/state_dict.h"
#include "levin/io/weights/safetensors.h"

namespace levin::detail {

/// Whether a path is a checkpoint, or what is left of one: damaged, or without its manifest.
bool looks_like_checkpoint(const std::filesystem::path& path);

/// A checkpoint, open for reading. Opening checks the manifest, that every file is there with its size, and that what
/// the files declare is what the manifest says; data are read when asked for.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& folder);

  const Manifest& manifest() const { return manifest_; }
  const std::string& where() const { return where_; }
  std::vector<std::string> keys() const { return tree_->keys(); }
  bool contains(std::string_view key) const;
  bool is_dict(std::string_view key) const { return tree_->is_dict(key); }
  /// The name of the state that is meant: the one that was asked for, else "model", else the only one. An Error of
  /// `operation` tells of others; `how` says how one is chosen.
  std::string choose_key(std::string_view operation, const std::string& asked, std::string_view how) const;
  /// The tensors under a name of the state: their names as a single process's file of that name has them, and their
  /// ids. A tied tensor comes under each of its names, with one id.
  std::vector<std::pair<std::string, std::string>> list(std::string_view key) const;
  /// The same for all of the state, with the names of the state before those of its tensors.
  std::vector<std::pair<std::string, std::string>> list_all() const;
  /// Whether some tensors are in parts.
  bool sharded() const;

  /// Compares the checksum of every part of a tensor; an Error names the first that is damaged. Of `sharers` that read
  /// together each takes its share. `checked` is told of the bytes of each part.
  void verify(int share = 0, int sharers = 1, const std::function<void(uint64_t bytes)>& checked = {}) const;
  /// A value with its tensors.
  StateValue read(std::string_view key) const;
  /// The same, but of tensors that have a target only the rows that it takes.
  StateValue read(std::string_view key, const ShardTargets& targets) const;
  /// The same with tensors on the meta device; `ids` gets the id of each. One that stands in several places is one.
  StateValue describe(std::string_view key, std::map<std::string, Tensor>& ids) const;
  /// The tensors of a dict, to be read one by one. Borrows this reader.
  std::unique_ptr<TensorSource> tensors(std::string_view key) const;

  const TensorEntry& entry(const std::string& id) const;
  Tensor like(const std::string& id) const;
  Tensor read_tensor(const std::string& id) const;
  void read_tensor_into(const std::string& id, Tensor& into) const { read_rows_into(id, 0, into); }
  /// Rows from `start` on, as many as `into` has (a contiguous CPU tensor of that dtype); of the files only these are
  /// read.
  void read_rows_into(const std::string& id, int64_t start, Tensor& into) const;

 private:
  void check_files(const std::filesystem::path& folder);

  std::string where_;
  Manifest manifest_;
  std::unique_ptr<Tree> tree_;
  std::map<std::string, SafetensorsFile> files_;
  std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace levin::detail
