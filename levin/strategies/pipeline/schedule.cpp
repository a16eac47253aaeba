#include "levin/strategies/pipeline/schedule.h"

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/strategies/pipeline/orders.h"

namespace levin {

namespace {

struct Row {
  PipelineScheduleTraits traits;
  detail::PipelineOrder (*order)(const detail::PipelineSizes& sizes, int rank);
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {{.name = "gpipe", .help = "all forwards, then all backwards"}, detail::gpipe_order},
      {{.name = "1f1b", .help = "one forward, one backward: holds no more than a micro-batch per stage"},
       detail::one_f_one_b_order},
      {{.name = "interleaved",
        .help = "1F1B with several stages a rank: a smaller bubble, more transfers",
        .default_chunks = 2,
        .takes_chunks = true},
       detail::interleaved_order},
      {{.name = "zb1p",
        .help = "zero bubble H1: weight gradients later, in the memory of 1F1B",
        .splits_backward = true},
       detail::zb1p_order},
      {{.name = "zbv",
        .help = "zero bubble V: two stages a rank, down and up again",
        .default_chunks = 2,
        .splits_backward = true,
        .placement = PipelinePlacement::kV},
       detail::zbv_order},
  };
  return table;
}

const Row& row_of(std::string_view name) {
  for (const Row& row : rows()) {
    if (equal_ignoring_case(row.traits.name, name)) return row;
  }
  fail_unknown("pipeline", "schedule", name, pipeline_schedule_names());
}

}  // namespace

std::string to_string(const PipelineAction& action) {
  static constexpr const char* kLetters[] = {"F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
  return std::to_string(action.stage) + kLetters[static_cast<size_t>(action.kind)] + std::to_string(action.microbatch);
}

int PipelineSchedule::rank_of(int stage) const {
  if (placement == PipelinePlacement::kV && stage >= ranks) return 2 * ranks - 1 - stage;
  return stage % ranks;
}

std::vector<int> PipelineSchedule::stages_of(int rank) const {
  std::vector<int> found;
  for (int stage = 0; stage < stages(); ++stage) {
    if (rank_of(stage) == rank) found.push_back(stage);
  }
  return found;
}

std::vector<std::string> pipeline_schedule_names() {
  std::vector<std::string> names;
  for (const Row& row : rows()) names.push_back(row.traits.name);
  return names;
}

const PipelineScheduleTraits& pipeline_schedule_traits(std::string_view name) {
  return row_of(name).traits;
}

PipelineSchedule make_pipeline_schedule(std::string_view name, int ranks, int microbatches, int chunks) {
  const Row& row = row_of(name);
  const PipelineScheduleTraits& traits = row.traits;
  if (chunks == 0) chunks = traits.default_chunks;
  LEVIN_CHECK(ranks >= 1, "[pipeline] a pipeline needs at least one rank, not ", ranks);
  LEVIN_CHECK(microbatches >= 1, "[pipeline] a step needs at least one micro-batch, not ", microbatches);
  LEVIN_CHECK(chunks >= 1, "[pipeline] a rank needs at least one chunk, not ", chunks);
  LEVIN_CHECK(chunks == traits.default_chunks || traits.takes_chunks, "[pipeline] schedule \"", traits.name, "\" has ",
              traits.default_chunks, traits.default_chunks == 1 ? " chunk" : " chunks", " a rank, not ", chunks,
              "; only \"interleaved\" takes a number");
  PipelineSchedule schedule{.name = traits.name,
                            .ranks = ranks,
                            .chunks = chunks,
                            .microbatches = microbatches,
                            .placement = traits.placement,
                            .actions = {}};
  for (int rank = 0; rank < ranks; ++rank) schedule.actions.push_back(row.order({ranks, chunks, microbatches}, rank));
  return with_transfers(std::move(schedule));
}

}  // namespace levin
