#include <thread>

#include <torch/cuda.h>

#include "levin/distributed/launcher.h"
#include "levin/program/command.h"
#include "levin/program/run_flags.h"

namespace levin::cli {

int run(const std::vector<std::string>& words, const Args&) {
  Machine machine;
  machine.cores = std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
  machine.gpus = static_cast<int>(torch::cuda::device_count());
  const auto spec = parse_run(words, machine);
  return spec ? launch(*spec) : 0;
}

}  // namespace levin::cli
