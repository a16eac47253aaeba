#include "levin/strategies/pipeline/drawing.h"

#include <algorithm>
#include <cctype>
#include <map>

#include <fmt/format.h>

namespace levin {
namespace {

using Kind = PipelineAction::Kind;

struct Look {
  const char* name;
  char letter;
  /// Of the first chunk and of the last.
  uint32_t dark, light;
};

Look look_of(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return {"forward", 'F', 0x2563eb, 0x93c5fd};
    case Kind::kBackward:
      return {"backward", 'B', 0x15803d, 0x86efac};
    case Kind::kBackwardInput:
      return {"input gradient", 'I', 0x15803d, 0x86efac};
    case Kind::kBackwardWeight:
      return {"weight gradient", 'W', 0x9333ea, 0xd8b4fe};
    case Kind::kSendForward:
    case Kind::kReceiveForward:
    case Kind::kSendBackward:
    case Kind::kReceiveBackward:
      break;
  }
  return {"transfer", 'T', 0x4b5563, 0xd1d5db};
}

uint32_t between(uint32_t from, uint32_t to, double fraction) {
  uint32_t color = 0;
  for (const int shift : {16, 8, 0}) {
    const double a = from >> shift & 255, b = to >> shift & 255;
    color |= static_cast<uint32_t>(a + (b - a) * fraction + 0.5) << shift;
  }
  return color;
}

TimelinePlot::Kind timeline_kind(Kind kind, int chunk, int chunks) {
  const Look look = look_of(kind);
  const double fraction = chunks > 1 ? static_cast<double>(chunk) / (chunks - 1) : 0;
  // Letters tell even chunks from odd ones; colours tell all.
  const char letter = chunk % 2 == 0 ? look.letter : static_cast<char>(std::tolower(look.letter));
  return {.name = chunks > 1 ? fmt::format("{}, chunk {}", look.name, chunk) : look.name,
          .color = between(look.dark, look.light, fraction),
          .letter = letter};
}

}  // namespace

TimelinePlot timeline_of(const PipelineSchedule& schedule, const PipelineSimulation& simulation) {
  TimelinePlot plot{
      .title = fmt::format("{}: {} ranks, {} micro-batches", schedule.name, schedule.ranks, schedule.microbatches),
      .subtitle = fmt::format("bubble {:.1f} % of the time; holds: most micro-batches{} whose activations are kept",
                              100 * simulation.bubble_fraction(), schedule.chunks > 1 ? " of a chunk" : "")};
  if (schedule.chunks > 1) plot.title += fmt::format(", {} chunks", schedule.chunks);
  std::map<std::pair<Kind, int>, int> kinds;
  for (const Kind kind : {Kind::kForward, Kind::kBackward, Kind::kBackwardInput, Kind::kBackwardWeight}) {
    const bool used = std::ranges::any_of(simulation.spans, [&](const auto& spans) {
      return std::ranges::any_of(spans, [&](const PipelineSpan& span) { return span.action.kind == kind; });
    });
    for (int chunk = 0; used && chunk < schedule.chunks; ++chunk) {
      kinds[{kind, chunk}] = static_cast<int>(plot.kinds.size());
      plot.kinds.push_back(timeline_kind(kind, chunk, schedule.chunks));
    }
  }
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    TimelinePlot::Lane lane{.label = fmt::format("rank {}", rank)};
    lane.note = fmt::format("holds {}", simulation.peak_activations[rank]);
    for (const auto& [action, start, end] : simulation.spans[rank]) {
      if (!action.is_compute()) continue;
      lane.blocks.push_back({.start = start,
                             .end = end,
                             .text = std::to_string(action.microbatch),
                             .kind = kinds.at({action.kind, action.stage / schedule.ranks})});
    }
    plot.lanes.push_back(std::move(lane));
  }
  return plot;
}

}  // namespace levin
