#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "levin/checkpoint/shard_targets.h"
#include "levin/checkpoint/shards.h"
#include "levin/checkpoint/state.h"
#include "levin/core/state_dict.h"

namespace levin {

class CheckpointFormat;

/// A checkpoint is a folder: one safetensors file for each name of the state that has tensors (one from each rank where
/// tensors are sharded), state.json for the rest of the tree, and manifest.json with versions, sizes and a checksum of
/// every tensor. It is written under a temporary name and renamed, so it is never incomplete, and one that is
/// replaced stays until the new one is complete.

/// Says of one entry of a dict whether it is to be saved.
using StateFilter = std::function<bool(std::string_view name, const StateValue& value)>;

struct SaveOptions {
  /// By name of the state ("model"): keeps only what the function says yes to.
  std::map<std::string, StateFilter> filter = {};
  /// Number of ranks that train; noted for those who resume.
  int world_size = 1;
  /// Which tensors are shards. When it is set, every rank of its group must call: each writes its own shards into the
  /// folder, which all of them must see, and rank 0 the rest. Either all return, and the checkpoint is complete, or all
  /// throw the same line, and nothing has changed.
  ShardMap* shards = nullptr;
  /// Shards are sent to rank 0, which writes what a single process would have written. One full tensor at a time is in
  /// rank 0's host memory. Without `shards`, and where `shards->saves_full()`, it is always so.
  bool full = false;
  /// Where tensors of the tree stand that are shards without being known to `shards`.
  const ShardTargets* targets = nullptr;
  /// How it is stored; null: a folder, as above.
  const CheckpointFormat* format = nullptr;
};

/// Saves a state under `folder`. A checkpoint that is there already is replaced; a folder with anything else in it is
/// refused.
void save_checkpoint(const std::filesystem::path& folder, const State& state, const SaveOptions& options = {});
/// The same for a tree. (A template, so that `{{"model", net}}` in a call is a State.)
template <std::same_as<StateDict> D>
void save_checkpoint(const std::filesystem::path& folder, const D& state, const SaveOptions& options = {});

struct LoadOptions {
  /// Missing names, and unexpected ones within a module, are an Error that lists them all. A wrong shape always is one.
  bool strict = true;
  /// Compare all checksums before anything is changed; reads the files once more.
  bool verify = true;
  /// Read what is not bound, and return it.
  bool leftover = true;
  /// Which tensors of the modules and optimizers are shards: only their rows are read, however many ranks wrote the
  /// checkpoint. Every rank of its group must call; they split the comparing of checksums, and when one fails all throw
  /// the same line.
  ShardMap* shards = nullptr;
  /// Names that are not read although nothing is bound to them.
  std::vector<std::string> skip = {};
  /// Names that are bound and that the checkpoint may lack: what is bound to them stays as it is then.
  std::vector<std::string> optional = {};
  /// The ranks that load together: when one fails, all throw the same line and nothing has changed on any. Those of
  /// `shards` where that is set; by default this process alone.
  Collective* group = nullptr;
  /// A format besides Levin's own that the checkpoint may have.
  const CheckpointFormat* format = nullptr;
};

/// Loads into everything that `state` binds, in place, and returns what the checkpoint holds besides; `folder` may also
/// be a file that a program wrote with LibTorch's OutputArchive, one name for each part. Modules are read
/// tensor by tensor straight into their own memory; another dtype is converted, and said. Nothing is changed when the
/// checkpoint is damaged, incomplete, of a newer format, or does not fit, or when an optimizer or anything else that is
/// bound refuses its part: modules come last, and what was loaded before is put back, from a copy in host memory.
/// (Without `verify` a file that cannot be read to its end may leave a module half loaded.)
StateDict load_checkpoint(const std::filesystem::path& folder, const State& state, LoadOptions options = {});
/// Everything in a checkpoint.
StateDict load_checkpoint(const std::filesystem::path& folder, LoadOptions options = {});
/// Everything in a checkpoint; of the tensors that have a target only the rows that it takes. Every rank of its group
/// must call.
StateDict load_checkpoint(const std::filesystem::path& folder, const ShardTargets& targets, LoadOptions options = {});

struct RawOptions {
  bool strict = true;
  /// Which name of a checkpoint to take; by default "model", or the only one. Of a file of torch.save or torch::save
  /// the part ("generator"), which is looked for by default.
  std::string key = {};
  /// As in LoadOptions; every rank of its group must call.
  ShardMap* shards = nullptr;
  /// As in LoadOptions.
  Collective* group = nullptr;
  /// As in LoadOptions.
  const CheckpointFormat* format = nullptr;
};

/// Loads weights from elsewhere into one module or optimizer: a weight file of any format, an index or a folder of them
/// (see WeightFile), or a checkpoint.
void load_raw(const std::filesystem::path& path, const StateRef& target, const RawOptions& options = {});

struct ConsolidateOptions {
  /// Only these names of the state ("model"); all when there are none.
  std::vector<std::string> keys = {};
  /// Called with the bytes that are done, of as many: everything is compared first, and then written.
  std::function<void(uint64_t done, uint64_t all)> progress = {};
};
/// Writes what a single process would have written: all tensors of a checkpoint in one piece each, in the files that a
/// state without shards has. Needs no ranks and no more memory than the largest tensor takes. `out` may be `folder`.
void consolidate_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& out,
                            const ConsolidateOptions& options = {});

struct FullStateOptions {
  /// Only rank 0 gets it; the others get an empty dict.
  bool rank0_only = true;
};
/// A module's state with full tensors on the CPU, gathered from the ranks that hold shards: small ones together, large
/// ones one by one. Equal to module_state_dict of the unsharded module. Every rank of the map's group must call.
StateDict full_state_dict(const torch::nn::Module& module, ShardMap& shards, FullStateOptions options = {});
/// The same for any tree: an optimizer's state_dict.
StateDict full_state_dict(const StateDict& state, ShardMap& shards, FullStateOptions options = {});

/// Reads and compares everything; an Error names the first thing that is wrong.
void verify_checkpoint(const std::filesystem::path& folder);

/// The newest checkpoint in a folder of checkpoints that passes verification; those that do not are passed over, with a
/// line that says why. Nothing when there is none; an Error when there are some and none passes, so that no run
/// starts again unasked. `format`: one besides Levin's own that checkpoints may have.
std::optional<std::filesystem::path> latest_good_checkpoint(const std::filesystem::path& folder,
                                                            const CheckpointFormat* format = nullptr);

struct CheckpointInfo {
  int64_t format_version = 0;
  std::string levin_version;
  std::string torch_version;
  int64_t world_size = 1;
  /// Seconds since 1970, and later than that of every checkpoint that its process had read or written before.
  double saved_at = 0;
  /// Names of the state, in order.
  std::vector<std::string> keys;
  /// Whether some tensors are stored as shards.
  bool sharded = false;
};
/// What the manifest says, without reading any data.
CheckpointInfo checkpoint_info(const std::filesystem::path& folder);

namespace detail {
void save_checkpoint_dict(const std::filesystem::path& folder, const StateDict& state, const SaveOptions& options);
}  // namespace detail

template <std::same_as<StateDict> D>
void save_checkpoint(const std::filesystem::path& folder, const D& state, const SaveOptions& options) {
  detail::save_checkpoint_dict(folder, state, options);
}

}  // namespace levin
