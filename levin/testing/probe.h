#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace levin::testing {

/// A body that a test runs in new processes of its own program: as ranks that a launcher starts, or to kill it. The
/// process ends with status 1 when an expectation fails in it or an exception leaves it. Names are unique in a program.
///
///     LEVIN_PROBE(writer) {
///       for (;;) save_checkpoint(arguments.at(0), state());
///     }
///     Process writer(probe_command("writer", {folder.path()}));
///     EXPECT_EQ(launch_probe("trains", 2, {folder.path(), "fsdp"}), 0);
#define LEVIN_PROBE(name)                                                    \
  static void levin_probe_##name(const std::vector<std::string>& arguments); \
  [[maybe_unused]] static const bool levin_probe_##name##_is_known =         \
      ::levin::testing::register_probe(#name, levin_probe_##name);           \
  static void levin_probe_##name([[maybe_unused]] const std::vector<std::string>& arguments)

/// The command that runs a probe of this program.
std::vector<std::string> probe_command(const std::string& name, const std::vector<std::string>& arguments = {});
/// Runs a probe as `world` ranks of this node. Returns the launcher's status: 0, or that of the rank that failed.
int launch_probe(const std::string& name, int world, const std::vector<std::string>& arguments = {});

/// What the ranks of a probe found out: each writes its answer to a folder, and the test reads them, by rank
/// ("no answer" where there is none).
void write_answer(const std::filesystem::path& folder, const std::string& text);
std::vector<std::string> read_answers(const std::filesystem::path& folder, int world);

bool register_probe(const std::string& name, void (*body)(const std::vector<std::string>& arguments));
/// Of main(): runs the probe that the words of the command line name and returns its status; -1 when they name none.
int run_probe(const std::vector<std::string>& words);

}  // namespace levin::testing
