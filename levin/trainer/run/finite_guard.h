#pragma once

#include <cstdint>

#include "levin/optim/optimizer.h"

namespace levin::detail {

class Run;

/// What the host knows of inf and nan in the step under way. On the CPU, where nothing has to be waited for, loss and
/// gradients are looked at before each update, so that the update is not made. (LossWatch sees the losses of other
/// devices, some steps later.)
struct FiniteGuard {
  /// The loss of a batch of the window of accumulation was not finite, on this rank.
  bool bad_loss = false;
  /// Nor was the step, on any rank, and its update was left out.
  bool bad = false;
  /// The batch of such a step, or its window of accumulation, comes again when the run is resumed.
  bool comes_again = false;
};

/// The loss to differentiate. One that is not finite gets gradients that are not either, which tell the other ranks.
at::Tensor guarded_loss(Run& run, const at::Tensor& loss);
/// Called when the gradients of a step are complete; true: they or a loss of the window are not finite on some rank,
/// the run is to stop, and the gradients are gone. Every rank must call.
bool refuses_gradients(Run& run, Optimizer& optimizer);
/// Ends the run, or takes it back to its last good checkpoint, at the end of a batch when its step or an earlier one
/// was not finite. Every rank must call.
void check_finite(Run& run);
/// Called when the module is known: how losses are watched.
void begin_watch(Run& run);

}  // namespace levin::detail
