#pragma once

#include <string>
#include <vector>

#include "levin/nn/checkpointing/activation_offload.h"
#include "levin/nn/interceptor.h"
#include "levin/nn/policy.h"
#include "levin/nn/tie.h"

namespace levin {

/// How a unit's activations are computed again in backward.
struct CheckpointOptions {
  /// Random numbers are drawn again as in forward, on the CPU and on the devices of the unit.
  bool preserve_rng_state = true;
  /// The unit's inputs wait in host memory ("CPU checkpointing").
  bool cpu_offload = false;
  OffloadOptions offload = {};
  /// Running again ends where the last tensor that backward needs is there. It leaves the forward by an exception that
  /// is no std::exception: turn this off for a forward that is noexcept or catches everything.
  bool early_stop = true;
  /// Every recomputed tensor must have the shape, dtype and device of the first one, and there must be as many.
  bool determinism_check = true;
  /// Operators whose results are kept in place of computing them again ("aten::mm": all overloads).
  std::vector<std::string> keep_results_of = {};

  /// For `keep_results_of`: matrix products, convolutions and fused attention, most of the arithmetic of a
  /// transformer.
  static std::vector<std::string> matrix_products();
};

/// Activation checkpointing of the units that the policy chooses below `root`: a unit keeps its inputs alone, and runs
/// its forward again in backward to get what it did not keep. Gradients are bit by bit those without it, at the price
/// of a second forward. Lasts as long as the attachments.
///
/// The forward must do the same both times: the same shapes, no changes of its inputs in place. Autocast, the default
/// dtype and random numbers are as they were; buffers that forward changes (running statistics) change once. Nested
/// units that are checkpointed too are recomputed one by one. Without gradients nothing happens.
std::vector<Attachment> attach_checkpointing(torch::nn::Module& root, const UnitPolicy& policy,
                                             const CheckpointOptions& options = {});

/// The same, for the life of the model.
///
///     levin::checkpoint_activations(model, levin::policy::by_class<Block>());
template <detail::ModuleOrHolder M>
void checkpoint_activations(M& model, const UnitPolicy& policy, const CheckpointOptions& options = {}) {
  for (auto& attachment : attach_checkpointing(detail::module_in(model), policy, options)) attachment.keep();
}

}  // namespace levin
