#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "levin/generate/decode_graphs.h"
#include "levin/generate/options.h"
#include "levin/models/decoder.h"

namespace levin::detail {

using at::Tensor;

/// max_new_tokens, or less where the context of the model ends.
int64_t most_new_tokens(const models::DecoderOptions& model, const GenerateOptions& options, int64_t prompt_length);

/// Whether the next step begins while the tokens of this one are on their way to the host: where steps are CUDA graphs,
/// wherever it can, or never.
enum class RunAhead { kWithGraphs, kAlways, kNever };

struct DecodeBatchOptions {
  /// Rows that can be there at once, and tokens of one.
  int64_t rows = 1, capacity = 1;
  /// Tokens of prompts that go through the model together.
  int64_t prefill_chunk = 2048;
  /// Replay a decode step as a CUDA graph.
  bool graphs = true;
  models::CacheDtype dtype = models::CacheDtype::kAuto;
  RunAhead run_ahead = RunAhead::kWithGraphs;
  /// What captures steps. Null: CUDA, where the model is there.
  std::shared_ptr<GraphDevice> graph_device = nullptr;
};

/// Rows that decode together, numbered from 0. They come and go at any time.
class DecodeBatch {
 public:
  DecodeBatch(models::Decoder model, const DecodeBatchOptions& options);
  ~DecodeBatch();

  int64_t size() const { return static_cast<int64_t>(lengths_.size()); }
  /// Tokens of a row that are in the cache.
  int64_t length(int64_t row) const { return lengths_[static_cast<size_t>(row)]; }
  int64_t room() const { return options_.rows - size(); }
  const models::DecoderCache& cache() const { return cache_; }

  /// Appends a row for each prompt: the logits behind their last tokens, float32 [prompts, V].
  Tensor append(std::span<const std::vector<int64_t>* const> prompts);
  /// One more token of each row: float32 logits [size, V], which last until the next call.
  Tensor decode(std::span<const int64_t> tokens);
  /// The same for tokens that the device has, int64 [size]. The host does not wait for them. Logits may be in the dtype
  /// of the model.
  Tensor decode(const Tensor& ids);
  /// The same, and the likeliest tokens: with graphs they are part of the step. Their ids last until the next call,
  /// `found` until the next but one. A step that begins with the ids of the last one begins at once.
  GreedyStep decode_greedy(const Tensor& ids);
  /// Whether a caller is to decode the ids of tokens before it knows them.
  bool runs_ahead() const { return runs_ahead_; }
  /// Several more tokens of each row, one at least: float32 logits [all tokens, V], row by row.
  Tensor decode_several(std::span<const std::vector<int64_t>> tokens);
  /// Forgets the tokens of a row from `length` on.
  void truncate(int64_t row, int64_t length);
  /// Takes a row away; the last one gets its number.
  void remove(int64_t row);
  /// Row i becomes a copy of what row rows[i] was; there may be more rows than before.
  void select(std::span<const int64_t> rows);

 private:
  Tensor logits_of(const Tensor& hidden);
  /// The length of the longest row with one more token. Throws an Error where ids are not one for each row, or rows are
  /// full.
  int64_t longest_behind(const Tensor& ids) const;
  int64_t longest_behind() const;
  /// A step without a graph: int64 tokens [size] on the device.
  Tensor run(const Tensor& ids, int64_t longest);
  /// int64 [values].
  Tensor on_device(std::span<const int64_t> values) const;
  /// All rows have one more token.
  void count_step();
  /// Prompts of a chunk at most, right padded.
  Tensor append_group(std::span<const std::vector<int64_t>* const> prompts);
  /// One of any length.
  Tensor append_long(const std::vector<int64_t>& prompt);

  models::Decoder model_;
  DecodeBatchOptions options_;
  models::DecoderCache cache_;
  std::vector<int64_t> lengths_;
  std::unique_ptr<DecodeGraphs> graphs_;
  bool runs_ahead_ = false;
};

}  // namespace levin::detail
