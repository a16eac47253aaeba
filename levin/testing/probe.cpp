#include "levin/testing/probe.h"

#include <cstdio>
#include <map>

#include <gtest/gtest.h>

#include "levin/distributed/launcher.h"

namespace levin::testing {
namespace {

const std::string kFlag = "--probe=";

using Body = void (*)(const std::vector<std::string>&);

std::map<std::string, Body>& probes() {
  static std::map<std::string, Body> all;
  return all;
}

}  // namespace

std::vector<std::string> probe_command(const std::string& name, const std::vector<std::string>& arguments) {
  std::vector<std::string> command{"/proc/self/exe", kFlag + name};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

int launch_probe(const std::string& name, int world, const std::vector<std::string>& arguments) {
  return launch({.command = probe_command(name, arguments), .nproc = world});
}

bool register_probe(const std::string& name, Body body) {
  return probes().emplace(name, body).second;
}

int run_probe(const std::vector<std::string>& words) {
  if (words.size() < 2 || !words[1].starts_with(kFlag)) return -1;
  const auto found = probes().find(words[1].substr(kFlag.size()));
  if (found == probes().end()) {
    std::fprintf(stderr, "no probe \"%s\"\n", words[1].c_str());
    return 2;
  }
  try {
    found->second({words.begin() + 2, words.end()});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", words[1].c_str(), error.what());
    return 1;
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace levin::testing
