#include "levin/strategies/pipeline/schedule.h"

#include "levin/core/error.h"
#include "levin/strategies/pipeline/table.h"

namespace levin {

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
  for (const auto& row : detail::pipeline_rows()) names.push_back(row.traits.name);
  return names;
}

const PipelineScheduleTraits& pipeline_schedule_traits(std::string_view name) {
  return detail::pipeline_row(name).traits;
}

PipelineSchedule make_pipeline_schedule(std::string_view name, int ranks, int microbatches, int chunks) {
  const detail::PipelineRow& row = detail::pipeline_row(name);
  const PipelineScheduleTraits& traits = row.traits;
  if (chunks == 0) chunks = traits.default_chunks;
  LEVIN_CHECK(ranks >= 1, "[pipeline] a pipeline needs at least one rank, not ", ranks);
  LEVIN_CHECK(microbatches >= 1, "[pipeline] a step needs at least one micro-batch, not ", microbatches);
  LEVIN_CHECK(!traits.takes_chunks || chunks >= 2, "[pipeline] schedule \"", traits.name,
              "\" needs at least 2 chunks a rank, not ", chunks, "; with 1 it is \"1f1b\"");
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
