// Signals end a run in order: soon, with the right status, one line, and a checkpoint from which it resumes exactly.
#include "levin/trainer/signals.h"

#include <chrono>
#include <csignal>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/testing/paths.h"
#include "tests/trainer/probe_runs.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A probe that is never signalled, for comparison.
struct Undisturbed {
  TemporaryFolder folder;
  std::string csv;

  explicit Undisturbed(const std::vector<std::string>& flags) {
    const auto run = start_probe(folder.path(), flags);
    EXPECT_EQ(run->wait(), 0) << run->err();
    csv = csv_of(run->out());
  }
};
// Ranks agree about twice a second: a run must be longer than that.
const std::vector<std::string> kTwo{"--devices", "2", "--pause", "30"};

const Undisturbed& undisturbed() {
  static const Undisturbed one({});
  return one;
}
const Undisturbed& two_undisturbed() {
  static const Undisturbed two(kTwo);
  return two;
}

/// What SLURM tells one of `ranks` tasks, with an scontrol that writes down what it is told.
std::vector<std::string> slurm(const fs::path& folder, int rank = 0, int ranks = 1, int port = 0) {
  const auto program = folder / "scontrol";
  if (!fs::exists(program)) {
    write_file(program, "#!/bin/sh\necho \"$@\" >> '" + (folder / "requeued").string() + "'\n");
    fs::permissions(program, fs::perms::owner_all);
  }
  return {"PATH=" + folder.string() + ":" + std::getenv("PATH"),
          "SLURM_JOB_NAME=train",
          "SLURM_JOB_ID=12345",
          "SLURM_NTASKS=" + std::to_string(ranks),
          "SLURM_NTASKS_PER_NODE=" + std::to_string(ranks),
          "SLURM_NNODES=1",
          "SLURM_NODEID=0",
          "SLURM_PROCID=" + std::to_string(rank),
          "SLURM_LOCALID=" + std::to_string(rank),
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + std::to_string(port ? port : free_port())};
}

std::string text_of(const fs::path& path) {
  return fs::exists(path) ? read_file(path) : "";
}

/// The lines that say that a signal came.
std::vector<std::string> lines_of(const Process& run, const std::string& word) {
  std::vector<std::string> found;
  std::istringstream text(run.err());
  for (std::string line; std::getline(text, line);)
    if (line.starts_with(word)) found.push_back(line);
  return found;
}

void expect_in_order(Process& run, int signal) {
  EXPECT_TRUE(run.wait_for("signalled"));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(run.wait(), 128 + signal) << run.err();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << run.err();
  const char* word = signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "SIGUSR1";
  EXPECT_EQ(lines_of(run, std::string("levin: [trainer] ") + word).size(), 1U) << run.err();
  EXPECT_THAT(run.err(), ::testing::Not(HasSubstr("error:")));
  EXPECT_THAT(run.err(), ::testing::Not(HasSubstr("warning:")));
  EXPECT_TRUE(run.all_gone());
}

/// A run that resumed from there ends as the one that was never disturbed.
void expect_resumes(const fs::path& folder, const std::string& ckpt_path, const Undisturbed& whole,
                    std::vector<std::string> flags = {}, const std::vector<std::string>& environment = {}) {
  if (!ckpt_path.empty()) flags.insert(flags.end(), {"--ckpt_path", ckpt_path});
  const auto run = start_probe(folder, flags, environment);
  EXPECT_EQ(run->wait(), 0) << run->err();
  EXPECT_THAT(run->err(), HasSubstr("resumes from"));
  EXPECT_EQ(final_difference(whole.folder.path(), folder), "") << ckpt_path;
  EXPECT_EQ(csv_of(run->out()), whole.csv) << ckpt_path;
}

struct Phase {
  const char* event;
  int64_t count;
};

// In a training batch, in a window of accumulation, in a validation, in one inside a window, at the end of an epoch,
// and between the files of a checkpoint.
const std::vector<Phase> kFitPhases{{"forward", 5},   {"batch_end", 7}, {"val_batch", 5},
                                    {"val_batch", 2}, {"epoch_end", 1}, {"file", 9}};

std::string at(const Phase& phase, const char* signal) {
  return std::string(phase.event) + ":" + std::to_string(phase.count) + ":" + signal;
}

