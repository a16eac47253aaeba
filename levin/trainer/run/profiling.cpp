#include "levin/trainer/run/profiling.h"

#include <filesystem>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/loggers/json.h"
#include "levin/profilers/profile.h"
#include "levin/report/page.h"
#include "levin/report/report.h"
#include "levin/trainer/callbacks/tuning/memory_question.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

ProfiledRun profiled_run(const Run& run) {
  auto profiled = run.fabric->profiled_run();
  auto& module = *run.model.module;
  profiled.module = &module;
  int64_t parameters = 0;
  for (const auto& parameter : module.parameters()) parameters += parameter.numel();
  auto& facts = profiled.facts;
  facts.emplace_back("model", json_string(module.name()));
  facts.emplace_back("parameters", std::to_string(parameters));
  facts.emplace_back("stage", json_string(std::string(stage_name(run.state.stage))));
  const auto& data = run.state.stage == Stage::kTrain ? run.data.train : run.data.eval(run.state.stage);
  if (!data.loaders.empty())
    if (const auto size = data.loaders.front()->batch_size()) facts.emplace_back("batch_size", std::to_string(*size));
  facts.emplace_back("accumulate_grad_batches", std::to_string(run.plan.accumulate));
  if (!run.model.optimizers.empty()) facts.emplace_back("optimizer", json_string(run.model.optimizers.front().name()));
  return profiled;
}

/// The folder of the run, with its metrics and the traces of all ranks, or the traces alone where they lie elsewhere.
report::Report report_of(const fs::path& folder, const std::vector<fs::path>& traces) {
  const bool is_run = fs::exists(folder / "metrics.csv") || fs::exists(folder / "hparams.yaml");
  if (is_run) {
    try {
      return report::make_report({folder});
    } catch (const Error&) {
      // Another rank may be writing its trace.
    }
  }
  return report::make_report(traces);
}

}  // namespace

void write_profile_report(const Run& run) {
  const auto* profiler = run.hooks.profiler();
  if (!profiler || !run.fabric->is_global_zero()) return;
  std::vector<fs::path> traces;
  for (const auto& file : profiler->files())
    if (file.string().find(".trace.json") != std::string::npos && fs::exists(file)) traces.push_back(file);
  if (traces.empty()) return;
  try {
    const auto folder = traces.front().parent_path();
    AtomicFile page(folder / "report.html");
    page.write(report::html_page(report::to_json(report_of(folder, traces))));
    page.commit();
    log_info(concat("[trainer] the report of the profiler is ", (folder / "report.html").string()));
  } catch (const std::exception& error) {
    log_warning(concat("[trainer] the report of the profiler: ", one_line(error)));
  }
}

ProfiledLoop::ProfiledLoop(Run& run, bool on) {
  auto* profiler = run.hooks.profiler();
  if (!on || !profiler) return;
  profiler->begin_loop(profiled_run(run));
  run_ = &run;
}

ProfiledLoop::~ProfiledLoop() {
  if (!run_) return;
  try {
    run_->hooks.profiler()->end_loop();
  } catch (const std::exception& error) {
    log_warning(concat("[trainer] the profiler: ", one_line(error)));
  }
}

void begin_profiled_step(Run& run) {
  if (auto* profiler = run.hooks.profiler()) profiler->step();
}

void end_profiled_step(Run& run) {
  if (auto* profiler = run.hooks.profiler()) profiler->end_step();
}

void predict_profiled_memory(Run& run, const AnyBatch& batch) {
  auto* profiler = run.hooks.profiler();
  if (!profiler || !profiler->wants_predicted_memory()) return;
  std::string json = "{}";
  try {
    if (const auto predicted = predict_memory(run.context, batch))
      json =
          fmt::format(R"({{"peak_bytes": {}, "parameters": {}, "gradients": {}, "optimizer": {}, "activations": {}, )"
                      R"("temporary": {}}})",
                      predicted->device_peak, predicted->parameters, predicted->gradients, predicted->optimizer,
                      predicted->activations, predicted->temporary);
  } catch (const std::exception& error) {
    log_info(concat("[trainer] the memory of the step is not predicted: ", one_line(error)));
  }
  profiler->add_metadata("levin_memory", json);
}

}  // namespace levin::detail
