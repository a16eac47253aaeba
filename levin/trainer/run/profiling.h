#pragma once

namespace levin {

class AnyBatch;

namespace detail {

class Run;

/// A loop of steps, as the profiler of a run sees it; its end comes in any case.
class [[nodiscard]] ProfiledLoop {
 public:
  /// Nothing happens unless `on`.
  explicit ProfiledLoop(Run& run, bool on = true);
  ~ProfiledLoop();
  ProfiledLoop(const ProfiledLoop&) = delete;
  ProfiledLoop& operator=(const ProfiledLoop&) = delete;

 private:
  Run* run_ = nullptr;
};

/// Writes report.html beside the traces of the profiler and says so, on rank 0. Without traces nothing happens; what
/// fails is a warning.
void write_profile_report(const Run& run);

/// A batch of the loop begins, and ends. What comes between belongs to no step: validation, the end of an epoch.
void begin_profiled_step(Run& run);
void end_profiled_step(Run& run);
/// Gives a profiler of memory what the step of this batch is predicted to take, once, where that can be predicted.
void predict_profiled_memory(Run& run, const AnyBatch& batch);

}  // namespace detail

}  // namespace levin
