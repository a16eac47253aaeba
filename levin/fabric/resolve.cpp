#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"
#include "levin/fabric/options.h"
#include "levin/strategies/choice.h"

namespace levin {
namespace {

// Ranks that talk over Gloo, because it was asked for, may share GPUs; NCCL refuses that.
std::vector<c10::Device> share_devices(const std::string& count, int cuda_devices) {
  auto devices = resolve_devices(count, c10::DeviceType::CPU, 0);
  for (size_t i = 0; i < devices.size(); ++i)
    devices[i] =
        c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(i % static_cast<size_t>(cuda_devices)));
  return devices;
}

bool may_share_gpus(const StrategyChoice& strategy) {
  return strategy.process_group_backend() == "gloo";
}

}  // namespace

FabricPlan resolve(const FabricOptions& options, int cuda_devices) {
  FabricPlan plan;
  const auto type = accelerator_type(options.accelerator, cuda_devices);
  plan.accelerator = type == c10::DeviceType::CPU ? "cpu" : "cuda";
  const bool shared = type == c10::DeviceType::CUDA && may_share_gpus(options.strategy) && !options.devices.is_list() &&
                      options.devices.text() != "auto" && options.devices.text() != "-1";
  plan.devices = shared ? share_devices(options.devices.text(), cuda_devices)
                        : resolve_devices(options.devices, type, cuda_devices);
  plan.devices_asked = options.devices.text() != "auto";
  LEVIN_CHECK(options.num_nodes >= 1, "[fabric] num_nodes ", options.num_nodes, " is not allowed (1 or more)");
  plan.num_nodes = static_cast<int>(options.num_nodes);
  plan.strategy = options.sync_batchnorm ? options.strategy.with_sync_batchnorm() : options.strategy;
  const auto strategy = make_strategy(plan.strategy, plan.world_size());  // refuses an unknown name
  LEVIN_CHECK(!strategy->traits().one_process || plan.world_size() == 1, "[fabric] strategy \"", strategy->name(),
              "\" runs one process, but devices x num_nodes asks for ", plan.world_size(), "; use \"ddp\"");
  plan.precision = resolve_precision(options.precision, type);
  if (plan.precision.fp8) plan.precision.fp8 = options.plugins.fp8;
  return plan;
}

std::string FabricPlan::to_string() const {
  return fmt::format("{} x {}{}, {}, {}", accelerator, devices.size(),
                     num_nodes > 1 ? fmt::format(" on {} nodes", num_nodes) : "",
                     make_strategy(strategy, world_size())->name(), precision.name);
}

}  // namespace levin
