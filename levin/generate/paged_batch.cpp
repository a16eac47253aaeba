#include "levin/generate/paged_batch.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "levin/core/error.h"
#include "levin/generate/decode_graphs.h"
#include "levin/nn/weight_stream.h"

namespace levin::detail {
namespace {

int64_t longest_of(std::span<const PagedRow> rows) {
  int64_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.end);
  return longest;
}

}  // namespace

PagedBatchOptions of_first_rank(const models::Decoder& model, PagedBatchOptions sizes) {
  if (!model->ranks) return sizes;
  auto words =
      at::tensor({sizes.blocks, sizes.block_tokens, sizes.positions, static_cast<int64_t>(sizes.dtype)}, at::kLong);
  model->ranks->broadcast(words);
  const auto* at = words.const_data_ptr<int64_t>();
  return {.blocks = at[0],
          .block_tokens = at[1],
          .positions = at[2],
          .dtype = static_cast<models::CacheDtype>(at[3]),
          .graphs = sizes.graphs};
}

PagedBatch::PagedBatch(models::Decoder model, const PagedBatchOptions& options)
    : model_(std::move(model)),
      options_(options),
      cache_(model_->options, options.blocks, options.block_tokens, model_->tokens->weight.options(),
             {.dtype = options.dtype, .positions = options.positions}) {
  if (options.graphs && model_->tokens->weight.is_cuda() && !has_streamed_units(*model_) && !model_->ranks)
    graphs_ = std::make_unique<DecodeGraphs>(model_, cache_, cuda_graphs(model_->tokens->weight.device()));
}

PagedBatch::~PagedBatch() = default;

bool PagedBatch::goes_alone(int64_t prompt_length) const {
  const auto& model = model_->options;
  return model.positions == "rotary" && model.rotary_scaling.type == "dynamic" &&
         prompt_length > models::trained_positions(model);
}

Tensor PagedBatch::logits_of(const Tensor& hidden) {
  return model_->head(hidden.unsqueeze(1)).squeeze(1).to(at::kFloat);
}

Tensor PagedBatch::table(std::span<const PagedRow> rows, int64_t slots) const {
  const auto width = (slots + options_.block_tokens - 1) / options_.block_tokens;
  auto table = at::zeros({static_cast<int64_t>(rows.size()), width}, at::kLong);
  auto* to = table.mutable_data_ptr<int64_t>();
  for (const auto& row : rows) {
    std::copy_n(row.blocks->begin(), std::min(width, static_cast<int64_t>(row.blocks->size())), to);
    to += width;
  }
  return table.to(model_->tokens->weight.device());
}

Tensor PagedBatch::prefill(std::span<const PagedRow> rows) {
  if (model_->ranks) tell_pass(*model_->ranks, PassKind::kPrefill, rows);
  return run_prefill(rows, false);
}

Tensor PagedBatch::decode_several(std::span<const PagedRow> rows) {
  if (model_->ranks) tell_pass(*model_->ranks, PassKind::kDecodeSeveral, rows);
  return run_prefill(rows, true);
}

