// Training programs drawn from a seed: under every strategy they equal one process on the whole batch, or are refused
// in one line; and whatever throws in them, nothing hangs.
//
//     LEVIN_RANDOM_SECONDS=600 build/bin/tests/random_programs_test      as many as fit in ten minutes
//     LEVIN_RANDOM_SEED=123 LEVIN_RANDOM_PROGRAMS=1 ...                  one program again
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "levin/distributed/store.h"
#include "levin/testing/ranks.h"
#include "levin/testing/temporary_folder.h"
#include "tests/strategies/module_program.h"
#include "tests/strategies/random_program.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;

int64_t variable(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

const char* folder_of(Mode mode) {
  return mode == Mode::kAlone ? "alone" : mode == Mode::kRanks ? "ranks" : "undisturbed";
}

/// Runs a program as forked ranks that a launcher like torchrun would have started.
std::vector<RankResult> run_world(int world, const std::function<std::vector<Tensor>()>& program) {
  RanksOptions options;
  options.errors_expected = true;
  return run_ranks(
      world,
      [&](Collective& group) {
        const auto rank = std::to_string(group.rank()), size = std::to_string(world);
        // Served here, as by a launcher: a port that was only found free could be taken by then.
        HostedStore hosted;
        if (group.rank() == 0) hosted = host_store("127.0.0.1", 0, std::chrono::seconds(60));
        const auto port = broadcast_string(group, std::to_string(hosted.port));
        for (const auto& [name, value] :
             std::vector<std::pair<std::string, std::string>>{{"RANK", rank},
                                                              {"LOCAL_RANK", rank},
                                                              {"WORLD_SIZE", size},
                                                              {"LOCAL_WORLD_SIZE", size},
                                                              {"GROUP_RANK", "0"},
                                                              {"MASTER_ADDR", "127.0.0.1"},
                                                              {"MASTER_PORT", port},
                                                              {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                              {"TORCHELASTIC_RUN_ID", "random"}})
          ::setenv(name.c_str(), value.c_str(), 1);
        return program();
      },
      options);
}

std::vector<RankResult> run_program(const RandomProgram& program, Mode mode, const fs::path& folder) {
  return run_world(mode == Mode::kAlone ? 1 : program.ranks, [&] {
    const auto trained = train_program(program, mode, (folder / folder_of(mode)).string());
    return std::vector<Tensor>{at::tensor(trained.losses, at::kDouble),
                               at::full({}, static_cast<int64_t>(trained.caught.size()), at::kLong),
                               at::tensor(trained.observed, at::kDouble)};
  });
}

/// "" when every rank of `results` ended well; else what became of them.
std::string ends_of(const std::vector<RankResult>& results) {
  std::string text;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const auto& result = results[rank];
    if (result.timed_out)
      text += fmt::format("rank {} hung; ", rank);
    else if (result.signal)
      text += fmt::format("rank {} ended by signal {}; ", rank, result.signal);
    else if (!result.error.empty())
      text += fmt::format("rank {}: {}; ", rank, result.error);
  }
  return text;
}

bool one_line_each(const std::vector<RankResult>& results) {
  for (const auto& result : results)
    if (result.timed_out || result.signal || result.error.empty() || result.error.find('\n') != std::string::npos)
      return false;
  return true;
}

double tolerance_of(const RandomProgram& program) {
  return program.precision.starts_with("bf16") ? 6e-2 : program.precision == "64-true" ? 1e-6 : 2e-4;
}

/// How far the two are apart, relative to the size of the values (of 1 at least); a large number when they do not fit.
double distance(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e9;
  if (a.numel() == 0) return 0;
  const auto wanted = b.to(at::kDouble);
  const auto far = ((a.to(at::kDouble) - wanted).abs() / wanted.abs().clamp_min(1.0)).max().item<double>();
  return std::isfinite(far) ? far : 1e9;
}

struct Tally {
  int equal = 0, refused = 0, failed_together = 0;
};

/// Whether a line is one of the refusals that are meant: of what setup or a step cannot do, with the way to do it.
bool is_refusal(const std::string& error) {
  for (const char* refused : {"optimizer_in_backward", "OptimizerInBackward", "chunk_size", "matches no unit",
                              "cpu_offload needs", "did not run in the first step"})
    if (error.starts_with("[") && error.find(refused) != std::string::npos) return true;
  return false;
}

/// What a rank saw and trained equals that of another run: its losses, the checkpoint that it has written.
void expect_equal(const RankResult& result, const RankResult& other, const fs::path& folder, Mode mode,
                  double tolerance) {
  EXPECT_EQ(result.tensors.at(1).item<int64_t>(), other.tensors.at(1).item<int64_t>()) << "failures caught";
  EXPECT_LE(distance(result.tensors.at(0), other.tensors.at(0)), tolerance)
      << "losses " << result.tensors[0] << "\n"
      << folder_of(mode) << " " << other.tensors[0];
  const auto ours = load_checkpoint(folder / "ranks").at("model").to_dict();
  const auto wanted = load_checkpoint(folder / folder_of(mode)).at("model").to_dict();
  EXPECT_EQ(ours.size(), wanted.size());
  for (const auto& [name, value] : wanted) {
    ASSERT_TRUE(ours.contains(name)) << name;
    EXPECT_LE(distance(ours.at(name).to_tensor(), value.to_tensor()), tolerance) << folder_of(mode) << " " << name;
  }
}

void check(const RandomProgram& program, const fs::path& folder, Tally& tally) {
  SCOPED_TRACE(program.describe());
  const auto results = run_program(program, Mode::kRanks, folder);
  const auto ends = ends_of(results);
  if (one_line_each(results) && std::ranges::all_of(results, [](auto& result) { return is_refusal(result.error); })) {
    ++tally.refused;
    std::cout << "refused: " << results[0].error << "  (" << program.describe() << ")\n";
    return;
  }
  if (program.failure.starts_with("one_")) {
    EXPECT_TRUE(one_line_each(results)) << "not every rank got a line: " << ends;
    EXPECT_NE(ends.find("drawn failure"), std::string::npos) << ends;
    ++tally.failed_together;
    return;
  }
  if (!ends.empty()) {
    ADD_FAILURE() << ends;
    return;
  }
  const bool failed_before = ::testing::Test::HasFailure();
  const auto alone = run_program(program, Mode::kAlone, folder);
  if (const auto reason = ends_of(alone); !reason.empty()) {
    ADD_FAILURE() << "one process: " << reason;
    return;
  }
  expect_equal(results[0], alone[0], folder, Mode::kAlone, tolerance_of(program));
  EXPECT_LE(distance(results[0].tensors.at(2), alone[0].tensors.at(2)), tolerance_of(program))
      << "seen besides " << results[0].tensors[2] << "\nby one process " << alone[0].tensors[2];
  // Tolerances hide a step with old values: whoever looks on changes no bit.
  if (program.has_observations()) {
    const auto undisturbed = run_program(program, Mode::kUndisturbed, folder);
    const auto reason = ends_of(undisturbed);
    EXPECT_EQ(reason, "") << "without observations";
    if (reason.empty()) expect_equal(results[0], undisturbed[0], folder, Mode::kUndisturbed, 0);
  }
  if (failed_before || !::testing::Test::HasFailure()) ++tally.equal;
}

void expect_trained_alike(const fs::path& ours_path, const fs::path& wanted_path) {
  const auto ours = load_checkpoint(ours_path), wanted = load_checkpoint(wanted_path);
  for (const auto& [module, values] : wanted)
    if (values.is_dict())
      for (const auto& [name, value] : values.to_dict())
        EXPECT_LE(distance(ours.at(module).to_dict().at(name).to_tensor(), value.to_tensor()), 2e-4)
            << module << " " << name;
}

/// Programs of several modules: those that people write, then drawn ones.
std::vector<ModuleProgram> module_programs(int64_t drawn, bool retains) {
  auto programs = known_module_programs();
  if (!retains)
    std::erase_if(programs, [](const auto& program) {
      return std::ranges::any_of(program.step, [](const auto& op) { return op.retain_graph; });
    });
  const auto seed = static_cast<uint64_t>(variable("LEVIN_RANDOM_SEED", 1));
  for (int64_t i = 0; i < drawn; ++i)
    programs.push_back(drawn_module_program(seed + static_cast<uint64_t>(i), retains));
  return programs;
}

TEST(SeveralModules, InAnyOrderEqualOneProcess) {
  const auto all = module_strategies();
  size_t next = 0;
  for (const auto& program : module_programs(variable("LEVIN_RANDOM_PROGRAMS", 6), true)) {
    SCOPED_TRACE(program.describe());
    const TemporaryFolder folder;
    const auto alone = run_world(1, [&] { return train_modules(program, "auto", (folder.path() / "alone").string()); });
    ASSERT_EQ(ends_of(alone), "");
    const bool known = !program.name.starts_with("seed");
    for (size_t i = 0; i < all.size(); ++i) {
      // Drawn ones under three strategies each, in turns.
      if (!known && i % 3 != next % 3) continue;
      const int world = 2 + static_cast<int>((i + next) % 2);
      SCOPED_TRACE(fmt::format("{} x {}", all[i].first, world));
      const auto path = folder.path() / std::to_string(i);
      const auto ranks = run_world(world, [&] { return train_modules(program, all[i].second, path.string()); });
      ASSERT_EQ(ends_of(ranks), "");
      EXPECT_LE(distance(ranks[0].tensors.at(0), alone[0].tensors.at(0)), 2e-4);
      expect_trained_alike(path, folder.path() / "alone");
    }
    ++next;
  }
}

TEST(SeveralModules, OptimizedManuallyEqualOneProcess) {
  auto all = module_strategies();
  std::erase_if(all, [](const auto& named) { return named.first == "ddp"; });
  size_t next = 0;
  for (const auto& program : module_programs(0, false)) {
    // Sharding refuses units that have not run when the first backward ends.
    if (program.name == "cached encoder") continue;
    SCOPED_TRACE(program.describe());
    const TemporaryFolder folder;
    const auto alone = run_world(1, [&] { return train_modules_manually(program, "auto", 1, folder.path().string()); });
    ASSERT_EQ(ends_of(alone), "");
    for (size_t i = 0; i < all.size(); ++i) {
      if (i % 2 != next % 2) continue;
      const int world = 2 + static_cast<int>(i % 2);
      SCOPED_TRACE(fmt::format("{} x {}", all[i].first, world));
      const auto ranks = run_world(
          world, [&] { return train_modules_manually(program, all[i].second, world, folder.path().string()); });
      ASSERT_EQ(ends_of(ranks), "");
      EXPECT_LE(distance(ranks[0].tensors.at(0), alone[0].tensors.at(0)), 2e-4);
    }
    ++next;
  }
}

TEST(RandomPrograms, EqualOneProcessOrAreRefused) {
  // The same programs every time; a longer run, or another seed, is asked for.
  const auto seed = static_cast<uint64_t>(variable("LEVIN_RANDOM_SEED", 1));
  const auto count = variable("LEVIN_RANDOM_PROGRAMS", std::getenv("LEVIN_RANDOM_SECONDS") ? 1'000'000 : 60);
  const auto limit = std::chrono::seconds(variable("LEVIN_RANDOM_SECONDS", 240));
  std::cout << fmt::format("LEVIN_RANDOM_SEED={}\n", seed) << std::flush;
  const auto start = std::chrono::steady_clock::now();
  Tally tally;
  int64_t done = 0;
  for (; done < count && std::chrono::steady_clock::now() - start < limit; ++done) {
    const TemporaryFolder folder;
    check(RandomProgram(seed + static_cast<uint64_t>(done)), folder.path(), tally);
  }
  std::cout << fmt::format("{} programs: {} equal one process, {} refused, {} failed on every rank in one line\n", done,
                           tally.equal, tally.refused, tally.failed_together);
  if (done >= 10) {
    EXPECT_GT(tally.equal, done / 4);
  }
}

}  // namespace
}  // namespace levin::testing
