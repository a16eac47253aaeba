#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "levin/report/run_folder.h"
#include "levin/report/trace/lanes.h"
#include "levin/report/views/device_view.h"
#include "levin/report/views/distributed_view.h"
#include "levin/report/views/idle.h"
#include "levin/report/views/launches.h"
#include "levin/report/views/memory_view.h"
#include "levin/report/views/module_view.h"
#include "levin/report/views/operator_view.h"
#include "levin/report/views/roofline.h"
#include "levin/report/views/steps.h"

namespace levin::report {

/// What to change, and why. `cost_ms` is what it costs in one step; none when it costs something else than time.
struct Recommendation {
  std::string id, title, evidence, option;
  std::optional<double> cost_ms;
};

/// An estimate of the step without one of its costs.
struct WhatIf {
  std::string id, title;
  double step_us = 0, saved_us = 0;
};

/// All views of one trace. Names are numbers of `events.names`; the long lists of events are given up once the views
/// are made.
struct TraceReport {
  std::string name, file, run, worker;
  uint64_t file_bytes = 0;
  int64_t rank = -1;
  int span = 1;
  TraceEvents events;
  bool has_device = false;
  StepView steps;
  std::vector<GpuSummary> gpus;
  TensorCoreTimes tensor_cores;
  std::vector<OperatorRow> operators, operators_by_shape;
  std::vector<KernelRow> kernels, kernels_by_properties;
  std::vector<TransferRow> transfers;
  std::vector<MemoryDevice> memory;
  std::vector<ModuleRow> modules;
  Lanes lanes;
  IdleView idle;
  LaunchView launches;
  std::vector<AnnotationRow> annotations;
  std::optional<CriticalPath> critical_path;
  std::optional<Roofline> roofline;
  std::optional<Mfu> mfu;
  std::vector<WhatIf> what_if;
  std::vector<Collective> collectives;
  std::vector<Recommendation> recommendations;
  std::vector<std::string> warnings;
};

struct Report {
  std::string title;
  std::vector<TraceReport> traces;
  std::optional<DistributedView> distributed;
  std::vector<RunFolder> runs;
};

/// All views of the events of a trace.
TraceReport report_trace(TraceEvents events);

/// Reads traces and folders of runs. A folder is searched for traces (`*.pt.trace.json`, `.json.gz`), metrics,
/// configuration and checkpoints. An Error says which path is not what it should be.
Report make_report(const std::vector<std::filesystem::path>& paths);

/// The keys are documented in docs/report.md. `indent` below 0 writes one line.
std::string to_json(const Report& report, int indent = -1);

/// An overview for a terminal.
std::string to_text(const Report& report);

}  // namespace levin::report
