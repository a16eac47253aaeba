#pragma once

#include <memory>
#include <vector>

#include "levin/fabric/torch_calls.h"

namespace levin::detail {

/// The Fabric of a module that has one of the tensors; null: none. Without `plain` only those that scale gradients or
/// may shard parameters.
std::shared_ptr<FabricCore> owner_of(const std::vector<at::Tensor>& tensors, bool plain);
/// The Fabric that one of torch's optimizers was set up with, and what steps it now; null: none.
std::shared_ptr<FabricCore> core_with(const torch::optim::Optimizer& optimizer, Optimizer& outer);
/// Throws for a copy of a sharded module that clone() made: it has the shapes of one rank's shards, and nobody knows
/// it.
void check_no_copy_of_shards(const torch::nn::Module& module);
/// Whether a tensor is a shard at this moment; within a forward it may be full.
bool is_shard(const FabricCore& core, const at::Tensor& param);

}  // namespace levin::detail
