// What a trace tells of a run, and profiles of one.
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/fabric/fabric.h"
#include "levin/fabric/fabric_core.h"
#include "levin/loggers/json.h"
#include "levin/nn/unit.h"

namespace levin {

using detail::json_string;

ProfiledRun Fabric::profiled_run() const {
  const auto& core = *core_;
  ProfiledRun run{.device = device(), .rank = global_rank(), .world_size = world_size()};
  run.facts = {{"strategy", json_string(strategy().name())},
               {"precision", json_string(plan().precision.name)},
               {"device", json_string(device().str())},
               {"num_nodes", std::to_string(plan().num_nodes)},
               {"compile", options_.compile ? "true" : "false"}};
  if (!device().is_cpu()) {
    const auto info = accelerator().info(device());
    run.facts.emplace_back("device_name", json_string(info.name));
    run.facts.emplace_back("device_memory", std::to_string(info.total_memory));
  }
  if (world_size() == 1 || !core.launched) return run;
  const auto group = strategy().group().process_group();
  if (!group) return run;
  run.backend = group->getBackendName();
  ProfiledGroup all{.name = group->getGroupName(), .description = "default_pg", .backend = run.backend};
  for (int rank = 0; rank < world_size(); ++rank) all.ranks.push_back(rank);
  run.groups.push_back(std::move(all));
  return run;
}

std::unique_ptr<profilers::Profile> Fabric::profile(PyTorchProfilerOptions options) const {
  auto made = std::make_unique<profilers::Profile>(std::move(options));
  auto run = profiled_run();
  std::string models;
  for (const auto& weak : core_->calls)
    if (const auto call = weak.lock())
      models += fmt::format("{}{}", models.empty() ? "" : ", ", class_name(*call->module));
  if (!models.empty()) run.facts.emplace_back("model", json_string(models));
  made->describe(std::move(run));
  for (const auto& weak : core_->calls)
    if (const auto call = weak.lock()) made->watch(*call->module);
  return made;
}

}  // namespace levin
