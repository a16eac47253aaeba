#pragma once

#include <string>
#include <vector>

#include "levin/compile/graph.h"

namespace levin::compile {

/// Runs a graph: node by node, each storage in memory from its first mention to its last one.
class Program {
 public:
  explicit Program(Graph graph);

  /// On the current stream. What leaves is written where it was when the step was traced.
  void run();
  const Graph& graph() const { return graph_; }
  Graph& graph() { return graph_; }

 private:
  void run_operator(Node& node);
  void run_call(Node& node);
  const c10::Storage& memory_of(const View& view);

  Graph graph_;
  /// What is mentioned last by each node.
  std::vector<std::vector<StorageId>> ends_;
  std::vector<c10::Storage> memory_;
};

}  // namespace levin::compile
