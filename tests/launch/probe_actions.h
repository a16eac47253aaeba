#pragma once

// What a rank under test can do.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace levin::testing {

inline std::string variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? value : "(none)";
}

inline void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

inline void print_variables() {
  std::string line = "variables";
  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
        "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS"})
    line += std::string(" ") + name + "=" + variable(name);
  say(line);
}

inline void print_open_files() {
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

inline void on_terminate(int) {
  const char text[] = "got SIGTERM\n";
  const auto written = ::write(1, text, sizeof(text) - 1);
  (void)written;
  ::_exit(0);
}

/// Returns when every rank of the run is here: each leaves a file of this name.
inline void meet(const std::string& path) {
  std::ofstream(path + variable("RANK")).put('\n');
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (int rank = 0; rank < std::atoi(variable("WORLD_SIZE").c_str()); ++rank)
    while (!std::filesystem::exists(path + std::to_string(rank))) {
      if (std::chrono::steady_clock::now() > limit) std::exit(97);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

inline void act(const std::string& action, const std::string& value) {
  const auto number = std::atol(value.c_str());
  if (action == "env") {
    print_variables();
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
  } else if (action == "meet") {
    meet(value);
  } else if (action == "ms") {
    std::this_thread::sleep_for(std::chrono::milliseconds(number));
  } else if (action == "save") {  // as a rank that writes a checkpoint does
    const int mark = ::open(variable("LEVIN_SAVE_MARK").c_str(), O_RDWR);
    if (mark < 0 || ::flock(mark, LOCK_SH) != 0) std::exit(98);
    say("saving");
    std::this_thread::sleep_for(std::chrono::milliseconds(number));
    say("saved");
    ::close(mark);
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

/// Runs actions NAME or NAME=VALUE in order; one with "@R:" in front is for rank R only. Flags and their values are
/// skipped.
template <class Words, class Special>
void act_all(const Words& words, Special&& special) {
  for (size_t i = 1; i < words.size(); ++i) {
    std::string word = words[i];
    if (word.compare(0, 2, "--") == 0) {
      ++i;
      continue;
    }
    if (word[0] == '@') {
      const auto colon = word.find(':');
      if (variable("RANK") != word.substr(1, colon - 1)) continue;
      word = word.substr(colon + 1);
    }
    const auto equals = word.find('=');
    const auto name = word.substr(0, equals);
    if (!special(name)) act(name, equals == std::string::npos ? "" : word.substr(equals + 1));
  }
}

}  // namespace levin::testing
