#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace levin {
class Fabric;
class TrainerContext;
}  // namespace levin

/// What callbacks that follow a metric or a clock have in common.
namespace levin::detail {

/// A run in which nothing is kept and nobody stops: fast_dev_run, a sanity check, anything but fit().
bool is_rehearsal(const TrainerContext& run);
/// Whether a state can be kept when this exception ends the run: in a fit that is no rehearsal, and with several ranks
/// only when a signal or a step that is not finite ends all of them. An exception of one rank alone leaves the others
/// somewhere else.
bool can_save_on(const std::exception& error, const TrainerContext& run);
/// Whether fit() validates at all.
bool has_validation(const TrainerContext& run);
/// Whether validation, if there is any, comes once at the end of every training epoch, so that the end of the epoch
/// knows its metrics.
bool epoch_end_knows_all(const TrainerContext& run);

/// True for "min", false for "max"; an Error for anything else.
bool lower_is_better(std::string_view callback, std::string_view mode);

/// The Error for a metric that nobody logged: the nearest name, and all there are.
[[noreturn]] void fail_missing_metric(std::string_view callback, std::string_view metric, TrainerContext& run);
/// The same as a line, for a warning.
std::string missing_metric_line(std::string_view callback, std::string_view metric, TrainerContext& run);

/// Seconds of a clock that only rises.
double monotonic_seconds();

/// Whether a time is over by the clock of rank 0, with the same answer on every rank. With several ranks the question
/// goes over the wire only now and then: rank 0 tells how many calls must pass before the time can be half over.
class SharedTimer {
 public:
  /// Every rank must call, equally often.
  bool is_over(Fabric& fabric, double elapsed, double limit);
  void restart() { *this = {}; }

 private:
  int64_t calls_ = 0;
  int64_t wait_ = 1;
  double asked_at_ = 0;
};

}  // namespace levin::detail
