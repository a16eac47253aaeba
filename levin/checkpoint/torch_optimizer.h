#pragma once

#include <string>

#include "levin/checkpoint/checkpoint_format.h"

namespace levin::detail {

/// The state of an optimizer in a file of torch.save, as a checkpoint with the one name "optimizer": of
/// torch.save(optimizer.state_dict()), of a dict that has it as "optimizer" or "optimizer_state_dict", of a checkpoint
/// of Lightning, or of LibTorch's torch::save(optimizer), alone or in an archive with other things.
class TorchOptimizerFile final : public CheckpointFormat {
 public:
  /// `key`: where the state stands in the file ("optimizer_states.1"); empty: it is looked for.
  explicit TorchOptimizerFile(std::string key) : key_(std::move(key)) {}

  std::string_view name() const override { return "torch"; }
  bool recognizes(const std::filesystem::path& path) const override;
  /// Refuses: save_raw writes such files.
  void save(const std::filesystem::path& path, const StateDict& state) const override;
  StateDict load(const std::filesystem::path& path) const override;

 private:
  std::string key_;
};

/// What a program wrote with LibTorch's torch::save or an OutputArchive, as a checkpoint: a name for each part. Modules
/// are dicts of their tensors by dotted names, optimizers have the layout of state_dict().
class LibtorchFile final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "libtorch"; }
  bool recognizes(const std::filesystem::path& path) const override;
  /// Refuses: torch::save and save_raw write such files.
  void save(const std::filesystem::path& path, const StateDict& state) const override;
  StateDict load(const std::filesystem::path& path) const override;
};

}  // namespace levin::detail
