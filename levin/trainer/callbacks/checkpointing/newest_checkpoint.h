#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {

class CheckpointFormat;

/// The checkpoint to resume from, of a folder of checkpoints: of those that pass verification the one whose run was
/// furthest (epochs, then optimizer steps, then batches), whatever its name and its time; of equal ones
/// last*.ckpt, on_exception*.ckpt or interrupted*.ckpt, then the newest. Damaged ones are passed over, with a line that
/// says why. Nothing when the folder has none, or does not exist; an Error when it has some and none can be loaded.
/// `format` is one besides Levin's own that they may have.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& dir,
                                                       const CheckpointFormat* format = nullptr);

namespace detail {

/// How far the run of a checkpoint was; -1: it does not say.
struct CheckpointProgress {
  int64_t epoch = -1, global_step = -1;
  bool closing_epoch = false;
  int64_t batch = -1, validated_at = -1;

  auto operator<=>(const CheckpointProgress&) const = default;
  /// "epoch 2, step 40"
  std::string to_string() const;
};

/// What is found in a folder of checkpoints.
struct CheckpointSearch {
  /// The furthest one that passes verification.
  std::filesystem::path furthest;
  CheckpointProgress progress;
  /// Those that cannot be resumed from; why has been said.
  std::vector<std::filesystem::path> refused;
  /// Those with the name of one that is made to be resumed from, which are less far.
  std::vector<std::pair<std::filesystem::path, CheckpointProgress>> behind;
};
/// `resumes`: one with weights alone will not do. `prefix`: only names that begin so count, and no subfolders.
CheckpointSearch search_checkpoints(const std::filesystem::path& dir, const CheckpointFormat* format, bool resumes,
                                    std::string_view prefix = {});

}  // namespace detail
}  // namespace levin
