#include "levin/trainer/run/profiling.h"

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/loggers/json.h"
#include "levin/profilers/profile.h"
#include "levin/trainer/run/run.h"

namespace levin::detail {
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

}  // namespace

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

}  // namespace levin::detail
