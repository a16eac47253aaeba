#include "levin/generate/decode_graphs.h"

#include <algorithm>
#include <bit>
#include <string>

#include <ATen/ops/zeros.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/kernels/linear/constant_weights.h"

namespace levin::detail {

namespace {

/// Slots are rounded up, so that few graphs serve a row of any length.
constexpr int64_t kFewestSlots = 256;
/// Steps whose tokens are kept: one is on its way to the host while the next runs.
constexpr int64_t kTurns = 2;

/// A graph of the same kernels gives the same numbers, or others in their last bits where a library chose differently.
bool is_close(const Tensor& found, const Tensor& expected) {
  return ((found - expected).norm() <= 0.02 * expected.norm()).item<bool>();
}

}  // namespace

int64_t graph_rows(int64_t rows) {
  return rows <= 8 ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))) : (rows + 7) / 8 * 8;
}

DecodeGraphs::DecodeGraphs(models::Decoder model, models::DecoderCache& cache, std::shared_ptr<GraphDevice> device)
    : model_(std::move(model)), cache_(cache), device_(std::move(device)) {}

DecodeGraphs::Size DecodeGraphs::size_for(int64_t rows, int64_t seen, bool is_paged) const {
  const auto slots = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(seen, kFewestSlots))));
  const auto each = cache_.capacity();
  if (!is_paged) return {std::min(graph_rows(rows), cache_.rows()), std::min(slots, each), 0};
  // Rows come and go at every step: fewer sizes than those of one batch.
  const auto few =
      rows <= 64 ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))) : (rows + 31) / 32 * 32;
  return {few, slots, (slots + each - 1) / each};
}

Tensor DecodeGraphs::run(const Size& size, const Tensor& inputs) {
  const kernels::ConstantWeights constant;
  const auto column = [&](int64_t which) { return inputs.narrow(0, which * size.rows, size.rows).unsqueeze(1); };
  models::CachePass pass{.positions = column(1), .seen = size.slots};
  if (size.blocks > 0)
    pass.blocks = inputs.narrow(0, 2 * size.rows, size.rows * size.blocks).view({size.rows, size.blocks});
  const auto hidden = model_->hidden_states(column(0), cache_, pass);
  return model_->head(hidden).squeeze(1);
}

Tensor DecodeGraphs::run_whole(const Size& size, const Tensor& inputs, const Tensor& found) {
  auto logits = run(size, inputs);
  // Positions that are constant inside a step are written behind all that read them.
  if (size.greedy)
    kernels::greedy_advance(logits, {.ids = inputs.narrow(0, 0, size.rows),
                                     .positions = inputs.narrow(0, size.rows, size.rows),
                                     .found = found,
                                     .turn = inputs.narrow(0, inputs.size(0) - 1, 1)});
  return logits;
}

Tensor DecodeGraphs::decode(std::span<const int64_t> tokens, std::span<const int64_t> lengths, int64_t seen,
                            std::span<const std::vector<int64_t>* const> blocks) {
  return decode(size_for(std::ssize(lengths), seen, !blocks.empty()), tokens, Tensor(), lengths, blocks);
}

Tensor DecodeGraphs::decode(const Tensor& ids, std::span<const int64_t> lengths, int64_t seen,
                            std::span<const std::vector<int64_t>* const> blocks) {
  return decode(size_for(std::ssize(lengths), seen, !blocks.empty()), {}, ids, lengths, blocks);
}

GreedyStep DecodeGraphs::decode_greedy(const Tensor& ids, std::span<const int64_t> lengths, int64_t seen) {
  const auto count = std::ssize(lengths);
  auto size = size_for(count, seen, /*is_paged=*/false);
  size.greedy = true;
  const auto logits = decode(size, {}, ids, lengths, {});
  if (refused_) return {logits, kernels::greedy_tokens(logits, logits)};
  auto& step = step_of(size);
  const auto found = step.found[step.turn].narrow(0, 0, count);
  step.turn = (step.turn + 1) % kTurns;
  for (const auto length : lengths) step.next_lengths.push_back(length + 1);
  return {logits, {.ids = step.inputs.narrow(0, 0, count), .found = found}};
}

DecodeGraphs::Step& DecodeGraphs::step_of(const Size& size) {
  auto& step = steps_[size];
  if (step.inputs.defined()) return step;
  const auto options = cache_.keys.front().options();
  step.inputs = at::zeros({size.rows * (2 + size.blocks) + 1}, options.dtype(at::kLong));
  if (size.greedy) step.found = at::zeros({kTurns, size.rows, 3}, options.dtype(at::kDouble));
  return step;
}

void DecodeGraphs::upload(const Size& size, Step& step, std::span<const int64_t> tokens, const Tensor& ids,
                          std::span<const int64_t> lengths, std::span<const std::vector<int64_t>* const> blocks) {
  // Rows that nobody has: they write where the next prompt begins, or into the block that nobody has. Greedy steps move
  // them on with the others, which are longer.
  host_.assign(static_cast<size_t>(step.inputs.size(0)), 0);
  std::copy(tokens.begin(), tokens.end(), host_.begin());
  std::copy(lengths.begin(), lengths.end(), host_.begin() + size.rows);
  auto to = host_.begin() + 2 * size.rows;
  for (const auto* each : blocks) {
    std::copy_n(each->begin(), std::min(size.blocks, static_cast<int64_t>(each->size())), to);
    to += size.blocks;
  }
  host_.back() = step.turn;
  const auto kept = ids.defined() && ids.is_alias_of(step.inputs) ? ids.clone() : ids;
  device_->upload(step.inputs, host_.data(), host_.size() * sizeof(int64_t));
  if (kept.defined()) step.inputs.narrow(0, 0, kept.size(0)).copy_(kept, /*non_blocking=*/true);
}

Tensor DecodeGraphs::decode(const Size& size, std::span<const int64_t> tokens, const Tensor& ids,
                            std::span<const int64_t> lengths, std::span<const std::vector<int64_t>* const> blocks) {
  auto& step = step_of(size);
  const bool is_there = ids.defined() && ids.is_contiguous() && ids.const_data_ptr() == step.inputs.const_data_ptr() &&
                        std::ranges::equal(lengths, step.next_lengths);
  if (!is_there) upload(size, step, tokens, ids, lengths, blocks);
  step.next_lengths.clear();
  Tensor logits;
  if (refused_) {
    logits = run(size, step.inputs);
  } else if (!step.graph) {
    logits = capture(size, step);
  } else {
    step.graph->replay();
    logits = step.logits;
  }
  return logits.narrow(0, 0, std::ssize(lengths));
}

Tensor DecodeGraphs::capture(const Size& size, Step& step) {
  // Once without a capture: libraries get ready at their first call, which a capture does not allow. It also is this
  // step; the replay below writes the same once more, from inputs that are as they were.
  const auto logits = run_whole(size, step.inputs.clone(), step.found);
  try {
    step.graph = device_->capture([this, size, &step] { step.logits = run_whole(size, step.inputs, step.found); });
    step.graph->replay();
    LEVIN_CHECK(is_close(step.logits, logits), "its replay gives other logits");
    return step.logits;
  } catch (const std::exception& error) {
    log_warning(std::string("[generate] a decode step cannot be captured and runs operator by operator: ") +
                error.what());
    refused_ = true;
    return logits;
  }
}

}  // namespace levin::detail