Tensor PagedBatch::run_prefill(std::span<const PagedRow> rows, bool all) {
  const auto count = static_cast<int64_t>(rows.size());
  const auto device = model_->tokens->weight.device();
  int64_t width = 0;
  bool is_fresh = true;
  for (const auto& row : rows) {
    width = std::max(width, row.end - row.begin);
    is_fresh = is_fresh && row.begin == 0;
    // Behind the prompt a token has the angles of its own time.
    LEVIN_CHECK(all || rows.size() == 1 || !goes_alone(row.prompt_length),
                "[engine] a row that goes alone has company");
  }
  auto ids = at::empty({count, width}, at::kLong), positions = at::empty({count, width}, at::kLong);
  auto *id = ids.mutable_data_ptr<int64_t>(), *position = positions.mutable_data_ptr<int64_t>();
  std::vector<int64_t> kept;  // the tokens that logits are for
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    const auto length = row.end - row.begin;
    for (auto t = all ? 0 : length - row.kept; t < length; ++t) kept.push_back(static_cast<int64_t>(i) * width + t);
    // What fills a row up is its last token once more. Rows that see themselves only see it behind them, and it writes
    // behind them, to slots that are written again or to block 0. Else it is at the place of the last token, sees what
    // that sees, and writes the same numbers.
    for (int64_t t = 0; t < width; ++t) {
      const auto at = std::min(row.begin + t, row.end - 1);
      *id++ = (*row.ids)[static_cast<size_t>(at)];
      *position++ = is_fresh ? t : at;
    }
  }
  // Dynamic scaling: tokens of a prompt have the angles of its length, tokens behind it those of their own time.
  std::vector<int64_t> lengths;
  if (!all && count == 1 && rows[0].begin < rows[0].prompt_length) lengths = {rows[0].prompt_length};
  const auto longest = longest_of(rows);
  const auto hidden = model_->hidden_states(ids.to(device), cache_,
                                            {.positions = positions.to(device),
                                             .seen = is_fresh ? 0 : longest,
                                             .blocks = table(rows, longest),
                                             .lengths = lengths});
  return logits_of(hidden.flatten(0, 1).index_select(0, at::tensor(kept, at::kLong).to(device)));
}

Tensor PagedBatch::decode(std::span<const PagedRow> rows) {
  if (model_->ranks) tell_pass(*model_->ranks, PassKind::kDecode, rows);
  return run_decode(rows);
}

void PagedBatch::tell(PassKind kind) const {
  if (model_->ranks) tell_pass(*model_->ranks, kind, {});
}

void PagedBatch::follow() {
  for (;;) {
    const auto pass = hear_pass(*model_->ranks);
    switch (pass.kind) {
      case PassKind::kNone:
        break;
      case PassKind::kPrefill:
        run_prefill(pass.rows, false);
        break;
      case PassKind::kDecode:
        run_decode(pass.rows);
        break;
      case PassKind::kDecodeSeveral:
        run_prefill(pass.rows, true);
        break;
      case PassKind::kEnd:
        return;
    }
  }
}

Tensor PagedBatch::run_decode(std::span<const PagedRow> rows) {
  std::vector<int64_t> tokens, positions;
  for (const auto& row : rows) {
    LEVIN_CHECK(row.end == row.begin + 1, "[engine] a decode step takes one token of a row");
    tokens.push_back((*row.ids)[static_cast<size_t>(row.begin)]);
    positions.push_back(row.begin);
  }
  const auto longest = longest_of(rows);
  if (graphs_) {
    std::vector<const std::vector<int64_t>*> blocks;
    for (const auto& row : rows) blocks.push_back(row.blocks);
    return graphs_->decode(tokens, positions, longest, blocks).to(at::kFloat);
  }
  const auto device = model_->tokens->weight.device();
  const auto column = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).unsqueeze(1).to(device);
  };
  const auto hidden = model_->hidden_states(
      column(tokens), cache_, {.positions = column(positions), .seen = longest, .blocks = table(rows, longest)});
  return logits_of(hidden.squeeze(1));
}

void PagedBatch::warm_up(int64_t rows, int64_t slots) {
  if (!graphs_) return;
  const std::vector<int64_t> none;  // all of them are of block 0, which is nobody's
  for (int64_t count = 1;; count = std::min(2 * count, rows)) {
    const std::vector<int64_t> zeros(static_cast<size_t>(count), 0);
    const std::vector<const std::vector<int64_t>*> blocks(static_cast<size_t>(count), &none);
    for (auto seen = std::min<int64_t>(256, slots);; seen = std::min(2 * seen, slots)) {
      graphs_->decode(zeros, zeros, seen, blocks);
      if (seen >= slots) break;
    }
    if (count >= rows) return;
  }
}

}  // namespace levin::detail
