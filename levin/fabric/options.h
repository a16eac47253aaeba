#pragma once

#include <memory>
#include <string>
#include <vector>

#include "levin/core/compile/compile_mode.h"
#include "levin/devices/devices.h"
#include "levin/loggers/logger.h"
#include "levin/precision/precision.h"
#include "levin/strategies/choice.h"

namespace levin {

class CheckpointFormat;

/// The base of everything that can stand in `callbacks`; `fabric.call` finds the ones that have the method.
class CallbackBase {
 public:
  virtual ~CallbackBase() = default;
};

/// Parts that are seldom replaced.
struct Plugins {
  /// Who started the processes: "auto", or a name of environment_names() such as "slurm".
  std::string cluster_environment = "auto";
  /// The loss scaler of 16-mixed.
  GradScalerOptions grad_scaler = {};
  /// How fp8-mixed scales.
  kernels::Fp8Options fp8 = {};
  /// How checkpoints are stored; null: Levin's own format.
  std::shared_ptr<const CheckpointFormat> checkpoint_format = {};
};

/// What a run asks for. Fields stand in the order of Lightning's arguments; every one has a default that works.
///
///     levin::Fabric fabric({.strategy = "ddp", .devices = 4, .precision = "bf16-mixed"});
struct FabricOptions {
  /// "auto", "cpu", "cuda", "gpu".
  std::string accelerator = "auto";
  /// A name ("auto", "ddp", ...) or an options struct (`DdpOptions{...}`). "auto": one process alone, several with ddp.
  StrategyChoice strategy = "auto";
  /// Processes on each node: a count, -1 for all, a list of device numbers, "auto".
  Devices devices = "auto";
  int64_t num_nodes = 1;
  /// "32-true", "16-mixed", "bf16-mixed", "fp8-mixed", "bf16-true", ...
  std::string precision = "32-true";
  Plugins plugins = {};
  std::vector<std::shared_ptr<CallbackBase>> callbacks = {};
  std::vector<std::shared_ptr<Logger>> loggers = {};
  /// Steps made by `fabric.compile` are captured in CUDA graphs; "fuse": fused and captured; `false`: they are called
  /// as they are.
  CompileMode compile = false;
  /// An optimizer step whose loss, or a gradient, is inf or nan on any rank changes nothing on any; nobody waits for
  /// the device. (16-mixed always does so.)
  bool skip_nonfinite = false;
  /// Batch norm by the batches of all ranks, torch's own layers too; `false`: each rank by its own.
  bool sync_batchnorm = false;
};

/// What a run will do: the options with every "auto" answered. A plain value, printable, made without touching
/// hardware.
struct FabricPlan {
  std::string accelerator;
  /// One per process of a node, by local rank.
  std::vector<c10::Device> devices;
  /// Whether the user named the devices or left them to Levin; then a launcher's number of processes is taken.
  bool devices_asked = false;
  int num_nodes = 1;
  StrategyChoice strategy;
  PrecisionPlan precision;

  int world_size() const { return static_cast<int>(devices.size()) * num_nodes; }
  /// "cpu x 2, ddp, bf16-mixed"
  std::string to_string() const;
};

/// Answers every open question of the options for a machine with that many CUDA devices. Throws Error, one line, for
/// anything unknown or impossible.
FabricPlan resolve(const FabricOptions& options, int cuda_devices);

}  // namespace levin
