#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "levin/generate/rank_passes.h"
#include "levin/models/decoder.h"

namespace levin::detail {

using at::Tensor;

class DecodeGraphs;

struct PagedBatchOptions {
  int64_t blocks = 1, block_tokens = 16;
  /// Tokens of a row, at most.
  int64_t positions = 1;
  models::CacheDtype dtype = models::CacheDtype::kAuto;
  bool graphs = true;
};

/// The sizes of rank 0, on every rank of the model.
PagedBatchOptions of_first_rank(const models::Decoder& model, PagedBatchOptions sizes);

/// Passes of rows through a model whose keys and values lie in blocks. Block 0 belongs to nobody: rows that fill up a
/// graph write there.
class PagedBatch {
 public:
  PagedBatch(models::Decoder model, const PagedBatchOptions& options);
  ~PagedBatch();

  /// Tokens of each row: float32 logits behind the last `kept` ones of each, in one list [all kept, V].
  Tensor prefill(std::span<const PagedRow> rows);
  /// One token of each row.
  Tensor decode(std::span<const PagedRow> rows);
  /// Some tokens of each row: float32 logits behind every one of them, in one list.
  Tensor decode_several(std::span<const PagedRow> rows);
  /// Captures decode steps of 1, 2, 4, ... rows up to `rows` that see up to `slots` slots. Nothing without graphs.
  void warm_up(int64_t rows, int64_t slots);
  /// Whether a row cannot go through the model with others: dynamic rotary scaling has angles for each length of a
  /// prompt.
  bool goes_alone(int64_t prompt_length) const;
  const models::DecoderCache& cache() const { return cache_; }

  /// Of a model that ranks have together: rank 0 says that it is there, and at the end that no pass follows.
  void tell(PassKind kind) const;
  /// The other ranks: runs the passes that rank 0 runs, until it ends.
  void follow();

 private:
  Tensor run_prefill(std::span<const PagedRow> rows, bool all);
  Tensor run_decode(std::span<const PagedRow> rows);
  Tensor logits_of(const Tensor& hidden);
  /// int64 [rows, blocks of `slots` slots] on the device.
  Tensor table(std::span<const PagedRow> rows, int64_t slots) const;

  models::Decoder model_;
  PagedBatchOptions options_;
  models::DecoderCache cache_;
  std::unique_ptr<DecodeGraphs> graphs_;
};

}  // namespace levin::detail
