#pragma once

#include <cstdint>
#include <vector>

#include "levin/nn/interceptor.h"
#include "levin/nn/policy.h"
#include "levin/nn/tie.h"

namespace levin {

/// How activations wait in host memory.
struct OffloadOptions {
  /// Pinned memory: copies overlap with the computation. (It cannot be swapped out; the host needs enough of it.)
  bool pin_memory = true;
  /// Smaller tensors stay where they are.
  int64_t min_bytes = 1 << 16;
  /// Tensors that may be on their way to the host at once; the device holds them until they have arrived. When there
  /// are more, the computation waits for the oldest.
  int max_in_flight = 4;
};

/// What the chosen units save for backward goes to the host and comes back in backward, one unit ahead of its use.
/// Parameters, buffers and small tensors stay. On an accelerator the copies run on a stream of their own; on the CPU
/// they are plain copies. Lasts as long as the attachments. Does nothing inside of units that are checkpointed.
std::vector<Attachment> attach_activation_offload(torch::nn::Module& root, const UnitPolicy& policy,
                                                  const OffloadOptions& options = {});

/// The same, for the life of the model.
///
///     levin::offload_activations(model, levin::policy::by_class<Block>(), {.min_bytes = 1 << 20});
template <detail::ModuleOrHolder M>
void offload_activations(M& model, const UnitPolicy& policy, const OffloadOptions& options = {}) {
  for (auto& attachment : attach_activation_offload(detail::module_in(model), policy, options)) attachment.keep();
}

}  // namespace levin
