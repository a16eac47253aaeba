#include "levin/models/language_score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "levin/core/error.h"

namespace levin::models {
namespace {

/// Tokens whose logits are in memory together.
constexpr int64_t kScoredTokens = 512;

/// ids [T] on the device, hidden [T, D].
RowScore score_decoder_row(const Decoder& decoder, const Tensor& ids, const Tensor& hidden, bool keep) {
  RowScore score;
  std::vector<Tensor> logits;
  const auto length = ids.size(0);
  for (int64_t begin = 0; begin < length; begin += kScoredTokens) {
    const auto count = std::min(kScoredTokens, length - begin);
    const auto part = decoder->head(hidden.slice(0, begin, begin + count).unsqueeze(0))[0].to(at::kFloat);
    const auto scored = std::min(count, length - 1 - begin);  // nothing follows the last token
    if (scored > 0) {
      const auto targets = ids.slice(0, begin + 1, begin + 1 + scored).unsqueeze(1);
      const auto found = at::log_softmax(part.slice(0, 0, scored), 1).gather(1, targets).cpu().contiguous();
      const auto* values = found.const_data_ptr<float>();
      score.logprobs.insert(score.logprobs.end(), values, values + scored);
    }
    if (keep) logits.push_back(part.cpu());
  }
  if (keep) score.output = at::cat(logits);
  const auto sum = std::accumulate(score.logprobs.begin(), score.logprobs.end(), 0.0);
  score.perplexity = score.logprobs.empty() ? std::numeric_limits<double>::quiet_NaN()
                                            : std::exp(-sum / static_cast<double>(score.logprobs.size()));
  return score;
}

/// The classes of a row, by its last token that is not pad_token.
Tensor class_logits_of(const Decoder& decoder, const std::vector<int64_t>& row, const Tensor& hidden) {
  const auto pad = decoder->options.pad_token;
  auto last = static_cast<int64_t>(row.size()) - 1;
  if (pad >= 0)
    while (last > 0 && row[static_cast<size_t>(last)] == pad) --last;
  return decoder->score(hidden.slice(0, last, last + 1))[0];
}

void check_rows(const LanguageModel& model, std::span<const std::vector<int64_t>> rows) {
  const auto& body = model.body();
  const auto words = body.vocab_size;
  auto longest = body.max_positions;
  if (model.encoder && model.encoder->options.positions_from_ids) longest -= model.encoder->options.pad_token + 1;
  for (size_t i = 0; i < rows.size(); ++i) {
    LEVIN_CHECK(!rows[i].empty(), "[score] row ", i, " has no tokens");
    LEVIN_CHECK(!body.bounded() || std::ssize(rows[i]) <= longest, "[score] row ", i, " has ", rows[i].size(),
                " tokens, more than the ", longest, " positions of the model");
    for (const auto id : rows[i])
      LEVIN_CHECK(id >= 0 && id < words, "[score] row ", i, " has the id ", id, "; the model has 0 to ", words - 1);
  }
}

}  // namespace

std::vector<RowScore> score_rows(LanguageModel model, std::span<const std::vector<int64_t>> rows,
                                 const ScoreOptions& options) {
  LEVIN_CHECK(options.batch > 0, "[score] batch ", options.batch, " must be positive");
  check_rows(model, rows);
  const c10::AutoGradMode no_grad(false);
  const auto device = model.module().parameters().at(0).device();
  // Blocks depend on the padding.
  const auto batch = model.encoder && model.encoder->options.block_size > 0 ? 1 : options.batch;
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows[a].size() < rows[b].size(); });
  std::vector<RowScore> scores(rows.size());
  for (size_t begin = 0; begin < order.size(); begin += static_cast<size_t>(batch)) {
    const auto some = std::span(order).subspan(begin, std::min(static_cast<size_t>(batch), order.size() - begin));
    const auto shortest = static_cast<int64_t>(rows[some.front()].size());
    const auto longest = static_cast<int64_t>(rows[some.back()].size());
    const auto count = static_cast<int64_t>(some.size());
    const auto pad = model.encoder ? model.encoder->options.pad_token : 0;
    auto ids = at::full({count, longest}, pad, at::kLong), mask = at::zeros({count, longest}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      const auto& row = rows[some[static_cast<size_t>(i)]];
      const auto length = static_cast<int64_t>(row.size());
      ids[i].slice(0, 0, length).copy_(at::tensor(row, at::kLong));
      mask[i].slice(0, 0, length).fill_(1);
    }
    ids = ids.to(device), mask = mask.to(device);
    const auto padding = shortest == longest ? Tensor() : mask;
    const auto hidden =
        model.decoder ? model.decoder->hidden_states(ids, padding) : model.encoder->hidden_states(ids, padding);
    for (int64_t i = 0; i < count; ++i) {
      const auto place = some[static_cast<size_t>(i)];
      const auto length = static_cast<int64_t>(rows[place].size());
      const auto own = hidden[i].slice(0, 0, length);
      if (model.decoder && model.decoder->head) {
        scores[place] = score_decoder_row(model.decoder, ids[i].slice(0, 0, length), own, options.keep_outputs);
        continue;
      }
      if (options.keep_outputs) scores[place].output = own.to(at::kFloat).cpu();
      if (model.decoder)
        scores[place].head = class_logits_of(model.decoder, rows[place], own).to(at::kFloat).cpu();
      else if (model.encoder->options.head != "none")
        scores[place].head = model.encoder->head_output(own.unsqueeze(0))[0].to(at::kFloat).cpu();
    }
  }
  return scores;
}

}  // namespace levin::models
