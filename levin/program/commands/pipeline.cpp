#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/progress_bar.h"
#include "levin/core/words.h"
#include "levin/program/command.h"
#include "levin/strategies/pipeline/drawing.h"
#include "levin/strategies/pipeline/theory.h"

namespace levin::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostActions = 1 << 20, kMostCells = 4000;

/// One schedule, played.
struct Played {
  PipelineSchedule schedule;
  PipelineCosts costs;
  PipelineSimulation simulation;
  PipelineTheory theory;

  int64_t sends() const {
    int64_t most = 0;
    for (const auto& actions : schedule.actions)
      most = std::max<int64_t>(most, std::ranges::count_if(actions, &PipelineAction::is_send));
    return most;
  }
  int peak() const { return *std::ranges::max_element(simulation.peak_activations); }
};

std::string number(double value) {
  return fmt::format("{:.6g}", value);
}

std::string formula_text(const Played& played) {
  const auto& [formula, bubble, peaks] = played.theory;
  return !bubble ? formula : formula == number(*bubble) ? formula : fmt::format("{} = {}", formula, number(*bubble));
}

struct Pipeline {
  int64_t stages = 4, microbatches = 8;
  std::optional<int64_t> chunks;
  std::string schedule, svg;
  double forward = 1, backward_input = 1, backward_weight = 1, transfer = 0;
  bool json = false;

  void describe(Flags& flags) {
    flags.flag("stages", stages, "ranks of the pipeline", "N").aliases = {"ranks"};
    flags.flag("microbatches", microbatches, "micro-batches of a step", "N").aliases = {"micro-batches"};
    flags.flag("schedule", schedule, "draw this schedule; without it all are compared", "NAME",
               pipeline_schedule_names());
    flags.flag("chunks", chunks, "stages of each rank, for interleaved [2]", "N");
    flags.flag("forward", forward, "time of a forward of a rank's layers for one micro-batch", "T");
    flags.flag("backward-input", backward_input, "time of the backward of their inputs", "T");
    flags.flag("backward-weight", backward_weight, "time of the backward of their weights", "T");
    flags.flag("transfer", transfer, "time of a transfer between two ranks", "T");
    flags.flag("svg", svg, "write the timeline as a picture (.svg or .png)", "FILE");
    flags.flag("json", json, "print JSON: of each rank what it does, when, and what it holds");
  }

  int run() {
    check();
    if (schedule.empty())
      compare();
    else
      show(play(schedule));
    return 0;
  }

 private:
  void check() const {
    LEVIN_CHECK(stages >= 1 && stages <= 1024, "[levin pipeline] --stages ", stages, " is not allowed (1 to 1024)");
    LEVIN_CHECK(microbatches >= 1 && microbatches <= 65536, "[levin pipeline] --microbatches ", microbatches,
                " is not allowed (1 to 65536)");
    const int64_t of_rank = chunks.value_or(2);
    LEVIN_CHECK(of_rank >= 1 && of_rank <= 64, "[levin pipeline] --chunks ", of_rank, " is not allowed (1 to 64)");
    const int64_t computes = stages * of_rank * microbatches * 3;
    LEVIN_CHECK(computes <= kMostActions, "[levin pipeline] ", stages, " stages x ", of_rank, " chunks x ",
                microbatches, " micro-batches x 3 are ", computes, " actions, more than ", kMostActions);
    for (const auto& [flag, value] : {std::pair("forward", forward), std::pair("backward-input", backward_input),
                                      std::pair("backward-weight", backward_weight)})
      LEVIN_CHECK(value > 0 && value <= 1e6, "[levin pipeline] --", flag, " ", value, " is not allowed (more than 0)");
    LEVIN_CHECK(transfer >= 0 && transfer <= 1e6, "[levin pipeline] --transfer ", transfer,
                " is not allowed (0 or more)");
    LEVIN_CHECK(svg.empty() || svg.ends_with(".svg") || svg.ends_with(".png"), "[levin pipeline] --svg \"", svg,
                "\" must end with .svg or .png");
    LEVIN_CHECK(svg.empty() || !schedule.empty(), "[levin pipeline] --svg draws one schedule: name it (--schedule ",
                join(pipeline_schedule_names(), "|"), ")");
  }

  /// The same model for every schedule: a rank with several chunks has shorter ones.
  Played play(const std::string& name) const {
    const bool takes_chunks = !schedule.empty() || pipeline_schedule_traits(name).takes_chunks;
    Played played{.schedule = make_pipeline_schedule(name, static_cast<int>(stages), static_cast<int>(microbatches),
                                                     takes_chunks ? static_cast<int>(chunks.value_or(0)) : 0)};
    const double share = 1.0 / played.schedule.chunks;
    played.costs = {.forward = forward * share,
                    .backward_input = backward_input * share,
                    .backward_weight = backward_weight * share,
                    .transfer = transfer};
    played.simulation = simulate(played.schedule, played.costs);
    played.theory = theory_of(played.schedule, played.costs);
    return played;
  }

