#include "levin/strategies/pipeline/table.h"

#include <algorithm>

#include "levin/core/words.h"

namespace levin::detail {

namespace {

PipelineBubble one_f_one_b_bubble(const PipelineSizes& sizes, const PipelineCosts& costs) {
  return {"(p-1)(F+B)", (sizes.ranks - 1) * (costs.forward + costs.whole_backward())};
}

/// With fewer micro-batches than ranks, every further chunk waits for the first micro-batch to come around.
PipelineBubble interleaved_bubble(const PipelineSizes& sizes, const PipelineCosts& costs) {
  const int late = std::max(0, sizes.ranks - sizes.microbatches);
  const int waits = sizes.ranks - 1 + (sizes.chunks - 1) * late;
  return {late > 0 ? "((p-1) + (v-1)(p-m))(F+B)/v" : "(p-1)(F+B)/v", waits * (costs.forward + costs.whole_backward())};
}

/// Weight gradients fill the drain, as far as there are micro-batches to fill it with. They fill no more than the
/// forwards that it waits for, which matters where W is longer than F.
PipelineBubble zb1p_bubble(const PipelineSizes& sizes, const PipelineCosts& costs) {
  const auto [ranks, chunks, microbatches] = sizes;
  const bool long_weight = costs.backward_weight > costs.forward;
  const double fills = long_weight ? costs.forward : costs.backward_weight;
  const std::string formula = microbatches < ranks ? std::string("(p-1)(F+I) - (m-1)") + (long_weight ? "F" : "W")
                                                   : (long_weight ? "(p-1)I" : "(p-1)(F+I-W)");
  return {formula, (ranks - 1) * (costs.forward + costs.backward_input) - (std::min(ranks, microbatches) - 1) * fills};
}

PipelineBubble zbv_bubble(const PipelineSizes& sizes, const PipelineCosts& costs) {
  if (costs.forward != costs.backward_input || costs.forward != costs.backward_weight) return {"0 if F=I=W", {}};
  const int missing = std::max(0, 2 * sizes.ranks - 1 - sizes.microbatches);
  return {missing > 0 ? "(2p-1-m)F" : "0", 2 * missing * costs.forward};
}

int interleaved_peak(const PipelineSizes& sizes, int rank) {
  const auto [ranks, chunks, microbatches] = sizes;
  const int in_round = microbatches / std::max(1, microbatches / ranks);
  return std::min(microbatches * chunks, 2 * (ranks - rank - 1) + (chunks - 1) * in_round + 1);
}

}  // namespace

const std::vector<PipelineRow>& pipeline_rows() {
  static const std::vector<PipelineRow> rows = {
      {.traits = {.name = "gpipe", .help = "all forwards, then all backwards"},
       .order = gpipe_order,
       .bubble = one_f_one_b_bubble,
       .peak_activations = [](const PipelineSizes& sizes, int) { return sizes.microbatches; }},
      {.traits = {.name = "1f1b", .help = "one forward, one backward: holds at most one micro-batch per stage"},
       .order = one_f_one_b_order,
       .bubble = one_f_one_b_bubble,
       .peak_activations = [](const PipelineSizes& sizes,
                              int rank) { return std::min(sizes.microbatches, sizes.ranks - rank); }},
      {.traits = {.name = "interleaved",
                  .help = "1F1B with several stages a rank: a smaller bubble, more transfers",
                  .default_chunks = 2,
                  .takes_chunks = true},
       .order = interleaved_order,
       .bubble = interleaved_bubble,
       .peak_activations = interleaved_peak},
      {.traits = {.name = "zb1p",
                  .help = "zero bubble H1: weight gradients later, in the memory of 1F1B",
                  .splits_backward = true},
       .order = zb1p_order,
       .bubble = zb1p_bubble,
       .peak_activations = [](const PipelineSizes& sizes, int) { return std::min(sizes.microbatches, sizes.ranks); }},
      {.traits = {.name = "zbv",
                  .help = "zero bubble V: two stages a rank, down and up again",
                  .default_chunks = 2,
                  .splits_backward = true,
                  .placement = PipelinePlacement::kV},
       .order = zbv_order,
       .bubble = zbv_bubble,
       .peak_activations =
           [](const PipelineSizes& sizes, int rank) {
             return std::min({2 * sizes.ranks, 2 * sizes.microbatches, sizes.microbatches + 1 + rank});
           }},
  };
  return rows;
}

const PipelineRow& pipeline_row(std::string_view name) {
  for (const PipelineRow& row : pipeline_rows()) {
    if (equal_ignoring_case(row.traits.name, name)) return row;
  }
  fail_unknown("pipeline", "schedule", name, pipeline_schedule_names());
}

}  // namespace levin::detail
