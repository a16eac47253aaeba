#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levin/checkpoint/checkpoint.h"
#include "levin/core/state_dict.h"

namespace levin::detail {

class Run;

/// The checkpoint a run resumes from, and those that it is asked to write.
struct Checkpoints {
  std::filesystem::path ckpt_path = {};
  /// The run has looked for that one itself (ckpt_path "last"): it continues the collection that it is of, and may
  /// delete it.
  bool resumes_last = false;
  /// What Ctrl-C left beside it, until a checkpoint that is further stands there; empty: nothing.
  std::filesystem::path interrupted = {};
  /// What was read of it; there until the run has taken all of it.
  std::optional<StateDict> loaded = {};
  /// What resuming changes, as it was; there until the run has taken all of it.
  struct BeforeRestore;
  std::shared_ptr<BeforeRestore> before_restore = {};
  /// Asked for inside a batch or a window of accumulation: written when it is complete.
  struct Waiting {
    std::filesystem::path path;
    bool weights_only = false;
    std::function<void()> then;
    /// The model that a validation inside a window was about, which the end of the window changes; else empty.
    StateDict model = {};
  };
  std::vector<Waiting> waiting = {};
  /// Those from which training could continue, oldest first: the one that the run has resumed from, and its own. Some
  /// may be deleted.
  struct Good {
    std::filesystem::path path;
    int64_t total_batches = 0;
  };
  std::vector<Good> good = {};
  /// The step of the last warning of weights that are not finite.
  int64_t warned_at = -1;
  /// The random generators, and the loggers' positions where it has written rows, before the validation under way.
  std::optional<StateDict> rng_before_validation = {};
  std::optional<StateList> logs_before_validation = {};
};

/// The model that a run resumes from, where "model" is the one of a validation inside a window of accumulation.
inline constexpr const char* kResumeModel = "resume_model";

// Writing (checkpointing.cpp).

/// The random generators of this rank.
StateDict rng_state(const Run& run);
/// Whether all weights that are trained are finite, on all ranks; says once in a step when they are not. Every rank
/// must call.
bool weights_are_finite(Run& run);
/// Writes now; false: the weights are not finite, and nothing was written. Every rank must call.
bool write_checkpoint(Run& run, const std::filesystem::path& path, bool weights_only);
/// Writes now or, inside a batch or a window of accumulation, when it is complete; then calls `then`, unless nothing
/// was written since the weights are not finite. `validated`: the model of the checkpoint is the one of now also then,
/// and what a run resumes from is beside it.
void save_checkpoint(Run& run, const std::filesystem::path& path, bool weights_only, std::function<void()> then,
                     bool validated = false);
/// Writes what was asked for during the batch.
void write_waiting_checkpoints(Run& run);
/// Where a checkpoint goes that a cluster's signal asks for.
std::filesystem::path hpc_path(const Run& run, int64_t number);
/// Notes a checkpoint from which training could continue.
void note_good_checkpoint(Run& run, const std::filesystem::path& path);
/// Where a checkpoint has tensors of which a rank may hold shards.
ShardTargets targets_in_checkpoint(Run& run, ShardMap& shards);

// Resuming (restore.cpp), in this order.

/// The path that `ckpt_path` means: a path, "last", "best", "hpc", or nothing.
std::filesystem::path find_checkpoint(Run& run, const std::string& asked, bool fit);
/// Weights, and the states of callbacks and of the data module.
void restore_model(Run& run, bool fit);
/// Optimizers, schedulers, the loss scaler and the progress of the loops.
void restore_training(Run& run);
/// The loader, metrics, random generators and logs.
void restore_position(Run& run);
/// The run has failed before it took all of a checkpoint: what was changed is as before.
void put_back_restored(Run& run) noexcept;

}  // namespace levin::detail
