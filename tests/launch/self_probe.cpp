// A program that starts its own ranks, as one that uses Fabric does: self_probe --self N [--nodes N] ACTION...
// The action "place" prints where the environment says that this process stands.
#include <csignal>
#include <cstdlib>
#include <string>

#include "levin/core/main.h"
#include "levin/distributed/launcher/launcher.h"
#include "levin/environments/environment.h"
#include "probe_actions.h"

namespace {

void print_placement() {
  const auto environment = levin::detect_environment();
  const auto p = environment->placement({.devices = 0, .num_nodes = 0});
  levin::testing::say("placement " + environment->name() + " rank " + std::to_string(p.global_rank) + " of " +
                      std::to_string(p.world_size) + " local " + std::to_string(p.local_rank) + " of " +
                      std::to_string(p.local_world_size) + " node " + std::to_string(p.node_rank) + " at " +
                      p.master_addr + ":" + std::to_string(p.master_port));
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const auto& words = args.values();
    if (const auto nproc = args.get("self", 0); nproc > 0) {
      const auto environment = levin::detect_environment();
      const auto place = environment->placement(
          {.devices = static_cast<int>(nproc), .num_nodes = static_cast<int>(args.get("nodes", 1))});
      if (!environment->creates_processes_externally()) {
        const int status = levin::launch_self(words, place);
        // No handler may be left behind.
        struct sigaction action {};
        for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGPIPE}) {
          ::sigaction(signal, nullptr, &action);
          if (action.sa_handler != SIG_DFL) std::exit(98);
        }
        std::exit(status);
      }
    }
    levin::testing::act_all(words, [](const std::string& name) {
      if (name == "place") print_placement();
      return name == "place";
    });
  });
}
