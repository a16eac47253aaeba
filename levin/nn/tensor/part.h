#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/distributed/collective.h"

namespace levin {

/// What tensor parallelism does with a module.
enum class TensorRole {
  /// As it is, on every rank.
  kWhole,
  /// Its input is whole, and what it computes between is split: its gradient is summed over the ranks. Column layers
  /// below it share that sum.
  kRegion,
  /// A rank has some of the rows of the weight (out features), and of the bias.
  kColumn,
  /// A rank has some of the columns of the weight (in features); results are summed, then the bias is added.
  kRow,
  /// A column layer whose rows are queries, keys and values of the heads of the attention that it is in or below.
  kQkv,
  /// A row layer whose columns are heads.
  kHeadRow,
  /// A mixture of experts: a rank has a part of the width of each (TensorParallelPart::split_dim and take_width).
  kExperts,
  /// A rank has some of the rows of a table of tokens.
  kVocabEmbedding,
  /// A layer that knows how to give logits, or the loss, from some of its rows (TensorParallelPart::take_vocab).
  kVocabHead,
  /// With sequence_parallel: from here each rank has a part of the sequence, until the output of kSequenceEnd. Between
  /// regions norms, dropout and sums are of that part.
  kSequenceBegin,
  kSequenceEnd,
};

/// Modules by name, and what becomes of them. '*' stands for anything. The first rule of each kind (sequence or not)
/// that fits a name counts.
struct TensorRule {
  std::string pattern;
  TensorRole role;
};
using TensorPlan = std::vector<TensorRule>;

/// Model parallelism within layers: each rank of a group has a part of every large weight.
struct TensorParallelOptions {
  /// Ranks that share one model; 0: all ranks there are.
  int size = 0;
  /// Between the regions a rank holds size-th of the sequence: the same bytes are sent, and activations are divided.
  bool sequence_parallel = false;
  /// Empty: what the models say of themselves (TensorParallelPart::tensor_plan).
  TensorPlan plan = {};
};

/// The ranks that have one model together.
using TensorRanks = std::shared_ptr<Collective>;

/// Some of `total` things: the first ranks have one more where it does not divide.
struct Share {
  int64_t first = 0, count = 0;

  static Share of(int64_t total, int64_t ranks, int64_t rank) {
    const auto each = total / ranks, rest = total % ranks;
    return {rank * each + std::min(rank, rest), each + (rank < rest ? 1 : 0)};
  }
};

struct HeadCounts {
  int64_t heads = 0, kv_heads = 0, width = 0;
};

/// The heads of a rank. Where there are fewer heads of keys than ranks, several ranks have the same one.
struct HeadShare {
  Share heads, kv_heads;
  HeadCounts all;

  /// An Error that begins with `name` where a rank would have none.
  static HeadShare of(const HeadCounts& all, int64_t ranks, int64_t rank, const std::string& name);
};

/// The rows of a rank in a table of tokens.
struct VocabShare {
  TensorRanks ranks;
  Share rows;
  int64_t all = 0;

  static VocabShare of(int64_t all, TensorRanks ranks);
  /// Rows of each rank.
  std::vector<int64_t> counts() const;
};

/// What a module must know or tell to be split; a module derives from it beside torch::nn::Module.
class TensorParallelPart {
 public:
  virtual ~TensorParallelPart() = default;

  /// Of a model: how it is split, by names below it. Sequence rules too.
  virtual TensorPlan tensor_plan() const { return {}; }
  /// Of an attention: what it has; no heads: it is none.
  virtual HeadCounts heads() const { return {}; }
  /// Its weights have these heads only from now on. An attention is told, and the model around it.
  virtual void take_heads(const HeadShare& /*share*/) {}
  /// Of a head: its weight has these rows only from now on.
  virtual void take_vocab(const std::shared_ptr<const VocabShare>& /*share*/) {}
  /// Of a model or an attention: the ranks that have it together.
  virtual void take_ranks(const TensorRanks& /*ranks*/) {}
  /// Of a layer that may be a row layer: its bias, which is added once.
  virtual at::Tensor* row_bias() { return nullptr; }
  /// Of a region: whether it draws random numbers in training before its row layer. They differ from rank to rank.
  virtual bool draws() const { return false; }
  /// Whether it has experts: see kExperts.
  virtual bool has_width() const { return false; }
  /// Of experts: the dimension of a parameter of that name that is split; -1: every rank has all of it.
  virtual int64_t split_dim(const std::string& /*parameter*/) const { return -1; }
  /// Of experts: these ranks have the rest. `sequence`: a rank is given its part of the sequence, and gives its part.
  virtual void take_width(const TensorRanks& /*ranks*/, bool /*sequence*/) {}
};

}  // namespace levin