TEST(Signals, CtrlCKeepsTheStateOfTraining) {
  for (const auto& phase : kFitPhases) {
    SCOPED_TRACE(at(phase, "INT"));
    TemporaryFolder folder;
    const auto run = start_probe(folder.path(), {"--at", at(phase, "INT")});
    expect_in_order(*run, SIGINT);
    const auto kept = folder.path() / "checkpoints" / "interrupted.ckpt";
    EXPECT_THAT(run->err(), HasSubstr("resume from there with ckpt_path \"" + kept.string() + "\""));
    EXPECT_EQ(whole_checkpoints(folder.path() / "checkpoints").back(), kept);
    expect_resumes(folder.path(), "last", undisturbed());
  }
}

TEST(Signals, TermKeepsTheStateForTheCluster) {
  for (const auto& phase : {kFitPhases[1], kFitPhases[2], kFitPhases[5]}) {
    SCOPED_TRACE(at(phase, "TERM"));
    TemporaryFolder folder;
    const auto run = start_probe(folder.path(), {"--at", at(phase, "TERM")});
    expect_in_order(*run, SIGTERM);
    whole_checkpoints(folder.path() / "checkpoints");
    EXPECT_EQ(whole_checkpoints(folder.path()).size(), 1U);
    expect_resumes(folder.path(), "hpc", undisturbed());
  }
}

TEST(Signals, OutsideOfTrainingNothingIsKept) {
  const std::vector<std::pair<std::string, Phase>> jobs{{"fit", {"sanity_batch", 1}},
                                                        {"validate", {"val_batch", 1}},
                                                        {"test", {"test_batch", 2}},
                                                        {"predict", {"predict_batch", 2}}};
  for (const auto& [job, phase] : jobs)
    for (const auto& [name, signal] : {std::pair{"INT", SIGINT}, std::pair{"TERM", SIGTERM}}) {
      SCOPED_TRACE(job + " " + name);
      TemporaryFolder folder;
      const auto run = start_probe(folder.path(), {"--job", job, "--at", at(phase, name)});
      expect_in_order(*run, signal);
      EXPECT_THAT(whole_checkpoints(folder.path()), IsEmpty());
      EXPECT_THAT(whole_checkpoints(folder.path() / "checkpoints"), IsEmpty());
    }
}

TEST(Signals, ASecondCtrlCEndsAtOnce) {
  TemporaryFolder folder;
  const auto run = start_probe(folder.path(), {"--at", "forward:5:INT2"});
  EXPECT_EQ(run->wait(), 128 + SIGINT);
  EXPECT_THAT(lines_of(*run, "levin: [trainer] Ctrl-C"), IsEmpty());
}

TEST(Signals, AProgramsOwnHandlerIsLeftAlone) {
  TemporaryFolder folder;
  const auto run = start_probe(folder.path(), {"--handler", "--at", "forward:5:TERM"});
  EXPECT_EQ(run->wait(), 0) << run->err();
  EXPECT_THAT(run->out(), HasSubstr("own handler"));
  EXPECT_EQ(final_difference(undisturbed().folder.path(), folder.path()), "");
}

TEST(Signals, DispositionsComeBack) {
  const auto of = [](int signal) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    return action.sa_handler;
  };
  std::signal(SIGTERM, SIG_IGN);
  {
    const detail::SignalFlags flags(/*with_requeue=*/true);
    EXPECT_EQ(of(SIGTERM), SIG_IGN);
    EXPECT_NE(of(SIGINT), SIG_DFL);
    EXPECT_NE(of(SIGUSR1), SIG_DFL);
    const detail::SignalFlags second(/*with_requeue=*/true);
    EXPECT_EQ(detail::SignalFlags::pending(), 0);
    std::raise(SIGUSR1);
    EXPECT_EQ(detail::SignalFlags::pending(), SIGUSR1);
    std::raise(SIGINT);  // who asks by hand wants it more
    EXPECT_EQ(detail::SignalFlags::pending(), SIGINT);
  }
  for (const int signal : {SIGINT, SIGUSR1}) EXPECT_EQ(of(signal), SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  const detail::SignalFlags again(/*with_requeue=*/false);
  EXPECT_EQ(detail::SignalFlags::pending(), 0);
  EXPECT_EQ(of(SIGUSR1), SIG_DFL);
}

