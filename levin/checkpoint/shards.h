#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "levin/distributed/collective.h"
#include "levin/nn/tensor/split.h"
#include "levin/optim/optimizer.h"

namespace levin {

/// Where this rank's shard lies in the full tensor: consecutive rows of the first dimension, or ranges of any one
/// dimension (`slice`). A shard may have no rows. (A full scalar has one row.)
struct ShardPlace {
  /// Of the full tensor.
  std::vector<int64_t> sizes;
  /// First row of this rank's shard; it has as many as its tensor has.
  int64_t start = 0;
  /// Of the ranks that hold this shard, the one that writes it.
  bool writes = true;
  /// How many rows; needed only for optimizer state of a parameter that is not sharded itself. When it is given, a
  /// tensor with another number of rows is refused.
  int64_t rows = -1;
  /// What of the full tensor is here; null: rows from `start` on.
  std::shared_ptr<const TensorSlice> slice = {};

  /// Rows of the full tensor.
  int64_t whole_rows() const { return sizes.empty() ? 1 : sizes[0]; }
  /// The shape of a shard with that many rows: [rows, ...]. A scalar's is [] or, without the row, [0].
  std::vector<int64_t> part_sizes(int64_t rows_here) const;
};

/// Tells which tensors of a state are shards of tensors that are spread over ranks.
class ShardMap {
 public:
  virtual ~ShardMap() = default;
  /// Null for a tensor that is full on every rank. By identity: the tensor that a module or an optimizer's state_dict
  /// holds.
  virtual const ShardPlace* find(const Tensor& tensor) const = 0;
  /// All ranks that save and load together.
  virtual Collective& group() const = 0;
  /// Where what optimizers keep for a parameter lies, whether it is there already or not; null when it is full.
  virtual const ShardPlace* find_slots(const Tensor& param) const { return find(param); }
  /// Takes notice of what optimizers have made since; called before tensors of a state are looked for.
  virtual void refresh() {}
  /// Whether a full state is saved by default, as one process writes it.
  virtual bool saves_full() const { return false; }
};

/// A ShardMap for strategies that shard modules and optimizers: it is told of parameters, and finds the optimizer state
/// of them when a state is saved. Keeps nothing alive.
class TensorShards : public ShardMap {
 public:
  /// `group` must outlive this object.
  explicit TensorShards(Collective& group) : group_(group) {}

  /// `param` is this rank's shard, and so is its optimizer state. Known by identity: its data may be exchanged, but
  /// while a state is saved or loaded it must be the shard. Adding it again changes the place.
  void add(const Tensor& param, ShardPlace place);
  /// `param` itself is full, but its optimizer state is sharded; `place.rows` says how many rows are here.
  void add_slots(const Tensor& param, ShardPlace place);
  /// State of this optimizer that has the shape of the shard takes the place of its parameter; "step" and other single
  /// numbers are full.
  void add_optimizer(const Optimizer& optimizer);
  void set_saves_full(bool full) { saves_full_ = full; }

  const ShardPlace* find(const Tensor& tensor) const override;
  Collective& group() const override { return group_; }
  const ShardPlace* find_slots(const Tensor& param) const override;
  /// Throws when an optimizer keeps a tensor of another shape for a sharded parameter: ranks would not have the same.
  void refresh() override;
  bool saves_full() const override { return saves_full_; }

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // keeps the address from being used again
    ShardPlace place;
  };
  using Places = std::unordered_map<const c10::TensorImpl*, Known>;

  Collective& group_;
  Places params_;
  Places full_params_;
  Places slots_;
  std::vector<std::weak_ptr<OptimizerImpl>> optimizers_;
  bool saves_full_ = false;
};

namespace detail {
/// Rows of a shard; a scalar has one.
inline int64_t rows_of(const Tensor& part) {
  return part.dim() == 0 ? 1 : part.size(0);
}
/// Whether a tensor can be the shard of which the place speaks.
bool fits(const Tensor& part, const ShardPlace& place);
/// What a slice has of a tensor on the host; `read_rows` reads rows of the whole from the one given on.
Tensor read_slice(const TensorSlice& slice, const at::TensorOptions& options,
                  const std::function<void(int64_t start, Tensor& into)>& read_rows);
}  // namespace detail

}  // namespace levin
