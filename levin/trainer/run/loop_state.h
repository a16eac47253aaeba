#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "levin/core/state_dict.h"
#include "levin/trainer/context.h"
#include "levin/trainer/hooks.h"

namespace levin::detail {

inline constexpr LogSite kNoLogging{"this place", LogSite::Kind::kRefused};
inline constexpr LogSite kTransferSite{"the hooks of batch transfer", LogSite::Kind::kRefused};
const LogSite& step_site(Stage stage);

/// What runs, whose hook it is, and on which batch: log() and errors go by it.
struct Place {
  /// What log() means here. It stays when a hook has ended, until another place is set.
  const LogSite* site = &kNoLogging;
  /// What an error came out of: it stays as it was when an exception passes.
  struct Doing {
    const char* what = nullptr;
    const Callback* callback = nullptr;
  } doing = {};
  /// The batch that is fetched or worked on.
  std::optional<StepInfo> at = {};
  AnyBatch batch = {};
  /// With several evaluation loaders, which one; -1 otherwise.
  int64_t dataloader_idx = -1;

  void set_site(const LogSite& here) {
    site = &here;
    doing = {&here == &kNoLogging ? nullptr : here.hook};
  }
  /// What errors from now on came out of, in words of the module's hooks; it has no end, another one replaces it.
  void set_doing(const char* what) { doing = {what}; }
};

/// Batches until the ranks ask one another next whether to stop.
struct StopVote {
  int64_t batches_left = 1, period = 1;
  std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
};

/// Training and evaluation go at their own pace.
struct StopVotes {
  StopVote train = {}, eval = {};
};

/// Everything that the loops change as they go: beginning a run is an assignment, a snapshot a copy, and a checkpoint
/// holds its state_dict().
struct LoopState {
  Stage stage = Stage::kIdle;
  bool fitting = false;
  Progress progress = {};
  bool is_last_batch = false;
  /// The last training batch of the epoch is done.
  bool batches_done = false;
  bool inside_batch = false;
  /// The batch under way, or the last one, made an optimizer step.
  bool batch_stepped = true;
  /// Gradients of a window of accumulation wait for its other batches: no checkpoint can be written.
  bool window_open = false;
  /// The first batch of that window.
  int64_t window_begin = 0;
  /// The batches of the epoch are done and its end hooks run: metrics are those of the epoch.
  bool in_epoch_end = false;
  /// How often the run has gone back to a checkpoint.
  int64_t rollbacks = 0;
  /// Training steps run forward only.
  bool forward_only = false;
  bool should_stop = false;
  /// This rank alone asks to stop: the next vote tells the others.
  bool stop_requested = false;
  std::chrono::steady_clock::time_point last_validation = {};
  StopVotes votes = {};
  Place place = {};

  void enter_batch(const AnyBatch& batch) {
    inside_batch = true;
    place.batch = batch;
  }
  void leave_batch() {
    inside_batch = false;
    place.batch = AnyBatch();
    place.at.reset();
  }
  /// As before the batch under way, or before its window of accumulation.
  void rewind();
  /// The same place of the epoch, counted in batches of another size or of another number of ranks.
  void move_to(int64_t batch);
  /// Where a checkpoint can be written.
  bool between_steps() const { return !inside_batch && !window_open; }

  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);
};

}  // namespace levin::detail
