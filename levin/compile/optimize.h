#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "levin/compile/graph.h"

namespace levin::compile {

/// All passes, in order. Memory of `changing` storages has other contents at each replay: inputs of the step.
std::vector<std::string> optimize(Graph& graph, const std::set<StorageId>& changing);

/// Takes away what nobody reads.
std::string remove_dead(Graph& graph);
/// Reads the original where a copy is laid out like it and neither is written again.
std::string fold_copies(Graph& graph);
/// Computes once what is computed twice.
std::string share_equal(Graph& graph);
/// What a tensor is filled with does not depend on the tensor it is like.
std::string fill_constants(Graph& graph);

/// The contents of a value that is the same at each step: computed from memory that enters, is not written and does not
/// change. Small graphs only. What it depends on is added to `storages`.
std::optional<Tensor> constant_of(const Graph& graph, const GraphIndex& index, const View& view,
                                  const std::set<StorageId>& changing, std::set<StorageId>& storages);

}  // namespace levin::compile
