#include "levin/generate/decode_graphs.h"

#include <algorithm>
#include <bit>
#include <string>

#include <ATen/ops/zeros.h>

#include "levin/core/error.h"
#include "levin/core/log.h"

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
    : model_(std::move(model)),
      cache_(cache),
      device_(cuda_graphs(cache.keys.front().device())),
      inputs_(at::zeros({2, cache.rows()}, cache.keys.front().options().dtype(at::kLong))),
      host_(static_cast<size_t>(2 * cache.rows())) {}

Tensor DecodeGraphs::run(int64_t rows, int64_t seen) {
  const auto column = [&](int64_t which) { return inputs_[which].narrow(0, 0, rows).unsqueeze(1); };
  const auto hidden = model_->hidden_states(column(0), cache_, {.positions = column(1), .seen = seen});
  return model_->head(hidden).squeeze(1).to(at::kFloat);
}

Tensor DecodeGraphs::decode(std::span<const int64_t> tokens, std::span<const int64_t> lengths, int64_t seen) {
  const auto count = static_cast<int64_t>(tokens.size());
  const auto rows = std::min(graph_rows(count), cache_.rows());
  // Rows that nobody has: they write where the next prompt begins.
  std::fill(host_.begin(), host_.end(), 0);
  std::copy(tokens.begin(), tokens.end(), host_.begin());
  std::copy(lengths.begin(), lengths.end(), host_.begin() + cache_.rows());
  device_->upload(inputs_, host_.data(), host_.size() * sizeof(int64_t));
  const auto slots = std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(seen, kFewestSlots)))),
                              cache_.capacity());
  if (refused_) return run(rows, slots).narrow(0, 0, count);
  auto& step = steps_[{rows, slots}];
  if (!step.graph) {
    // Once without a capture: libraries get ready at their first call, which a capture does not allow. It also is this
    // step; the replay below writes the same once more.
    const auto logits = run(rows, slots);
    try {
      step.graph = device_->capture([&] { step.logits = run(rows, slots); });
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
