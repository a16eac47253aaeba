#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/nn/tensor/part.h"

namespace torch::nn {
class Module;
}

namespace levin {

class Unit;

/// What a rank has of a tensor: ranges of one dimension, one behind the other.
struct TensorSlice {
  int64_t dim = 0;
  std::vector<Share> ranges;
  /// Of the whole tensor.
  std::vector<int64_t> whole;
  /// Of other dimensions than the first: the rows that are here; count -1: all.
  Share rows = {0, -1};
  /// How many of the ranges this rank writes for all that have them; -1: every one. The others are another rank's.
  int64_t written = -1;

  /// A block of the whole, and where it begins in what is here.
  struct Box {
    std::vector<int64_t> start, sizes;
    int64_t at = 0;
  };

  std::vector<int64_t> sizes() const;
  /// The ranges as blocks.
  std::vector<Box> boxes() const;
  /// Of the ranges that this rank writes.
  TensorSlice written_part() const;
  /// Rows [first, first + count) of what is here.
  TensorSlice of_rows(int64_t first, int64_t count) const;
  /// A copy of this rank's shard.
  at::Tensor of(const at::Tensor& all) const;
  /// Writes the part into its places in the whole.
  void put(const at::Tensor& part, at::Tensor& all) const;
};

/// A module whose tensors are spread over ranks.
class TensorSplit {
 public:
  struct Parameter {
    /// The first name that it has.
    std::string name;
    at::Tensor tensor;
    /// Without ranges where every rank has all of it.
    TensorSlice slice;
    /// Every rank has all of it, and its gradient is the sum of those of the ranks: each saw some of the heads, or
    /// some of the sequence.
    bool sums_grad = false;
    /// Rows of this rank's shard that other ranks have too: keys and values of heads that several ranks share. Their
    /// gradients are summed. Empty: there are none.
    Share shared = {};
    /// Of the ranks that have them, this one is the first.
    bool owns_shared = true;

    bool is_split() const { return !slice.ranges.empty(); }
  };

  TensorSplit(TensorRanks ranks, TensorParallelOptions options)
      : ranks_(std::move(ranks)), options_(std::move(options)) {}

  Collective& ranks() const { return *ranks_; }
  const TensorRanks& shared_ranks() const { return ranks_; }
  const TensorParallelOptions& options() const { return options_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// By identity; null for what does not belong to the module.
  const Parameter* find(const at::Tensor& parameter) const;
  /// The whole tensor of which `part` is this rank's (the parameter itself, its gradient, a state of its optimizer), on
  /// every rank. Every rank must call.
  at::Tensor whole(const Parameter& parameter, const at::Tensor& part) const;

 private:
  friend class TensorSplitter;
  TensorRanks ranks_;
  TensorParallelOptions options_;
  std::vector<Parameter> parameters_;
};

/// Whether values will be there.
enum class SplitValues {
  /// Taken from the module; deferred parameters are materialized one by one.
  kTaken,
  /// Parameters are only allocated: they will be read.
  kRead,
};

/// Leaves this rank's shard of the parameters in a module and attaches what makes it compute as a whole one. Every rank
/// must call, with the same module. What cannot be split is an Error that names it, and nothing is changed then.
/// `prepare` is called with every parameter, whole, before the next one is touched.
///
///     auto split = levin::split_tensors(*model, {.size = 4}, mesh.shared_group("tp"));
std::shared_ptr<TensorSplit> split_tensors(torch::nn::Module& module, const TensorParallelOptions& options,
                                           const TensorRanks& ranks, SplitValues values = SplitValues::kTaken,
                                           const std::function<void(const at::Tensor&)>& prepare = {});

/// Whether each rank sees a part of the sequence in that block (sequence_parallel).
bool has_part_of_sequence(const Unit& block);

}  // namespace levin
