// A rank that does what its arguments say, without any torch: what the launcher's tests start.
//   launch_probe [--self N] [--nodes N --node I --port P] ACTION...
// --self starts this program again as N ranks, as a program that uses Fabric does. Actions run in order; one with "@R" in
// front is for rank R only.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "levin/core/main.h"
#include "levin/distributed/launcher.h"
#include "levin/environments/environment.h"

namespace {

std::string variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? value : "(none)";
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void print_variables() {
  std::string line = "variables";
  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "ROLE_NAME",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS"})
    line += std::string(" ") + name + "=" + variable(name);
  say(line);
}

void print_placement() {
  const auto environment = levin::detect_environment();
  const auto p = environment->placement({.devices = 0, .num_nodes = 0});
  say("placement " + environment->name() + " rank " + std::to_string(p.global_rank) + " of " + std::to_string(p.world_size) +
      " local " + std::to_string(p.local_rank) + " of " + std::to_string(p.local_world_size) + " node " +
      std::to_string(p.node_rank) + " at " + p.master_addr + ":" + std::to_string(p.master_port));
}

void print_open_files() {
  // Standard files only: nothing of the launcher may leak into the ranks.
  std::string line = "files";
  for (int fd = 3; fd < 256; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) continue;
    char target[256] = {};
    const auto link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), target, sizeof(target) - 1) > 0) line += std::string(" ") + target;
  }
  say(line);
}

void on_terminate(int) {
  const char text[] = "got SIGTERM\n";
  const auto written = ::write(1, text, sizeof(text) - 1);
  (void)written;
  ::_exit(0);
}

void act(const std::string& action, const std::string& value) {
  const auto number = std::atol(value.c_str());
  if (action == "env") {
    print_variables();
  } else if (action == "place") {
    print_placement();
  } else if (action == "files") {
    print_open_files();
  } else if (action == "get") {
    say(value + "=" + variable(value));
  } else if (action == "say") {
    say(value);
  } else if (action == "part") {
    std::fputs(value.c_str(), stdout);
    std::fflush(stdout);
  } else if (action == "complain") {
    std::fprintf(stderr, "%s\n", value.c_str());
  } else if (action == "lines") {
    for (long i = 0; i < number; ++i) std::printf("line %ld of rank %s\n", i, variable("RANK").c_str());
    std::fflush(stdout);
  } else if (action == "bar") {
    for (int i = 1; i <= 5; ++i) std::fprintf(stderr, "\rbar %d/5", i);
    std::fputc('\n', stderr);
  } else if (action == "cat") {
    for (int c; (c = std::getchar()) != EOF;) std::putchar(c);
    std::fflush(stdout);
  } else if (action == "ms") {
    std::this_thread::sleep_for(std::chrono::milliseconds(number));
  } else if (action == "sleep") {
    for (;;) ::pause();
  } else if (action == "exit") {
    std::exit(static_cast<int>(number));
  } else if (action == "kill") {
    ::raise(static_cast<int>(number));
  } else if (action == "deaf") {
    std::signal(SIGTERM, SIG_IGN);
    std::signal(SIGINT, SIG_IGN);
  } else if (action == "polite") {
    std::signal(SIGTERM, on_terminate);
  } else if (action == "fork") {  // a grandchild that stays
    std::fflush(nullptr);
    if (::fork() == 0)
      for (;;) ::pause();
  } else if (action == "failfirst") {  // exits with this status unless the run was started again
    if (variable("TORCHELASTIC_RESTART_COUNT") == "0") std::exit(static_cast<int>(number));
  } else {
    std::fprintf(stderr, "launch_probe: no action \"%s\"\n", action.c_str());
    std::exit(99);
  }
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
    for (size_t i = 1; i < words.size(); ++i) {
      if (words[i].starts_with("--")) {
        ++i;
        continue;
      }
      std::string word = words[i];
      if (word.starts_with("@")) {
        const auto colon = word.find(':');
        if (variable("RANK") != word.substr(1, colon - 1)) continue;
        word = word.substr(colon + 1);
      }
      const auto equals = word.find('=');
      act(word.substr(0, equals), equals == std::string::npos ? "" : word.substr(equals + 1));
    }
  });
}
