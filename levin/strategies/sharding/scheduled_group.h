#pragma once

#include <cstdint>

namespace levin::detail {

/// Parameters that are gathered and reduced together, as the schedule sees them: ShardGroup moves them, and in a memory
/// estimate only their bytes are counted.
class ScheduledGroup {
 public:
  enum class State : uint8_t { kSharded, kGathering, kGathered };

  virtual ~ScheduledGroup() = default;

  State state() const { return state_; }
  /// Elements of the full parameters.
  virtual int64_t full_numel() const = 0;
  /// Whether any parameter needs a gradient now.
  virtual bool trained() const = 0;

  /// Starts the all-gather; returns at once. Nothing to do when it was started before.
  virtual void begin_gather() = 0;
  /// Full parameters are there when this returns, as far as the compute stream is concerned.
  virtual void finish_gather() = 0;
  /// Frees the full parameters, or keeps their memory for the next time.
  virtual void release(bool keep_memory = false) = 0;
  /// In this backward begin_reduce steps the full parameters where they are, and copies them to the shards: they keep
  /// their memory until finish_reduce.
  virtual bool updates_in_place() const { return false; }
  /// Takes the gradients of the full parameters and starts to reduce them.
  virtual void begin_reduce() = 0;
  /// What was reduced is in place when this returns, as far as the compute stream is concerned.
  virtual void finish_reduce() = 0;

  /// How far the pass at hand has come. Kept by the schedule.
  struct Progress {
    /// Calls that compute with it now.
    int computing = 0;
    /// Uses whose backward has not ended.
    int to_come = 0;
    bool used = false;
    bool ready = false;
    bool reduced = false;
  } progress;

 protected:
  State state_ = State::kSharded;
};

}  // namespace levin::detail
