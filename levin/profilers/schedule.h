#pragma once

#include <cstdint>

namespace levin {

/// What a profiler does in a step.
enum class ProfilerAction : uint8_t {
  kNone,
  /// Recorded and thrown away: the first step of a recording is slower than others.
  kWarmup,
  kRecord,
  /// The last step of a cycle: the trace is ready after it.
  kRecordAndSave
};

/// Which steps a profiler records, as torch.profiler.schedule. A cycle is `wait` steps of nothing, `warmup` steps whose
/// record is thrown away, and `active` recorded steps.
struct ProfilerSchedule {
  int64_t wait = 1;
  int64_t warmup = 1;
  int64_t active = 3;
  /// Cycles; 0 repeats until the end.
  int64_t repeat = 1;
  /// Steps before the first cycle.
  int64_t skip_first = 0;
  /// The first cycle begins without its `wait`, for instance because `skip_first` is long enough.
  bool skip_first_wait = false;

  /// An Error for a negative number, or an `active` of 0.
  void check() const;
  /// What happens in a step, counted from 0.
  ProfilerAction action(int64_t step) const;
};

}  // namespace levin
