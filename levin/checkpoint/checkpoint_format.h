#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/open_checkpoint.h"
#include "levin/core/state_dict.h"

namespace levin {

/// How checkpoints are stored. Levin's own format, a folder of safetensors files, is the default. A program can pass
/// another one to Fabric and Trainer, as it would pass a CheckpointIO to Lightning:
///
///     levin::Trainer trainer({.plugins = {.checkpoint_format = std::make_shared<MyFormat>()}});
///
/// Four methods are enough; the others have defaults that work with any strategy.
class CheckpointFormat {
 public:
  virtual ~CheckpointFormat() = default;

  virtual std::string_view name() const = 0;
  /// Whether `path` is a checkpoint of this format; does not throw. Other checkpoints are read by the format that
  /// recognizes them, so a run can resume from a checkpoint of Levin's own format.
  virtual bool recognizes(const std::filesystem::path& path) const = 0;
  /// Writes a state with full tensors, and replaces what was there. One rank calls it. When it throws, what was there
  /// should still be there.
  virtual void save(const std::filesystem::path& path, const StateDict& state) const = 0;
  /// Reads everything. Every rank calls it.
  virtual StateDict load(const std::filesystem::path& path) const = 0;

  /// Deletes a checkpoint, for `save_top_k`. By default the file or folder.
  virtual void remove(const std::filesystem::path& path) const;
  /// Seconds since 1970, to find the newest one. By default the time of the file or folder.
  virtual double saved_at(const std::filesystem::path& path) const;
  /// Writes a state with options. With `options.shards` every rank of the group calls it. By default rank 0 gathers the
  /// full state and calls save.
  virtual void save_with(const std::filesystem::path& path, const StateDict& state, const SaveOptions& options) const;
  /// Opens a checkpoint to be read tensor by tensor. By default all of it is loaded, and ranks take their shards of it.
  virtual std::unique_ptr<detail::OpenCheckpoint> open(const std::filesystem::path& path) const;
};

/// The formats that Levin knows by default.
const std::vector<const CheckpointFormat*>& checkpoint_formats();
/// The format of a checkpoint: `own` if it recognizes it, else one of checkpoint_formats(), else null.
const CheckpointFormat* find_checkpoint_format(const std::filesystem::path& path,
                                               const CheckpointFormat* own = nullptr);

}  // namespace levin
