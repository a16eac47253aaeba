#include <algorithm>

#include <fmt/format.h>

#include "levin/core/words.h"
#include "levin/report/report.h"
#include "levin/report/views/compare.h"

namespace levin::report {
namespace {

std::string time_text(double ns) {
  if (ns >= 1e9) return fmt::format("{:.3f} s", ns / 1e9);
  if (ns >= 1e6) return fmt::format("{:.3f} ms", ns / 1e6);
  return fmt::format("{:.1f} us", ns / 1e3);
}
std::string time_text(Ns ns) {
  return time_text(static_cast<double>(ns));
}

// A bar of a fraction of 1, in eighths of a character.
std::string bar(double share, int width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::clamp(share, 0.0, 1.0) * width * 8 + 0.5);
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  return text + kEighths[eighths % 8];
}

std::string shortened(const std::string& name, size_t most) {
  auto text = printable(name);
  if (text.size() <= most) return text;
  size_t cut = most - 3;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;  // not inside a character
  return text.substr(0, cut) + "...";
}

std::string head(const TraceReport& trace) {
  auto text = fmt::format("{}", shortened(trace.name.empty() ? trace.file : trace.name, 60));
  if (trace.events.world_size > 1) text += fmt::format(", rank {} of {}", trace.rank, trace.events.world_size);
  if (trace.span > 1) text += fmt::format(", span {}", trace.span);
  const auto steps = trace.steps.steps.size();
  text +=
      fmt::format(": {} step{} of {} on average\n", steps, steps == 1 ? "" : "s", time_text(trace.steps.average_total));
  return text;
}

std::string breakdown(const TraceReport& trace) {
  std::string text;
  for (size_t i = 0; i < kParts; ++i) {
    const double time = trace.steps.average[i];
    if (time <= 0) continue;
    const double share = time / trace.steps.average_total;
    text += fmt::format("  {:<14}{:>12}{:>8.2f} %  {}\n", to_string(static_cast<Part>(i)), time_text(time), 100 * share,
                        bar(share, 32));
  }
  return text;
}

std::string gpu_lines(const TraceReport& trace) {
  std::string text;
  for (const auto& gpu : trace.gpus) {
    text += fmt::format("  {} {}{}: utilization {:.2f} %", trace.events.device_kind, gpu.device,
                        gpu.info.name.empty() ? "" : " (" + printable(gpu.info.name) + ")", 100 * gpu.utilization);
    if (gpu.sm_efficiency) text += fmt::format(", est. SM efficiency {:.2f} %", 100 * *gpu.sm_efficiency);
    if (gpu.occupancy) text += fmt::format(", est. occupancy {:.2f} %", 100 * *gpu.occupancy);
    if (gpu.tensor_core_time)
      text += fmt::format(", tensor cores {:.2f} % of kernel time", 100 * *gpu.tensor_core_time);
    if (gpu.peak_allocated >= 0) text += ", peak " + format_bytes(static_cast<double>(gpu.peak_allocated));
    text += "\n";
  }
  if (trace.mfu)
    text += fmt::format("  MFU {:.2f} % ({:.2f} of {:.0f} TFLOP/s, {})\n",
                        100 * trace.mfu->achieved_tflops() / trace.mfu->peak_tflops, trace.mfu->achieved_tflops(),
                        trace.mfu->peak_tflops, trace.mfu->precision);
  return text.empty() ? text : "\nDevices\n" + text;
}

std::string idle_lines(const TraceReport& trace) {
  if (trace.idle.total == 0) return {};
  auto text = fmt::format("\nIdle devices: {:.1f} % of the steps\n",
                          100 * static_cast<double>(trace.idle.total) / static_cast<double>(trace.idle.of));
  for (size_t i = 0; i < kIdleCauses; ++i) {
    if (trace.idle.causes[i] == 0) continue;
    const double share = static_cast<double>(trace.idle.causes[i]) / static_cast<double>(trace.idle.of);
    text += fmt::format(
        "  {:<32}{:>12} a step{:>8.2f} %\n", words_of(static_cast<IdleCause>(i)),
        time_text(static_cast<double>(trace.idle.causes[i]) / static_cast<double>(trace.steps.steps.size())),
        100 * share);
  }
  return text;
}

// The longest kernels, or operators where there are none.
std::string top_lines(const TraceReport& trace) {
  constexpr size_t kTop = 5;
  std::string text;
  const auto line = [&](const std::string& name, uint64_t calls, Ns time, double whole) {
    text += fmt::format("  {:<60}{:>8} calls{:>12}{:>8.2f} %\n", shortened(name, 58), calls, time_text(time),
                        whole > 0 ? 100 * static_cast<double>(time) / whole : 0);
  };
  if (!trace.kernels.empty()) {
    double whole = 0;
    for (const auto& row : trace.kernels) whole += static_cast<double>(row.total);
    text += "\nKernels\n";
    for (size_t i = 0; i < std::min(kTop, trace.kernels.size()); ++i)
      line(trace.events.name(trace.kernels[i].name), trace.kernels[i].calls, trace.kernels[i].total, whole);
  }
  if (!trace.operators.empty()) {
    double whole = 0;
    for (const auto& row : trace.operators)
      whole += static_cast<double>(trace.has_device ? row.device_self : row.host_self);
    text += trace.has_device ? "\nOperators by device time\n" : "\nOperators by host time\n";
    for (size_t i = 0; i < std::min(kTop, trace.operators.size()); ++i) {
      const auto& row = trace.operators[i];
      line(trace.events.name(row.name), row.calls, trace.has_device ? row.device_self : row.host_self, whole);
    }
  }
  return text;
}

std::string recommendation_lines(const TraceReport& trace) {
  if (trace.recommendations.empty()) return "\nRecommendations: none\n";
  std::string text = "\nRecommendations\n";
  for (size_t i = 0; i < trace.recommendations.size(); ++i) {
    const auto& row = trace.recommendations[i];
    text += fmt::format("  {}. {}{}\n     why: {}\n     set: {}\n", i + 1, row.title,
                        row.cost_ms ? fmt::format(" ({:.3f} ms a step)", *row.cost_ms) : "", row.evidence, row.option);
  }
  for (const auto& what : trace.what_if)
    text += fmt::format("  {}: {} a step, {:.2f} times as fast\n", what.title, time_text(what.step_us * 1e3),
                        what.step_us > 0 ? (what.step_us + what.saved_us) / what.step_us : 0);
  return text;
}

std::string distributed_lines(const DistributedView& view) {
  std::string text = "Ranks (a step)\n";
  for (const auto& row : view.overlap) {
    if (row.step != "all") continue;
    text += fmt::format("  rank {:<4} computation {:>12}, overlap {:>12}, communication {:>12}", row.rank,
                        time_text(row.overlap.computation - row.overlap.overlap), time_text(row.overlap.overlap),
                        time_text(row.overlap.communication - row.overlap.overlap));
    for (const auto& waiting : view.waiting) {
      if (waiting.rank == row.rank && waiting.step == "all")
        text += fmt::format("; in all steps it waits {} of {}", time_text(waiting.synchronizing),
                            time_text(waiting.synchronizing + waiting.transfer));
    }
    text += "\n";
  }
  for (const auto& line : view.warnings) text += "  " + line + "\n";
  return text + "\n";
}

std::string comparison_lines(const Comparison& view) {
  std::string text = "Comparison (a step)\n";
  for (size_t i = 0; i < view.runs.size(); ++i) {
    text += fmt::format("  {:<40}{:>12}", shortened(view.runs[i].name, 38), time_text(view.total_us[i] * 1e3));
    if (i > 0 && view.total_us[i] > 0)
      text += fmt::format("  {:.2f} times as fast as the first", view.total_us[0] / view.total_us[i]);
    const auto& run = view.runs[i];
    if (run.traces > 1)
      text += fmt::format("  ({} steps, {} traces, {} rank{})", run.steps, run.traces, run.ranks,
                          run.ranks == 1 ? "" : "s");
    text += "\n";
  }
  for (const auto& line : view.warnings) text += "  note: " + printable(line) + "\n";
  return text + "\n";
}

std::string run_lines(const RunFolder& run) {
  auto text =
      fmt::format("Run {}: {} metric{}, {} checkpoint{}\n", shortened(run.name, 60), run.curves.size(),
                  run.curves.size() == 1 ? "" : "s", run.checkpoints.size(), run.checkpoints.size() == 1 ? "" : "s");
  for (const auto& curve : run.curves)
    text += fmt::format("  {:<30}{:>14.6g} after step {:.0f}\n", shortened(curve.name, 28), curve.values.back(),
                        curve.steps.back());
  return text + "\n";
}

}  // namespace

std::string to_text(const Report& report) {
  std::string text;
  for (const auto& run : report.runs) text += run_lines(run);
  if (const auto comparison = compare_runs(report)) text += comparison_lines(*comparison);
  if (report.distributed) text += distributed_lines(*report.distributed);
  for (const auto& trace : report.traces) {
    text += head(trace) + breakdown(trace) + gpu_lines(trace) + idle_lines(trace) + top_lines(trace) +
            recommendation_lines(trace);
    for (const auto& line : trace.warnings) text += "  note: " + line + "\n";
    text += "\n";
  }
  while (text.ends_with("\n\n")) text.pop_back();
  return text;
}

}  // namespace levin::report
