#pragma once

#include <optional>
#include <set>
#include <vector>

#include "levin/compile/graph.h"
#include "levin/compile/group.h"

namespace levin::compile {

/// Several operators of a graph as one group: all compute on the elements of one iteration space, and read what others
/// of them make at the very same element. Made again from a list of nodes each time one is added.
class Draft {
 public:
  /// A tensor that the group reads or writes, seen along the dimensions of the group.
  struct Slot {
    View view;
    Access access;  // from the view's offset on
    bool written = false;
  };
  /// A result of a node.
  struct Made {
    View view;
    Access access;
    int value = 0;
    bool recomputed = false;
  };

  /// The group of these nodes (by place, ascending); `recomputed` ones are there for what reads them alone. Nothing
  /// where they do not fit into one.
  static std::optional<Draft> make(const Graph& graph, const std::vector<int32_t>& nodes,
                                   const std::set<int32_t>& recomputed = {});

  /// The group with stores of what is wanted of `made`, simplified; `slots` are the tensors of its kernel, those that
  /// are read first.
  Group finished(const std::vector<bool>& is_wanted, std::vector<Slot>& slots) const;

  const Group& group() const { return group_; }
  const std::vector<Made>& made() const { return made_; }
  const std::vector<Slot>& loads() const { return loads_; }
  /// Bytes read, each tensor once.
  int64_t bytes_read() const;
  bool has_reduction() const { return has_reduction_; }

 private:
  friend class Lower;
  Group group_;
  /// Dimensions that row reductions reduce.
  std::vector<bool> reduced_;
  bool has_reduction_ = false;
  std::vector<Slot> loads_;
  std::vector<Made> made_;
};

}  // namespace levin::compile
