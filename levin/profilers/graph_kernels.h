#pragma once

#include <istream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "levin/profilers/graph_units.h"

namespace levin::detail {

/// The units of the kernels of a trace that replays of graphs launched.
class GraphKernels {
 public:
  /// Reads a trace as Kineto writes it.
  explicit GraphKernels(std::istream& trace);

  bool empty() const { return owners_.empty(); }
  /// What is to stand in the arguments of a kernel: kernels are numbered as the trace has them. Nothing for most.
  std::string arguments(int64_t kernel) const;

 private:
  struct Owned {
    std::shared_ptr<const GraphUnits> graph;
    GraphUnits::Owner owner;
  };
  std::map<int64_t, Owned> owners_;
};

}  // namespace levin::detail
