#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/format.h"
#include "levin/io/weights/safetensors.h"

namespace levin::detail {

/// The tensors of a state, given to files: one file per name at the top. A tied tensor is one tensor of the state, with
/// one id; in the file it stands under each of its names, as a strict load in Python needs it.
class StateFiles {
 public:
  struct Item {
    /// In the file, and in the manifest.
    std::string name;
    std::string id;
    Tensor tensor;
    /// Null for a full tensor.
    const ShardPlace* place = nullptr;
    /// A further name of a tensor that comes before it in this file. The state knows it by the first id alone.
    bool alias = false;
  };
  struct File {
    /// Without the ending.
    std::string stem;
    std::vector<Item> items;
    /// Whether some of the tensors are shards.
    bool divided = false;
    std::unordered_set<std::string> taken;

    /// Whether an item is written. A divided file is for Levin alone, which needs a tensor once.
    bool writes(const Item& item) const { return !item.alias || !divided; }
  };

  /// `key` is equal for tensors that are one and the same, and empty for those of which nothing is known; `shards` and
  /// `targets` may be null.
  explicit StateFiles(std::function<std::string(const Tensor&)> key, const ShardMap* shards = nullptr,
                      const ShardTargets* targets = nullptr)
      : key_(std::move(key)), shards_(shards), targets_(targets) {}

  /// The id of a tensor at that place; a tensor that was seen under another name keeps its first one.
  std::string place(const StatePath& path, const Tensor& tensor);

  const std::vector<File>& files() const { return files_; }

 private:
  struct Seen {
    size_t file = 0;
    size_t item = 0;
  };
  size_t file_of(const std::string& key);

  std::function<std::string(const Tensor&)> key_;
  const ShardMap* shards_;
  const ShardTargets* targets_;
  std::vector<std::string> keys_;
  std::vector<File> files_;
  std::unordered_set<std::string> stems_;
  std::unordered_set<std::string> ids_;
  std::unordered_map<std::string, Seen> seen_;
};

/// Only what is a checkpoint and nothing more may be replaced: `folder` may be a typing error.
void check_replaceable(const std::filesystem::path& folder);
/// What the filters of the options leave of a state.
StateDict filtered(const StateDict& state, const std::map<std::string, StateFilter>& filters);
/// A manifest without files and tensors, of now; where the clock was set back, of just after the newest checkpoint that
/// this process has written or opened, so that who resumes is the newer.
Manifest new_manifest(int64_t world_size);
/// A checkpoint of that time was opened.
void note_saved_at(double seconds);

/// Writes one file of tensors that are asked for one by one, and says so in the manifest.
void write_whole_file(const std::filesystem::path& folder, const StateFiles::File& file,
                      const std::function<Tensor(const StateFiles::Item&)>& read, Manifest& manifest);
/// Writes state.json and, last of all, manifest.json.
void write_tree_and_manifest(const std::filesystem::path& folder, const std::string& tree, Manifest& manifest);
/// Size and checksum of a safetensors file that was written.
FileEntry describe_file(const std::filesystem::path& folder, const std::string& name, uint64_t bytes);

/// What the ranks do when SaveOptions::shards is set.
void save_shards(const std::filesystem::path& folder, const StateDict& state, const SaveOptions& options);
void save_full(const std::filesystem::path& folder, const StateDict& state, const SaveOptions& options);
/// full_state_dict of a tree in which `targets`, which may be null, names more shards.
StateDict gather_full_state(const StateDict& state, ShardMap& shards, const ShardTargets* targets,
                            FullStateOptions options);

}  // namespace levin::detail
