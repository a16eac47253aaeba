#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/distributed/collective.h"
#include "levin/nn/context/layout.h"

namespace levin {

/// How keys and values reach the queries of other ranks.
enum class ContextRotation {
  /// From rank to rank, while attention computes on those that are here: two shares are in memory at once.
  kRing,
  /// All at once: as many bytes in one message, and the keys and values of the whole sequence in memory.
  kAllGather,
};

/// Context parallelism: each rank of a group has some tokens of every sequence.
struct ContextParallelOptions {
  /// Ranks that share one sequence; 0: all ranks there are.
  int size = 0;
  ContextRotation rotate = ContextRotation::kRing;
  /// Causal attention: a rank has a chunk of the beginning and one of the end, so that all ranks have as much to do.
  /// False: one run of tokens each.
  bool balance = true;
};

/// The ranks that have one sequence together, and what they exchange. Lengths are of the whole sequence; tokens,
/// targets and masks come whole to every rank.
///
/// Gradients of parameters are to be averaged over these ranks and the copies of the model, as under "ddp".
class ContextShare {
 public:
  ContextShare(std::shared_ptr<Collective> ranks, ContextParallelOptions options, bool balanced);

  Collective& ranks() const { return *ranks_; }
  int size() const { return ranks_->size(); }
  int rank() const { return ranks_->rank(); }
  const ContextParallelOptions& options() const { return options_; }
  const ContextLayout& layout() const { return layout_; }

  /// Before a forward: an Error on every rank unless all have tokens of one shape. The first time their values are
  /// compared too: ranks of one sequence must see the same batch. Every rank must call.
  void check_tokens(const Tensor& tokens) const;
  /// This rank's share of a dimension of tokens.
  Tensor take(const Tensor& whole, int64_t dim) const;
  /// What blocks are given as their mask: that of the whole sequence, [B, T], or without one [0, T], which tells the
  /// length.
  static Tensor mask(const Tensor& given, int64_t length);
  /// The tokens of all ranks in the order of the sequence, which has `length` tokens; gradients are summed over the
  /// ranks. Every rank must call.
  Tensor gathered(const Tensor& own, int64_t dim, int64_t length) const;
  /// The mean over the tokens of all ranks: `loss` is that of this rank's, of which `count` (a tensor of one number)
  /// count. A rank may have none. Every rank must call.
  Tensor mean(const Tensor& loss, const Tensor& count) const;

 private:
  std::shared_ptr<Collective> ranks_;
  ContextParallelOptions options_;
  ContextLayout layout_;
  mutable bool compared_ = false;
};

using SharedContext = std::shared_ptr<const ContextShare>;

/// What a module must know or tell for its sequence to be spread; a module derives from it beside torch::nn::Module.
class ContextParallelPart {
 public:
  virtual ~ContextParallelPart() = default;

  /// Of a model: it takes whole sequences, and gives its modules those of this rank. Else it is an attention.
  virtual bool takes_sequence() const { return false; }
  /// Whether a position sees those behind it.
  virtual bool sees_both_ways() const { return false; }
  /// Why its sequence cannot be spread; empty: it can.
  virtual std::string why_not_spread() const { return {}; }
  /// From now on this rank has some tokens of each sequence.
  virtual void take_context(const SharedContext& share) = 0;
};

}  // namespace levin
