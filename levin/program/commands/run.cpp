#include <thread>

#include <torch/cuda.h>

#include "levin/distributed/launcher/launcher.h"
#include "levin/program/command.h"
#include "levin/program/run_flags.h"

namespace levin::cli {

Command run_command() {
  return {.name = "run",
          .summary = kRunSummary,
          .run =
              [](const std::vector<std::string>& words, const Args&) {
                const Machine machine{.cores = std::max(static_cast<int>(std::thread::hardware_concurrency()), 1),
                                      .gpus = static_cast<int>(torch::cuda::device_count())};
                const auto spec = parse_run(words, machine);
                return spec ? launch(*spec) : 0;
              },
          .flags = run_flags};
}

}  // namespace levin::cli
