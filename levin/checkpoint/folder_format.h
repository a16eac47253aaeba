#pragma once

#include "levin/checkpoint/checkpoint_format.h"

namespace levin::detail {

/// Levin's own format: a folder of safetensors files with state.json and manifest.json (docs/checkpoint.md). Every rank
/// writes its own shards, and reads its own rows.
class FolderFormat final : public CheckpointFormat {
 public:
  std::string_view name() const override { return "folder"; }
  bool recognizes(const std::filesystem::path& path) const override;
  void save(const std::filesystem::path& path, const StateDict& state) const override { save_with(path, state, {}); }
  StateDict load(const std::filesystem::path& path) const override { return load_checkpoint(path); }
  double saved_at(const std::filesystem::path& path) const override { return checkpoint_info(path).saved_at; }
  void save_with(const std::filesystem::path& path, const StateDict& state, const SaveOptions& options) const override;
  std::unique_ptr<OpenCheckpoint> open(const std::filesystem::path& path) const override;
};

}  // namespace levin::detail
