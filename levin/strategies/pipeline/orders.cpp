#include "levin/strategies/pipeline/orders.h"

#include <algorithm>

#include "levin/core/error.h"

namespace levin::detail {

namespace {

using Kind = PipelineAction::Kind;

/// Forwards and backwards of one rank, each in its own order, put into one list. An index past the last is skipped, so
/// that an order for many micro-batches also serves few.
class OrderBuilder {
 public:
  explicit OrderBuilder(int microbatches) : microbatches_(microbatches) {}

  void add(Kind kind, int stage, int microbatch) {
    if (microbatch < microbatches_) order_.push_back({.kind = kind, .stage = stage, .microbatch = microbatch});
  }
  PipelineOrder take() { return std::move(order_); }

 private:
  int microbatches_;
  PipelineOrder order_;
};

/// One of the two stages of a rank in a V, with the next micro-batch of each kind.
struct VChunk {
  OrderBuilder& order;
  int stage;
  int forwards = 0, inputs = 0, weights = 0;

  void forward() { order.add(Kind::kForward, stage, forwards++); }
  void backward_input() { order.add(Kind::kBackwardInput, stage, inputs++); }
  void backward_weight() { order.add(Kind::kBackwardWeight, stage, weights++); }
  void backward() {
    backward_input();
    backward_weight();
  }
  void remaining_weights() {
    while (weights < inputs) backward_weight();
  }
};

}  // namespace

PipelineOrder gpipe_order(const PipelineSizes& sizes, int rank) {
  OrderBuilder order(sizes.microbatches);
  for (int i = 0; i < sizes.microbatches; ++i) order.add(Kind::kForward, rank, i);
  for (int i = 0; i < sizes.microbatches; ++i) order.add(Kind::kBackward, rank, i);
  return order.take();
}

PipelineOrder one_f_one_b_order(const PipelineSizes& sizes, int rank) {
  OrderBuilder order(sizes.microbatches);
  const int warmup = std::min(sizes.microbatches, sizes.ranks - 1 - rank);
  for (int i = 0; i < warmup; ++i) order.add(Kind::kForward, rank, i);
  for (int i = 0; i < sizes.microbatches; ++i) {
    order.add(Kind::kForward, rank, warmup + i);
    order.add(Kind::kBackward, rank, i);
  }
  return order.take();
}

PipelineOrder interleaved_order(const PipelineSizes& sizes, int rank) {
  const auto [ranks, chunks, microbatches] = sizes;
  const int rounds = std::max(1, microbatches / ranks);
  LEVIN_CHECK(microbatches % rounds == 0, "[pipeline] schedule \"interleaved\" with ", ranks, " ranks runs ",
              microbatches, " micro-batches in ", rounds, " rounds (", microbatches, " / ", ranks,
              "), and they do not divide: ", microbatches, " % ", rounds, " = ", microbatches % rounds,
              "; use a multiple of ", ranks);
  // A round takes its micro-batches through one chunk after the other: forward from the first chunk, backward from the
  // last.
  const int in_round = microbatches / rounds;
  const int total = microbatches * chunks;
  const auto action = [&, ranks = ranks, chunks = chunks](Kind kind, int index) {
    const int round = index / (in_round * chunks);
    const int chunk = index / in_round % chunks;
    return PipelineAction{.kind = kind,
                          .stage = (kind == Kind::kForward ? chunk : chunks - 1 - chunk) * ranks + rank,
                          .microbatch = round * in_round + index % in_round};
  };
  const int warmup = std::min(total, (chunks - 1) * in_round + 2 * (ranks - 1 - rank));
  PipelineOrder order;
  for (int i = 0; i < warmup; ++i) order.push_back(action(Kind::kForward, i));
  for (int i = 0; i < total; ++i) {
    if (warmup + i < total) order.push_back(action(Kind::kForward, warmup + i));
    order.push_back(action(Kind::kBackward, i));
  }
  return order;
}

/// 1F1B whose weight gradients come later: rank r lets r of them wait. So the input gradients reach the first rank
/// early, and the waiting ones fill the end of the step. Every rank then holds as much as the first one of 1F1B.
PipelineOrder zb1p_order(const PipelineSizes& sizes, int rank) {
  OrderBuilder order(sizes.microbatches);
  const int warmup = std::min(sizes.microbatches, sizes.ranks - 1 - rank);
  for (int i = 0; i < warmup; ++i) order.add(Kind::kForward, rank, i);
  for (int i = 0; i < sizes.microbatches; ++i) {
    order.add(Kind::kForward, rank, warmup + i);
    order.add(Kind::kBackwardInput, rank, i);
    if (i >= rank) order.add(Kind::kBackwardWeight, rank, i - rank);
  }
  for (int i = std::max(0, sizes.microbatches - rank); i < sizes.microbatches; ++i) {
    order.add(Kind::kBackwardWeight, rank, i);
  }
  return order.take();
}

/// Zero bubble in a V: the last stage is on the first rank, so backward begins where forward begins. Written for at
/// least 2 * ranks - 1 micro-batches.
PipelineOrder zbv_order(const PipelineSizes& sizes, int rank) {
  const int ranks = sizes.ranks;
  const int microbatches = std::max(sizes.microbatches, 2 * ranks - 1);
  OrderBuilder order(sizes.microbatches);
  VChunk down{order, rank}, up{order, 2 * ranks - 1 - rank};
  // Until the first micro-batch is back on the way up.
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) down.forward();
  for (int i = 0; i < rank; ++i) {
    up.forward();
    down.forward();
  }
  for (int i = 0; i < ranks - rank; ++i) {
    up.forward();
    up.backward();
  }
  while (up.forwards < down.forwards || down.forwards < microbatches) {
    if (down.forwards < microbatches) down.forward();
    down.backward();
    up.forward();
    up.backward();
  }
  // The input gradients that other ranks wait for come first, weights fill what is left.
  for (int i = 0; i < rank; ++i) {
    down.backward_input();
    up.backward_input();
  }
  for (int i = 0; i < ranks - rank; ++i) down.backward();
  up.remaining_weights();
  down.remaining_weights();
  return order.take();
}

}  // namespace levin::detail