  std::string unit_text() const {
    return fmt::format("forward {}, backward of the input {}, of the weights {}, transfer {}", number(forward),
                       number(backward_input), number(backward_weight), number(transfer));
  }

  void show(const Played& played) const {
    const TimelinePlot plot = timeline_of(played.schedule, played.simulation);
    if (!svg.empty()) write_drawing(svg, picture_of(plot));
    if (json) {
      std::puts(json_of(played, true).dump(2).c_str());
      return;
    }
    auto out = fmt::format("{}\n{}\n\n", plot.title, unit_text());
    const double unit = std::min({forward, backward_input, backward_weight}) / played.schedule.chunks;
    if (played.simulation.total / unit <= kMostCells) {
      const int width = terminal_width(stdout);
      const char* no_color = std::getenv("NO_COLOR");
      out += text_of(plot, {.unit = unit,
                            .columns = width > 0 ? width : 160,
                            .color = width > 0 && (no_color == nullptr || *no_color == '\0')});
    } else {
      out += fmt::format("(more than {} units of time: too long to draw here)\n", kMostCells);
    }
    out += summary(played);
    std::fputs(out.c_str(), stdout);
  }

  static std::string summary(const Played& played) {
    const auto& simulation = played.simulation;
    auto out = fmt::format("\ntotal        {}", number(simulation.total));
    if (simulation.total > simulation.window)
      out += fmt::format(" ({} on a rank; ranks start and end at different times)", number(simulation.window));
    out += fmt::format("\nbubble       {}, {:.1f} % of the time; formula {}\n", number(simulation.bubble),
                       100 * simulation.bubble_fraction(), formula_text(played));
    std::vector<std::string> peaks;
    for (const int peak : simulation.peak_activations) peaks.push_back(std::to_string(peak));
    const int chunks = played.schedule.chunks;
    out += fmt::format("activations  {} micro-batches{} at most, by rank\n", join(peaks),
                       chunks > 1 ? fmt::format(" of a chunk (1/{} of a rank's layers)", chunks) : "");
    return out + fmt::format("sends        {} a rank at most\n", played.sends());
  }

  void compare() const {
    std::vector<Played> all;
    std::vector<std::string> refused;
    for (const std::string& name : pipeline_schedule_names()) {
      try {
        all.push_back(play(name));
      } catch (const Error& error) {
        refused.push_back(error.what());
      }
    }
    if (json) {
      Json rows = Json::array();
      for (const Played& played : all) rows.push_back(json_of(played, false));
      std::puts(Json{{"schedules", rows}, {"refused", refused}}.dump(2).c_str());
      return;
    }
    auto out = fmt::format("{} ranks, {} micro-batches; {}\n\n", stages, microbatches, unit_text());
    out += fmt::format("{:<12}{:>7}{:>9}{:>9}{:>10}{:>13}{:>7}  {}\n", "schedule", "chunks", "total", "bubble",
                       "fraction", "activations", "sends", "formula");
    for (const Played& played : all) {
      const auto& simulation = played.simulation;
      out += fmt::format(
          "{:<12}{:>7}{:>9}{:>9}{:>8.1f} %{:>13}{:>7}  {}\n", played.schedule.name, played.schedule.chunks,
          number(simulation.total), number(simulation.bubble), 100 * simulation.bubble_fraction(),
          number(static_cast<double>(played.peak()) / played.schedule.chunks), played.sends(), formula_text(played));
    }
    for (const std::string& line : refused) out += "left out: " + line + "\n";
    out +=
        "\nactivations: micro-batches of all of a rank's layers, of the rank that holds most. p ranks, m "
        "micro-batches, v "
        "chunks;\nF, B, I, W: forward, backward, backward of the input and of the weights.\n";
    std::fputs(out.c_str(), stdout);
  }

  Json json_of(const Played& played, bool with_ranks) const {
    const auto& [of, costs, simulation, theory] = played;
    Json out{{"schedule", of.name},
             {"ranks", of.ranks},
             {"chunks", of.chunks},
             {"microbatches", of.microbatches},
             {"total", simulation.total},
             {"bubble", simulation.bubble},
             {"bubble_fraction", simulation.bubble_fraction()},
             {"formula", theory.bubble_formula},
             {"formula_bubble", theory.bubble ? Json(*theory.bubble) : Json()},
             {"peak_activations", simulation.peak_activations},
             {"sends", played.sends()}};
    for (int rank = 0; with_ranks && rank < of.ranks; ++rank) {
      Json actions = Json::array();
      for (const auto& [action, start, end] : simulation.spans[rank]) {
        Json item{{"action", to_string(action)}, {"start", start}, {"end", end}};
        if (!action.is_compute()) item.update({{"peer", action.peer}, {"group", action.group}});
        actions.push_back(std::move(item));
      }
      out["timeline"].push_back({{"rank", rank}, {"stages", of.stages_of(rank)}, {"actions", actions}});
    }
    return out;
  }
};

}  // namespace

Command pipeline_command() {
  return make_command<Pipeline>("pipeline", "draw and compare pipeline schedules: bubble, memory, transfers");
}

}  // namespace levin::cli
