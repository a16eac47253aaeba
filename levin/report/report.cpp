#include "levin/report/report.h"

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/report/recommend.h"
#include "levin/report/trace/trace_reader.h"

namespace levin::report {
namespace fs = std::filesystem;
namespace {

void give_up_events(TraceEvents& events) {
  events.host = {};
  events.calls = {};
  events.device = {};
  events.memory = {};
  events.device_ranges = {};
}

void add_warnings(TraceReport& report, const OpTree& tree) {
  report.warnings = std::move(report.events.warnings);
  if (tree.dropped > 0)
    report.warnings.push_back(
        levin::detail::concat(tree.dropped, " spans overlap others of their thread in part and are left out"));
  if (report.steps.dropped > 0)
    report.warnings.push_back(levin::detail::concat("the last ", report.steps.dropped,
                                                    " steps are left out: their device work is not all in the trace"));
}

struct Source {
  fs::path file;
  std::string run;
};

// The run in a folder, or those below it: a Trainer writes into levin_logs/version_N of its folder.
std::vector<RunFolder> runs_in(const fs::path& folder) {
  auto run = read_run_folder(folder);
  if (!run.is_empty()) return {std::move(run)};
  std::set<fs::path> folders;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename() == "metrics.csv") folders.insert(entry->path().parent_path());
  }
  std::vector<RunFolder> runs;
  for (const auto& each : folders) runs.push_back(read_run_folder(each));
  return runs;
}

void add_folder(const fs::path& folder, std::vector<Source>& sources, Report& report) {
  const auto traces = traces_in(folder);
  auto runs = runs_in(folder);
  LEVIN_CHECK(!traces.empty() || !runs.empty(), "[report] \"", shown(folder.string()),
              "\" has neither traces (.json, .json.gz or .json.zst with \"traceEvents\", three levels deep) nor "
              "metrics.csv");
  for (const auto& file : traces) sources.push_back({file, file.parent_path().string()});
  for (auto& run : runs) report.runs.push_back(std::move(run));
}

// The place of a trace among those of its worker, by the time in the name; from 1.
void number_spans(std::vector<TraceReport>& traces) {
  std::map<std::pair<std::string, std::string>, std::vector<TraceReport*>> workers;
  for (auto& trace : traces) workers[{trace.run, trace.worker}].push_back(&trace);
  const auto time_of = [](const TraceReport* trace) {
    auto time = parse_trace_name(fs::path(trace->file).filename().string()).time;
    return std::pair{time.size(), std::move(time)};
  };
  for (auto& [worker, spans] : workers) {
    std::stable_sort(spans.begin(), spans.end(),
                     [&](const TraceReport* a, const TraceReport* b) { return time_of(a) < time_of(b); });
    for (size_t i = 0; i < spans.size(); ++i) spans[i]->span = static_cast<int>(i) + 1;
  }
}

void say_alone(TraceReport& trace) {
  const auto world = trace.events.world_size;
  if (world > 1)
    trace.warnings.push_back(levin::detail::concat("this is rank ", trace.rank, " of ", world,
                                                   ", the only one here: how ranks wait for each other is not known"));
}

// The ranks of the first run that has several, each with its first span.
void look_at_ranks(Report& report) {
  std::map<std::string, std::map<int64_t, TraceReport*>> runs;
  for (auto& trace : report.traces) {
    if (trace.span == 1) runs[trace.run].emplace(trace.rank, &trace);
  }
  for (auto& [run, ranks] : runs) {
    if (ranks.size() == 1) say_alone(*ranks.begin()->second);
    if (ranks.size() < 2 || report.distributed) continue;
    std::vector<const TraceReport*> sorted;
    std::vector<TraceReport*> changed;
    for (auto& [rank, trace] : ranks) {
      sorted.push_back(trace);
      changed.push_back(trace);
    }
    report.distributed = view_distributed(sorted);
    if (!report.distributed) continue;
    const auto spans = std::ranges::count_if(
        report.traces, [&](const TraceReport& trace) { return trace.run == run && trace.span > 1; });
    if (spans > 0)
      report.distributed->warnings.push_back(levin::detail::concat("this is the first span of each rank; ", spans,
                                                                   " traces of later spans are not in it"));
    recommend_together(*report.distributed, changed);
  }
}

TraceReport read_source(const Source& source) {
  auto report = report_trace(read_trace(source.file));
  report.file = source.file.string();
  report.file_bytes = fs::file_size(source.file);
  // Files that are named one by one are runs of their own, unless they are ranks of one.
  report.run = source.run.empty() ? fs::path(source.file).parent_path().string() : source.run;
  if (source.run.empty() && report.events.world_size < 2) report.run = report.file;
  report.worker = parse_trace_name(source.file.filename().string()).worker;
  report.name = report.worker;
  give_up_events(report.events);
  return report;
}

}  // namespace

TraceReport report_trace(TraceEvents events) {
  TraceReport report;
  report.events = std::move(events);
  const auto& trace = report.events;
  report.rank = trace.rank;
  report.has_device = !trace.device.empty();
  const auto tree = build_op_tree(trace);
  report.steps = view_steps(trace);
  report.gpus = summarize_gpus(trace, tree, report.steps);
  report.tensor_cores = tensor_core_times(trace, tree);
  report.operators = view_operators(trace, tree, false);
  report.operators_by_shape = view_operators(trace, tree, true);
  report.kernels = view_kernels(trace, tree, false);
  report.kernels_by_properties = view_kernels(trace, tree, true);
  report.transfers = view_transfers(trace);
  report.memory = view_memory(trace, tree);
  report.modules = view_modules(trace, tree);
  report.lanes = view_lanes(trace, report.steps);
  report.idle = view_idle(trace, report.steps);
  report.launches = view_launches(trace);
  report.annotations = view_annotations(trace);
  report.critical_path = find_critical_path(trace, report.steps);
  report.roofline = view_roofline(trace, tree, report.tensor_cores);
  report.mfu = view_mfu(trace, tree, report.steps, report.tensor_cores);
  report.collectives = collectives_of(trace, report.steps);
  report.what_if = estimate(report);
  report.recommendations = recommend(report);
  add_warnings(report, tree);
  return report;
}

Report make_report(const std::vector<fs::path>& paths) {
  LEVIN_CHECK(!paths.empty(), "[report] name a trace or the folder of a run");
  Report report;
  std::vector<Source> sources;
  for (const auto& path : paths) {
    LEVIN_CHECK(fs::exists(path), "[report] there is no \"", shown(path.string()), "\"");
    if (fs::is_directory(path)) {
      add_folder(path, sources, report);
    } else {
      sources.push_back({path, ""});
    }
  }
  for (const auto& source : sources) report.traces.push_back(read_source(source));
  number_spans(report.traces);
  for (size_t i = 0; i < report.traces.size(); ++i) {
    auto& trace = report.traces[i];
    if (trace.rank < 0) {
      // Files without distributedInfo: their order among the files of the run.
      trace.rank = 0;
      for (size_t j = 0; j < i; ++j)
        trace.rank +=
            report.traces[j].run == trace.run && report.traces[j].worker != trace.worker && report.traces[j].span == 1;
    }
    for (auto& run : report.runs) {
      if (trace.file.starts_with(run.path)) run.traces.push_back(i);
    }
  }
  look_at_ranks(report);
  report.title = fs::absolute(paths[0]).lexically_normal().filename().string();
  if (report.title.empty()) report.title = paths[0].string();
  return report;
}

}  // namespace levin::report
