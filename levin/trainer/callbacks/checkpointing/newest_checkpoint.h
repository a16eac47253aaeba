#pragma once

#include <filesystem>
#include <optional>

namespace levin {

class CheckpointFormat;

/// The checkpoint to resume from, of a folder of checkpoints: the newest undamaged one of last*.ckpt,
/// on_exception*.ckpt and interrupted*.ckpt, and when there is none of them, the newest undamaged one of all. Damaged
/// ones are passed over, with a line that says why. Nothing when the folder has none, or does not exist. `format` is
/// one besides Levin's own that they may have.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& dir,
                                                       const CheckpointFormat* format = nullptr);

}  // namespace levin
