#pragma once

#include <optional>

#include "levin/memory/estimate.h"

namespace levin {

class AnyBatch;
class TrainerContext;

namespace detail {

/// How the strategy of a run lays out state; nothing when no estimate knows it.
std::optional<StateLayout> memory_layout(TrainerContext& run);
/// What an estimate is to be asked so that it is about this run. An Error when no estimate knows its strategy or its
/// optimizer.
MemoryQuestion memory_question(TrainerContext& run);
/// What a training step of this run with such a batch is predicted to take. `make_step`: by default that of a module
/// which derives from PredictsMemory; nothing where there is none. An Error says why nothing can be predicted.
std::optional<MemoryEstimate> predict_memory(TrainerContext& run, const AnyBatch& batch,
                                             const MakeTrainingStep& make_step = {});
/// The estimate of a loop that lets go of the gradients of the step before only when its forward has ended, as the
/// Trainer does.
MemoryEstimate with_gradients_in_forward(MemoryEstimate estimate, const MemoryQuestion& question);

}  // namespace detail

}  // namespace levin
