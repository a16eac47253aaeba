#include "levin/profilers/schedule.h"

#include <utility>

#include "levin/core/error.h"

namespace levin {

void ProfilerSchedule::check() const {
  for (const auto& [name, value] : {std::pair{"wait", wait}, {"warmup", warmup}, {"repeat", repeat}})
    LEVIN_CHECK(value >= 0, "[profiler] schedule.", name, " ", value, " is not allowed (0 or more)");
  LEVIN_CHECK(skip_first >= 0, "[profiler] schedule.skip_first ", skip_first, " is not allowed (0 or more)");
  LEVIN_CHECK(active > 0, "[profiler] schedule.active ", active, " is not allowed (1 or more)");
}

ProfilerAction ProfilerSchedule::action(int64_t step) const {
  if (step < skip_first) return ProfilerAction::kNone;
  step -= skip_first;
  if (skip_first_wait) step += wait;
  const int64_t cycle = wait + warmup + active;
  if (repeat > 0 && step / cycle >= repeat) return ProfilerAction::kNone;
  const int64_t at = step % cycle;
  if (at < wait) return ProfilerAction::kNone;
  if (at < wait + warmup) return ProfilerAction::kWarmup;
  return at + 1 == cycle ? ProfilerAction::kRecordAndSave : ProfilerAction::kRecord;
}

}  // namespace levin
