#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/distributed/collective.h"

namespace levin {

/// Where this rank's part of a tensor lies in the whole: consecutive rows of the first dimension. A part may have no
/// rows. (A whole scalar has one row.)
struct ShardPlace {
  /// Of the whole tensor.
  std::vector<int64_t> sizes;
  /// First row of this rank's part; it has as many as its tensor has.
  int64_t start = 0;
  /// One of the ranks that hold this part: the one that writes it.
  bool writes = true;
};

/// Tells which tensors of a state are parts of larger ones that are spread over ranks.
class ShardMap {
 public:
  virtual ~ShardMap() = default;
  /// Null for a tensor that is whole on every rank. By identity: the tensor that a module or an optimizer's state_dict
  /// holds.
  virtual const ShardPlace* find(const Tensor& tensor) const = 0;
  /// All ranks that save and load together.
  virtual Collective& group() const = 0;
};

}  // namespace levin
