#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/distributed/collective.h"

namespace levin {

/// The ranks of a group laid out on named axes, and a group for each axis. The last axis runs fastest, so ranks that
/// are neighbours in it are neighbours in the run. One axis may be -1: what the others leave.
///
///     Mesh mesh(group, {{"data", 2}, {"tensor", 2}});      // ranks 0 1 | 2 3
///     mesh.group("tensor").all_reduce(activations);          // among 0 1, and among 2 3
///     mesh.coordinate("data");                               // 0 on ranks 0 1, 1 on ranks 2 3
///
/// Every rank of the group must make the same mesh.
class Mesh {
 public:
  Mesh(std::shared_ptr<Collective> group, std::vector<std::pair<std::string, int>> axes);

  /// The ranks that differ from this one in that axis only.
  Collective& group(std::string_view axis) const { return *find(axis).group; }
  std::shared_ptr<Collective> shared_group(std::string_view axis) const { return find(axis).group; }
  int size(std::string_view axis) const { return find(axis).size; }
  /// Where this rank stands on that axis.
  int coordinate(std::string_view axis) const { return find(axis).coordinate; }
  bool has(std::string_view axis) const;
  /// All ranks of the mesh.
  Collective& whole() const { return *whole_; }

 private:
  struct Axis {
    std::string name;
    int size = 1;
    int coordinate = 0;
    std::shared_ptr<Collective> group;
  };
  const Axis& find(std::string_view axis) const;

  std::shared_ptr<Collective> whole_;
  std::vector<Axis> axes_;
};

}  // namespace levin