TEST(Signals, SlurmRequeuesTheJobAndItResumes) {
  TemporaryFolder folder;
  const auto environment = slurm(folder.path());
  auto run = start_probe(folder.path(), {"--at", "batch_end:7:USR"}, environment);
  expect_in_order(*run, SIGUSR1);
  EXPECT_THAT(run->err(), HasSubstr("job 12345 is queued again"));
  EXPECT_EQ(text_of(folder.path() / "requeued"), "requeue 12345\n");
  // It is started again and asked again: a second checkpoint, from which the third start continues automatically.
  run = start_probe(folder.path(), {"--at", "val_batch:7:USR"}, environment);
  expect_in_order(*run, SIGUSR1);
  EXPECT_THAT(run->err(), HasSubstr("hpc_ckpt_1.ckpt"));
  EXPECT_EQ(text_of(folder.path() / "requeued"), "requeue 12345\nrequeue 12345\n");
  EXPECT_TRUE(fs::exists(folder.path() / "hpc_ckpt_2.ckpt"));
  expect_resumes(folder.path(), "", undisturbed(), {}, environment);
}

TEST(Signals, WithoutSlurmNobodyIsAskedToRequeue) {
  TemporaryFolder folder;
  const auto run = start_probe(folder.path(), {"--at", "batch_end:7:USR"});
  EXPECT_EQ(run->wait(), 128 + SIGUSR1);  // its own business: nothing handles it
  EXPECT_THAT(lines_of(*run, "levin: [trainer] SIGUSR1"), IsEmpty());
}

TEST(Signals, ReachTwoRanksThroughTheLauncher) {
  for (const auto& [phase, name] : {std::pair{Phase{"forward", 5}, "INT"}, std::pair{Phase{"val_batch", 4}, "TERM"}}) {
    SCOPED_TRACE(at(phase, name));
    TemporaryFolder folder;
    auto flags = kTwo;
    flags.insert(flags.end(), {"--at", at(phase, name), "--to", "parent"});
    const auto run = start_probe(folder.path(), flags);
    const bool by_hand = name == std::string("INT");
    expect_in_order(*run, by_hand ? SIGINT : SIGTERM);
    whole_checkpoints(folder.path() / "checkpoints");
    expect_resumes(folder.path(), by_hand ? "last" : "hpc", two_undisturbed(), kTwo);
  }
  TemporaryFolder folder;
  const auto run = start_probe(folder.path(), {"--devices", "2", "--pause", "500", "--job", "test", "--at",
                                               "test_batch:1:TERM", "--to", "parent"});
  expect_in_order(*run, SIGTERM);
}

TEST(Signals, TheLauncherPassesTheWishToRequeueOn) {
  TemporaryFolder folder;
  // As from `levin run` in a batch job of one task: the ranks are the launcher's, the job is SLURM's.
  auto environment = slurm(folder.path());
  environment.emplace_back("TORCHELASTIC_RUN_ID=job");
  auto command = levin_run({"--nproc-per-node", "2", resume_probe(), "--out", folder.path().string(), "--pause", "30",
                            "--devices", "2", "--at", "batch_end:5:USR", "--to", "parent"});
  Process run(command, environment);
  expect_in_order(run, SIGUSR1);
  EXPECT_EQ(text_of(folder.path() / "requeued"), "requeue 12345\n");
  EXPECT_TRUE(fs::exists(folder.path() / "hpc_ckpt_1.ckpt"));
}

TEST(Signals, OneRankOfTwoIsEnough) {
  TemporaryFolder folder;
  const auto run =
      start_probe(folder.path(), {"--devices", "2", "--pause", "30", "--rank", "1", "--at", "forward:6:TERM"});
  expect_in_order(*run, SIGTERM);
  EXPECT_EQ(whole_checkpoints(folder.path()).size(), 1U);
}

TEST(Signals, SlurmWithTwoTasks) {
  TemporaryFolder folder;
  const auto start = [&](const std::vector<std::string>& flags, int rank, int port) {
    return start_probe(folder.path(), flags, slurm(folder.path(), rank, 2, port));
  };
  int port = free_port();
  const std::vector<std::string> signalled{"--devices", "2", "--pause", "30", "--rank", "1", "--at", "batch_end:5:USR"};
  auto first = start(signalled, 0, port), second = start(signalled, 1, port);
  EXPECT_EQ(second->wait(), 128 + SIGUSR1) << second->err();
  EXPECT_EQ(first->wait(), 128 + SIGUSR1) << first->err();
  EXPECT_EQ(lines_of(*first, "levin: [trainer] SIGUSR1").size() + lines_of(*second, "levin: [trainer]").size(), 1U);
  EXPECT_EQ(text_of(folder.path() / "requeued"), "requeue 12345\n");
  port = free_port();
  first = start(kTwo, 0, port), second = start(kTwo, 1, port);
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(final_difference(two_undisturbed().folder.path(), folder.path()), "");
  EXPECT_EQ(csv_of(first->out()), two_undisturbed().csv);
}

}  // namespace
}  // namespace levin::testing
