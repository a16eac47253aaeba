#pragma once

#include <cstdint>

namespace levin::detail {

class Run;

/// Takes the weights, the states of the optimizers and what averages weights back to those of the last good checkpoint
/// that was written before a batch. Batches, counters, schedulers and random numbers continue: the steps since that
/// checkpoint are left out. A NonFiniteError when there is none, or when the run has gone back max_rollbacks times.
/// `what`: "the loss is". Every rank must call.
void roll_back(Run& run, int64_t epoch, int64_t batch, const char* what);

}  // namespace levin::detail
