#pragma once

#include <string_view>

namespace levin::detail {

class Run;

bool steps_are_done(const Run& run);
/// min_epochs and min_steps are reached.
bool can_stop_early(const Run& run);
/// Somebody asked to stop, and the run may.
bool stops_now(const Run& run);

/// On every rank at the same place.
void stop(Run& run, std::string_view reason);
/// From any rank alone.
void request_stop(Run& run, std::string_view reason);

/// Between two batches: a signal, or a rank that wants to stop, is seen here by all of them.
void check_stop_requests(Run& run);
/// After fit, validate, test or predict: a signal that came too late for the loops. `together`: every rank calls.
void check_late_signal(Run& run, bool together);

}  // namespace levin::detail
