#pragma once

#include <memory>

#include "levin/nn/context/share.h"

namespace torch::nn {
class Module;
}

namespace levin {

/// Spreads the sequences of a model over the ranks: from now on each of them computes its own tokens, and
/// attention sees those of all (levin/nn/context/attention.h). Every rank calls the model with the same batch and gets
/// the same loss, or outputs of the whole sequence. Parameters stay as they are. What cannot be spread is an Error that
/// names it, and nothing is changed then. Every rank must call.
///
///     levin::split_context(*model, {.size = 4}, mesh.shared_group("context"));
///     auto loss = model(tokens, levin::models::next_tokens(tokens));   // tokens [B, T] whole
///     loss.backward();                                                 // average gradients over the ranks
SharedContext split_context(torch::nn::Module& module, const ContextParallelOptions& options,
                            const std::shared_ptr<Collective>& ranks);

}  // namespace levin
