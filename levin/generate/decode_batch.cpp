#include "levin/generate/decode_batch.h"

#include <algorithm>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "levin/core/error.h"
#include "levin/nn/weight_stream.h"

namespace levin::detail {
namespace {

int64_t length_of(const std::vector<int64_t>* prompt) {
  return static_cast<int64_t>(prompt->size());
}

}  // namespace

int64_t most_new_tokens(const models::DecoderOptions& model, const GenerateOptions& options, int64_t prompt_length) {
  if (!model.bounded()) return options.max_new_tokens;
  return std::min(options.max_new_tokens, model.max_positions - prompt_length + 1);
}

DecodeBatch::DecodeBatch(models::Decoder model, const DecodeBatchOptions& options)
    : model_(std::move(model)),
      options_(options),
      cache_(model_->options, graph_rows(options.rows), options.capacity, model_->tokens->weight.options(),
             {.dtype = options.dtype}) {
  // Weights that come and go have no fixed place that a graph could have, and ranks talk to each other in a step.
  const bool stays = !has_streamed_units(*model_) && !model_->ranks;
  if (options.graphs && stays) {
    auto device = options.graph_device;
    if (!device && model_->tokens->weight.is_cuda()) device = cuda_graphs(model_->tokens->weight.device());
    if (device) graphs_ = std::make_unique<DecodeGraphs>(model_, cache_, std::move(device));
  }
  runs_ahead_ =
      stays && (options.run_ahead == RunAhead::kAlways || (options.run_ahead == RunAhead::kWithGraphs && graphs_));
}

DecodeBatch::~DecodeBatch() = default;

Tensor DecodeBatch::logits_of(const Tensor& hidden) {
  return model_->head(hidden.unsqueeze(1)).squeeze(1).to(at::kFloat);
}

Tensor DecodeBatch::append(std::span<const std::vector<int64_t>* const> prompts) {
  LEVIN_CHECK(static_cast<int64_t>(prompts.size()) <= room(), "[generate] ", prompts.size(), " prompts, room for ",
              room());
  std::vector<Tensor> logits;
  for (size_t begin = 0; begin < prompts.size();) {
    if (length_of(prompts[begin]) > options_.prefill_chunk) {
      logits.push_back(append_long(*prompts[begin++]));
      continue;
    }
    // As many as fit in a chunk, with their padding.
    auto end = begin;
    for (int64_t longest = 0; end < prompts.size(); ++end) {
      longest = std::max(longest, length_of(prompts[end]));
      if (end > begin && longest * static_cast<int64_t>(end - begin + 1) > options_.prefill_chunk) break;
    }
    logits.push_back(append_group(prompts.subspan(begin, end - begin)));
    begin = end;
  }
  return at::cat(logits);
}

Tensor DecodeBatch::append_group(std::span<const std::vector<int64_t>* const> prompts) {
  const auto count = static_cast<int64_t>(prompts.size());
  const auto device = model_->tokens->weight.device();
  int64_t longest = 0;
  for (const auto* prompt : prompts) longest = std::max(longest, length_of(prompt));
  LEVIN_CHECK(longest <= options_.capacity, "[generate] a prompt of ", longest, " tokens, room for ",
              options_.capacity);
  auto ids = at::zeros({count, longest}, at::kLong);
  std::vector<int64_t> lengths, last;
  for (int64_t i = 0; i < count; ++i) {
    const auto& prompt = *prompts[static_cast<size_t>(i)];
    std::copy(prompt.begin(), prompt.end(), ids.mutable_data_ptr<int64_t>() + i * longest);
    lengths.push_back(length_of(&prompt));
    last.push_back(i * longest + lengths.back() - 1);
  }
  const auto positions =
      at::arange(longest, at::TensorOptions().dtype(at::kLong).device(device)).expand({count, longest});
  const auto hidden = model_->hidden_states(
      ids.to(device), cache_, {.positions = positions, .seen = 0, .first_row = size(), .lengths = lengths});
  lengths_.insert(lengths_.end(), lengths.begin(), lengths.end());
  return logits_of(hidden.flatten(0, 1).index_select(0, at::tensor(last, at::kLong).to(device)));
}

Tensor DecodeBatch::append_long(const std::vector<int64_t>& prompt) {
  const auto length = length_of(&prompt);
  LEVIN_CHECK(length <= options_.capacity, "[generate] a prompt of ", length, " tokens, room for ", options_.capacity);
  const auto ids = at::tensor(prompt, at::kLong).unsqueeze(0).to(model_->tokens->weight.device());
  Tensor hidden;
  for (int64_t begin = 0; begin < length; begin += options_.prefill_chunk) {
    const auto end = std::min(length, begin + options_.prefill_chunk);
    hidden = model_->hidden_states(ids.slice(1, begin, end), cache_,
                                   {.positions = at::arange(begin, end, ids.options()).unsqueeze(0),
                                    .seen = begin == 0 ? 0 : end,
                                    .first_row = size(),
                                    .lengths = {length}});
  }
  lengths_.push_back(length);
  return logits_of(hidden.select(1, -1));
}

int64_t DecodeBatch::longest_behind() const {
  const auto longest = *std::max_element(lengths_.begin(), lengths_.end()) + 1;
  LEVIN_CHECK(longest <= options_.capacity, "[generate] a row of ", longest, " tokens, room for ", options_.capacity);
  return longest;
}

int64_t DecodeBatch::longest_behind(const Tensor& ids) const {
  LEVIN_CHECK(ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.size(0) == size() && size() > 0,
              "[generate] tokens must be int64 [", size(), "], got ", ids.scalar_type(), " ", ids.sizes());
  return longest_behind();
}

Tensor DecodeBatch::decode(std::span<const int64_t> tokens) {
  LEVIN_CHECK(static_cast<int64_t>(tokens.size()) == size() && size() > 0, "[generate] ", tokens.size(), " tokens for ",
              size(), " rows");
  const auto longest = longest_behind();
  auto logits = graphs_ ? graphs_->decode(tokens, lengths_, longest).to(at::kFloat) : run(on_device(tokens), longest);
  count_step();
  return logits;
}

Tensor DecodeBatch::decode(const Tensor& ids) {
  const auto longest = longest_behind(ids);
  auto logits = graphs_ ? graphs_->decode(ids, lengths_, longest) : run(ids, longest);
  count_step();
  return logits;
}

GreedyStep DecodeBatch::decode_greedy(const Tensor& ids) {
  if (!graphs_) {
    const auto logits = decode(ids);
    return {logits, kernels::greedy_tokens(logits, logits)};
  }
  auto step = graphs_->decode_greedy(ids, lengths_, longest_behind(ids));
  count_step();
  return step;
}

Tensor DecodeBatch::run(const Tensor& ids, int64_t longest) {
  const auto hidden =
      model_->hidden_states(ids.unsqueeze(1), cache_, {.positions = on_device(lengths_).unsqueeze(1), .seen = longest});
  return logits_of(hidden.squeeze(1));
}

Tensor DecodeBatch::on_device(std::span<const int64_t> values) const {
  return at::tensor(at::ArrayRef<int64_t>(values.data(), values.size()), at::kLong).to(model_->tokens->weight.device());
}

void DecodeBatch::count_step() {
  for (auto& length : lengths_) ++length;
}

Tensor DecodeBatch::decode_several(std::span<const std::vector<int64_t>> tokens) {
  LEVIN_CHECK(static_cast<int64_t>(tokens.size()) == size() && size() > 0, "[generate] tokens of ", tokens.size(),
              " rows for ", size(), " rows");
  std::vector<int64_t> firsts, ids, positions, kept;
  int64_t longest = 0, seen = 0;
  for (const auto& row : tokens) longest = std::max(longest, length_of(&row));
  for (size_t i = 0; i < tokens.size(); ++i) {
    LEVIN_CHECK(!tokens[i].empty(), "[generate] row ", i, " has no tokens");
    firsts.push_back(tokens[i].front());
    // What fills a row up lies behind its tokens, where the next ones are written before they are seen.
    for (int64_t t = 0; t < longest; ++t) {
      const bool real = t < length_of(&tokens[i]);
      if (real) kept.push_back(static_cast<int64_t>(ids.size()));
      ids.push_back(real ? tokens[i][static_cast<size_t>(t)] : 0);
      positions.push_back(lengths_[i] + t);
    }
    seen = std::max(seen, lengths_[i] + longest);
  }
  if (longest == 1) return decode(firsts);
  LEVIN_CHECK(seen <= options_.capacity, "[generate] a row of ", seen, " tokens, room for ", options_.capacity);
  const auto device = model_->tokens->weight.device();
  const auto matrix = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).view({size(), longest}).to(device);
  };
  const auto hidden =
      model_->hidden_states(matrix(ids), cache_, {.positions = matrix(positions), .seen = seen}).flatten(0, 1);
  for (size_t i = 0; i < tokens.size(); ++i) lengths_[i] += length_of(&tokens[i]);
  if (kept.size() == ids.size()) return logits_of(hidden);
  return logits_of(hidden.index_select(0, at::tensor(kept, at::kLong).to(device)));
}

void DecodeBatch::truncate(int64_t row, int64_t length) {
  LEVIN_CHECK(length <= this->length(row), "[generate] row ", row, " has ", this->length(row), " tokens, not ", length);
  lengths_[static_cast<size_t>(row)] = length;
}

void DecodeBatch::remove(int64_t row) {
  const auto last = size() - 1;
  if (row != last) {
    cache_.copy_row(last, row, length(last));
    lengths_[static_cast<size_t>(row)] = lengths_.back();
  }
  lengths_.pop_back();
}

void DecodeBatch::select(std::span<const int64_t> rows) {
  LEVIN_CHECK(static_cast<int64_t>(rows.size()) <= options_.rows, "[generate] ", rows.size(), " rows, room for ",
              options_.rows);
  std::vector<int64_t> lengths;
  for (const auto row : rows) lengths.push_back(length(row));
  const auto index = at::tensor(at::ArrayRef<int64_t>(rows.data(), rows.size()), at::kLong);
  cache_.select_rows(index.to(model_->tokens->weight.device()), *std::max_element(lengths_.begin(), lengths_.end()));
  lengths_ = std::move(lengths);
}

}  // namespace levin::detail
