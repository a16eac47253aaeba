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

/// A graph of the same kernels gives the same numbers, or others in their last bits where a library chose differently.
bool is_close(const Tensor& found, const Tensor& expected) {
  return ((found - expected).norm() <= 0.02 * expected.norm()).item<bool>();
}

}  // namespace

int64_t graph_rows(int64_t rows) {
  return rows <= 8 ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))) : (rows + 7) / 8 * 8;
}

DecodeGraphs::DecodeGraphs(models::Decoder model, models::DecoderCache& cache)
    : model_(std::move(model)), cache_(cache), device_(cuda_graphs(cache.keys.front().device())) {}

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

Tensor DecodeGraphs::decode(std::span<const int64_t> tokens, std::span<const int64_t> lengths, int64_t seen,
                            std::span<const std::vector<int64_t>* const> blocks) {
  return decode(tokens, Tensor(), lengths, seen, blocks);
}

Tensor DecodeGraphs::decode(const Tensor& ids, std::span<const int64_t> lengths, int64_t seen,
                            std::span<const std::vector<int64_t>* const> blocks) {
  return decode({}, ids, lengths, seen, blocks);
}

Tensor DecodeGraphs::decode(std::span<const int64_t> tokens, const Tensor& ids, std::span<const int64_t> lengths,
                            int64_t seen, std::span<const std::vector<int64_t>* const> blocks) {
  const auto count = static_cast<int64_t>(lengths.size());
  const auto size = size_for(count, seen, !blocks.empty());
  // Rows that nobody has: they write where the next prompt begins, or into the block that nobody has.
  host_.assign(static_cast<size_t>(size.rows * (2 + size.blocks)), 0);
  std::copy(tokens.begin(), tokens.end(), host_.begin());
  std::copy(lengths.begin(), lengths.end(), host_.begin() + size.rows);
  auto to = host_.begin() + 2 * size.rows;
  for (const auto* each : blocks) {
    std::copy_n(each->begin(), std::min(size.blocks, static_cast<int64_t>(each->size())), to);
    to += size.blocks;
  }
  auto& step = steps_[size];
  if (!step.inputs.defined())
    step.inputs = at::zeros({static_cast<int64_t>(host_.size())}, cache_.keys.front().options().dtype(at::kLong));
  device_->upload(step.inputs, host_.data(), host_.size() * sizeof(int64_t));
  if (ids.defined()) step.inputs.narrow(0, 0, count).copy_(ids, /*non_blocking=*/true);
  if (refused_) return run(size, step.inputs).narrow(0, 0, count);
  if (!step.graph) {
    // Once without a capture: libraries get ready at their first call, which a capture does not allow. It also is this
    // step; the replay below writes the same once more.
    const auto logits = run(size, step.inputs);
    try {
      step.graph = device_->capture([&] { step.logits = run(size, step.inputs); });
      step.graph->replay();
      LEVIN_CHECK(is_close(step.logits, logits), "its replay gives other logits");
      return step.logits.narrow(0, 0, count);
    } catch (const std::exception& error) {
      log_warning(std::string("[generate] a decode step cannot be captured and runs operator by operator: ") +
                  error.what());
      refused_ = true;
      return logits.narrow(0, 0, count);
    }
  }
  step.graph->replay();
  return step.logits.narrow(0, 0, count);
}

}  // namespace levin::detail
