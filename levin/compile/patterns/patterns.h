#pragma once

#include <set>
#include <string>

#include "levin/compile/graph.h"

/// What is recognized in a step over forward and backward together, and replaced by one operator each. A pattern is a
/// file, a declaration here and a row of the table in patterns.cpp.
namespace levin::compile {

struct PatternContext {
  Graph& graph;
  /// Memory whose contents are others at each replay.
  const std::set<StorageId>& changing;
};

/// All of them, in order. What matched, a line each.
std::vector<std::string> apply_patterns(const PatternContext& context);

/// softmax(q k^T * scale, masked) v by single operators, without dropout, with its backward.
std::string fuse_attention(const PatternContext& context);
/// Log-softmax and the mean negative log-likelihood, with their backward, in place of the logits.
std::string fuse_cross_entropy(const PatternContext& context);

}  // namespace levin::compile
