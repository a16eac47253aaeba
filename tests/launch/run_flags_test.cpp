#include "levin/program/run_flags.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/scoped_variable.h"

namespace levin::cli {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;
using testing::error_of;

const Machine kMachine{.cores = 12, .gpus = 0};

LaunchSpec parse(const Words& words, const Machine& machine = kMachine) {
  return parse_run(words, machine).value();
}

std::string error(const Words& words) {
  return error_of([&] { parse(words); });
}

TEST(RunFlags, DefaultsAreOneRankOnOneNode) {
  const auto spec = parse({"prog"});
  EXPECT_EQ(spec.nproc, 1);
  EXPECT_EQ(spec.nnodes, 1);
  EXPECT_EQ(spec.master_port, 0);
  EXPECT_EQ(spec.max_restarts, 0);
  EXPECT_EQ(spec.run_id, "none");
  EXPECT_THAT(spec.command, ElementsAre("prog"));
}

TEST(RunFlags, WhatFollowsTheProgramBelongsToIt) {
  const auto spec = parse({"--nproc-per-node", "2", "prog", "--nnodes", "7", "-x", "--", "--help", "a b"});
  EXPECT_EQ(spec.nproc, 2);
  EXPECT_EQ(spec.nnodes, 1);
  EXPECT_THAT(spec.command, ElementsAre("prog", "--nnodes", "7", "-x", "--", "--help", "a b"));
  EXPECT_THAT(parse({"--standalone", "--", "prog", "-x"}).command, ElementsAre("prog", "-x"));
}

TEST(RunFlags, TakesBothSpellings) {
  EXPECT_EQ(parse({"--nproc_per_node=3", "p"}).nproc, 3);
  EXPECT_EQ(parse({"--nproc-per-node=3", "p"}).nproc, 3);
  const auto spec =
      parse({"--nnodes=2", "--node_rank", "1", "--master_addr", "a", "--master_port", "1234", "--max_restarts=3",
             "--rdzv_id", "job", "--log_dir", "d", "--no_python", "--monitor_interval", "5", "--role", "x", "p"});
  EXPECT_EQ(spec.node_rank, 1);
  EXPECT_EQ(spec.master_addr, "a");
  EXPECT_EQ(spec.master_port, 1234);
  EXPECT_EQ(spec.max_restarts, 3);
  EXPECT_EQ(spec.run_id, "job");
  EXPECT_EQ(spec.log_dir, "d");
  EXPECT_EQ(spec.role, "x");
  EXPECT_EQ(parse({"--nproc-per-node=3", "--nproc-per-node=4", "p"}).nproc, 4);
}

TEST(RunFlags, CountsTheMachine) {
  EXPECT_EQ(parse({"--nproc-per-node", "cpu", "p"}).nproc, 12);
  EXPECT_EQ(parse({"--nproc-per-node", "auto", "p"}).nproc, 12);
  EXPECT_EQ(parse({"--nproc-per-node", "auto", "p"}, {.cores = 12, .gpus = 4}).nproc, 4);
  EXPECT_EQ(parse({"--nproc-per-node", "gpu", "p"}, {.cores = 12, .gpus = 4}).nproc, 4);
  EXPECT_THAT(error({"--nproc-per-node", "gpu", "p"}), HasSubstr("no GPU is usable"));
}

TEST(RunFlags, NodesMeetAtAnEndpoint) {
  auto spec = parse({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "head:1234", "p"});
  EXPECT_EQ(spec.node_rank, -1);
  EXPECT_EQ(spec.master_addr, "head");
  EXPECT_EQ(spec.master_port, 1234);
  spec = parse({"--nnodes", "2:2", "--rdzv-endpoint", "[fe80::1]:99", "--node-rank", "1", "--rdzv-conf",
                "join_timeout=1.5,is_host=1", "p"});
  EXPECT_EQ(spec.nnodes, 2);
  EXPECT_EQ(spec.node_rank, 1);
  EXPECT_EQ(spec.master_addr, "fe80::1");
  EXPECT_EQ(spec.master_port, 99);
  EXPECT_EQ(spec.join_timeout, 1500ms);
  EXPECT_EQ(parse({"--nnodes", "2", "--rdzv-endpoint", "head", "p"}).master_port, 29400);
  EXPECT_EQ(parse({"--nnodes", "2", "--node-rank=0", "--master-addr=h", "p"}).master_port, 29500);
  EXPECT_EQ(parse({"--standalone", "--master-port", "77", "p"}).master_port, 0);
  EXPECT_EQ(parse({"--master-port", "77", "p"}).master_port, 77);
}

TEST(RunFlags, StreamsByRank) {
  EXPECT_EQ(parse({"-r", "3", "p"}).redirects, (StreamChoice{.all = 3}));
  EXPECT_EQ(parse({"-t", "0:1,1:2", "p"}).tee, (StreamChoice{.all = 0, .by_local_rank = {{0, 1}, {1, 2}}}));
  EXPECT_EQ(parse({"--tee=0:1", "p"}).tee.of(0), 1);
  EXPECT_EQ(parse({"--tee=0:1", "p"}).tee.of(1), 0);
  EXPECT_THAT(parse({"--nproc-per-node=3", "--local-ranks-filter", "0,2", "p"}).shown_local_ranks, ElementsAre(0, 2));
}

TEST(RunFlags, ErrorsAreOneLineThatNamesTheFlag) {
  const std::vector<std::pair<Words, std::vector<std::string>>> cases{
      {{}, {"no program was given"}},
      {{"--nproc-per-node", "2"}, {"no program was given"}},
      {{"--nproc-per-nod", "2", "p"}, {"\"--nproc-per-nod\"", "did you mean \"--nproc-per-node\"?"}},
      {{"--max-restart=2", "p"}, {"\"--max-restart\"", "did you mean \"--max-restarts\"?"}},
      {{"--nproc-per-node", "two", "p"}, {"--nproc-per-node \"two\"", "auto, cpu or gpu"}},
      {{"--nproc-per-node", "0", "p"}, {"--nproc-per-node 0", "1 to"}},
      {{"--nproc-per-node", "2x", "p"}, {"--nproc-per-node \"2x\""}},
      {{"--nproc-per-node"}, {"--nproc-per-node"}},
      {{"--nnodes", "1:4", "p"}, {"--nnodes 1:4", "give one number"}},
      {{"--nnodes", "2", "p"}, {"--node-rank is not set"}},
      {{"--nnodes", "2", "--node-rank", "1", "p"}, {"--master-addr is not set", "MASTER_ADDR"}},
      {{"--nnodes", "2", "--node-rank", "2", "--master-addr", "a", "p"}, {"--node-rank 2 is out of range: 0 to 1"}},
      {{"--nnodes", "2", "--standalone", "p"}, {"--standalone is for one node"}},
      {{"--nnodes", "2", "--rdzv-endpoint", "h:1", "--master-addr", "a", "p"}, {"not both"}},
      {{"--nnodes", "2", "--rdzv-endpoint", "h:port", "p"}, {"--rdzv-endpoint port \"port\""}},
      {{"--nnodes", "2", "--rdzv-endpoint", ":1", "p"}, {"has no host"}},
      {{"--master-port", "65536", "p"}, {"--master-port 65536 is out of range"}},
      {{"--rdzv-backend", "etcd", "p"}, {"--rdzv-backend \"etcd\"", "static, c10d"}},
      {{"--rdzv-conf", "join_timout=1", "p"}, {"\"join_timout\"", "did you mean \"join_timeout\"?"}},
      {{"--rdzv-id", "a/b", "p"}, {"--rdzv-id \"a/b\""}},
      {{"--redirects", "4", "p"}, {"--redirects \"4\"", "3 (both)"}},
      {{"--tee", "0:1,2", "p"}, {"--tee \"0:1,2\"", "is not RANK:N"}},
      {{"--local-ranks-filter", "1", "p"}, {"--local-ranks-filter 1 is out of range"}},
      {{"--max-restarts", "-1", "p"}, {"--max-restarts -1 is out of range"}},
      {{"--stop-grace", "soon", "p"}, {"--stop-grace \"soon\""}},
  };
  for (const auto& [words, parts] : cases) {
    const auto line = error(words);
    EXPECT_THAT(line, ::testing::StartsWith("[levin run] "));
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    for (const auto& part : parts) EXPECT_THAT(line, HasSubstr(part));
  }
}

TEST(RunFlags, DefaultsComeFromPetVariables) {
  const testing::ScopedVariable ranks("PET_NPROC_PER_NODE", "5"), restarts("PET_MAX_RESTARTS", "2"),
      standalone("PET_STANDALONE", "1");
  const auto spec = parse({"p"});
  const auto overruled = parse({"--nproc-per-node", "6", "p"});
  EXPECT_EQ(spec.nproc, 5);
  EXPECT_EQ(spec.max_restarts, 2);
  EXPECT_EQ(overruled.nproc, 6);
}

TEST(RunFlags, HelpIsReadable) {
  const auto help = testing::captured_stdout([] { EXPECT_FALSE(parse_run({"--help"}, kMachine).has_value()); });
  EXPECT_THAT(help, AllOf(HasSubstr("levin run [FLAGS] PROGRAM"), HasSubstr("--nproc-per-node N|auto|cpu|gpu")));
  EXPECT_EQ(help.find("nproc_per_node"), std::string::npos);
}

}  // namespace
}  // namespace levin::cli
