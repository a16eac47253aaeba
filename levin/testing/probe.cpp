#include "levin/testing/probe.h"

#include <cstdio>
#include <cstdlib>
#include <map>

#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/distributed/launcher/launcher.h"

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

void write_answer(const std::filesystem::path& folder, const std::string& text) {
  const char* rank = std::getenv("RANK");
  write_file(folder / ("rank_" + std::string(rank ? rank : "0")), text);
}

std::vector<std::string> read_answers(const std::filesystem::path& folder, int world) {
  std::vector<std::string> answers;
  for (int rank = 0; rank < world; ++rank) {
    const auto path = folder / ("rank_" + std::to_string(rank));
    answers.push_back(std::filesystem::exists(path) ? read_file(path) : "no answer");
  }
  return answers;
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
