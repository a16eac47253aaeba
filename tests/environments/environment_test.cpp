#include "levin/environments/environment.h"

#include <fstream>
#include <map>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/environments/variants.h"
#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

using Vars = std::map<std::string, std::string>;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

ReadVariable reader(Vars variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

/// `base` with some variables replaced; an empty value removes one.
Vars with(Vars base, const Vars& changes) {
  for (const auto& [name, value] : changes) {
    if (value.empty()) {
      base.erase(name);
    } else {
      base[name] = value;
    }
  }
  return base;
}

Placement place(const Vars& variables, const WorldAsked& asked, const std::string& name = "auto") {
  return detect_environment(name, reader(variables))->placement(asked);
}

std::string error(const Vars& variables, const WorldAsked& asked, const std::string& name = "auto") {
  return error_of([&] { place(variables, asked, name); });
}

const Vars kTorchrun{
    {"TORCHELASTIC_RUN_ID", "none"}, {"RANK", "3"},          {"LOCAL_RANK", "1"},       {"WORLD_SIZE", "4"},
    {"LOCAL_WORLD_SIZE", "2"},       {"GROUP_RANK", "1"},    {"GROUP_WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"},
    {"MASTER_PORT", "29500"},        {"SLURM_NTASKS", "16"},
};
const Vars kSlurm{
    {"SLURM_JOB_ID", "1234567"},    {"SLURM_JOB_NAME", "train"}, {"SLURM_NTASKS", "4"},
    {"SLURM_NTASKS_PER_NODE", "2"}, {"SLURM_NNODES", "2"},       {"SLURM_PROCID", "3"},
    {"SLURM_LOCALID", "1"},         {"SLURM_NODEID", "1"},       {"SLURM_NODELIST", "gpu[07-08]"},
};
const Vars kOpenMpi{
    {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_MCA_ess_base_jobid", "42424"}, {"PMIX_RANK", "1"},
};
const Vars kMpich{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}};
const Vars kByHand{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29511"}};

TEST(Detection, FollowsTheOrder) {
  const Vars lsf{
      {"LSB_JOBID", "7"}, {"LSB_DJOB_RANKFILE", "f"}, {"JSM_NAMESPACE_LOCAL_RANK", "0"}, {"JSM_NAMESPACE_SIZE", "2"}};
  const std::vector<std::pair<Vars, std::string>> cases{
      {{}, "levin"},
      {kByHand, "levin"},
      {kTorchrun, "torchelastic"},  // though SLURM_NTASKS is set as well
      {kSlurm, "slurm"},
      {with(kSlurm, lsf), "slurm"},
      {lsf, "lsf"},
      {with(lsf, kOpenMpi), "lsf"},
      {with(lsf, {{"JSM_NAMESPACE_SIZE", ""}}), "levin"},
      {kOpenMpi, "mpi"},
      {kMpich, "mpi"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "1"}}), "levin"},
      {{{"PMIX_RANK", "0"}}, "levin"},
      {with(kSlurm, {{"SLURM_JOB_NAME", "bash"}}), "levin"},
      {with(kSlurm, {{"SLURM_JOB_NAME", "interactive"}}), "levin"},
      {with(kSlurm, {{"SLURM_NTASKS", ""}}), "levin"},
  };
  for (const auto& [variables, name] : cases)
    EXPECT_EQ(detect_environment("auto", reader(variables))->name(), name) << ::testing::PrintToString(variables);
}

TEST(Detection, TakesANameAndRefusesAnUnknownOne) {
  EXPECT_EQ(detect_environment("kubeflow", reader({}))->name(), "kubeflow");
  EXPECT_EQ(detect_environment("slurm", reader(kTorchrun))->name(), "slurm");
  EXPECT_THAT(error({}, {}, "slrum"), AllOf(HasSubstr("\"slrum\""), HasSubstr("did you mean \"slurm\""),
                                            HasSubstr("torchelastic, slurm, lsf, mpi, kubeflow, levin")));
}

TEST(Detection, SaysWhoCreatesTheProcesses) {
  EXPECT_FALSE(detect_environment("auto", reader({}))->creates_processes_externally());
  EXPECT_FALSE(
      detect_environment("auto", reader({{"NODE_RANK", "1"}, {"MASTER_ADDR", "a"}}))->creates_processes_externally());
  EXPECT_TRUE(detect_environment("auto", reader(kByHand))->creates_processes_externally());
  EXPECT_TRUE(detect_environment("auto", reader({{"LOCAL_RANK", "0"}}))->creates_processes_externally());
  EXPECT_TRUE(detect_environment("auto", reader({{"GLOBAL_RANK", "0"}}))->creates_processes_externally());
  for (const auto& variables : {kTorchrun, kSlurm, kOpenMpi})
    EXPECT_TRUE(detect_environment("auto", reader(variables))->creates_processes_externally());
}

TEST(TorchElastic, ReadsTorchrunsVariables) {
  const WorldAsked asked{.devices = 2, .num_nodes = 2};
  EXPECT_EQ(place(kTorchrun, asked), (Placement{3, 1, 1, 4, 2, "10.0.0.1", 29500, false, 0}));
  EXPECT_EQ(place(kTorchrun, {.devices = 0, .num_nodes = 0}).world_size, 4);
  const auto hosted =
      place(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}), asked);
  EXPECT_TRUE(hosted.store_is_hosted);
  EXPECT_EQ(hosted.attempt, 2);
  EXPECT_FALSE(place(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}), asked).store_is_hosted);
  EXPECT_EQ(place(with(kTorchrun, {{"RANK", ""}, {"GLOBAL_RANK", "2"}}), asked).global_rank, 2);
  EXPECT_EQ(place(with(kTorchrun, {{"GROUP_RANK", ""}, {"NODE_RANK", "1"}}), asked).node_rank, 1);
  EXPECT_EQ(place(with(kTorchrun, {{"GROUP_RANK", ""}}), asked).node_rank, 0);
}

TEST(TorchElastic, HasDefaultsForOneNode) {
  const Vars one{{"TORCHELASTIC_RUN_ID", "none"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_EQ(place(one, {}), (Placement{0, 0, 0, 1, 1, "127.0.0.1", 12910, false, 0}));
}

TEST(TorchElastic, RefusesWhatDoesNotFit) {
  const WorldAsked asked{.devices = 2, .num_nodes = 2};
  EXPECT_EQ(error(kTorchrun, {.devices = 3, .num_nodes = 1}),
            "[environment.torchelastic] WORLD_SIZE=4, but devices x num_nodes = 3 x 1 = 3 processes were asked for");
  EXPECT_THAT(error(with(kTorchrun, {{"MASTER_ADDR", ""}}), asked), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error(with(kTorchrun, {{"RANK", "4"}}), asked),
              HasSubstr("RANK=4 does not fit WORLD_SIZE=4; it must be 0 to 3"));
  EXPECT_THAT(error(with(kTorchrun, {{"LOCAL_RANK", "2"}}), asked),
              HasSubstr("LOCAL_RANK=2 does not fit LOCAL_WORLD_SIZE=2"));
  EXPECT_THAT(error(with(kTorchrun, {{"RANK", ""}}), asked), HasSubstr("RANK is not set"));
  EXPECT_THAT(error(with(kTorchrun, {{"LOCAL_RANK", ""}}), asked), HasSubstr("LOCAL_RANK is not set"));
  EXPECT_THAT(error(with(kTorchrun, {{"WORLD_SIZE", ""}}), asked), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(error(with(kTorchrun, {{"GLOBAL_RANK", "1"}}), asked), HasSubstr("RANK=3 and GLOBAL_RANK=1 contradict"));
  EXPECT_THAT(error(with(kTorchrun, {{"NODE_RANK", "0"}}), asked),
              HasSubstr("GROUP_RANK=1 and NODE_RANK=0 contradict"));
}

TEST(Numbers, MalformedOnesNameTheVariableAndTheValue) {
  const WorldAsked asked{.devices = 2, .num_nodes = 2};
  for (const char* bad : {"x", "1x", "-1", "1.5", " 1", "99999999999999999999", "0x1"}) {
    EXPECT_THAT(error(with(kTorchrun, {{"WORLD_SIZE", bad}}), asked), HasSubstr(fmt::format("WORLD_SIZE=\"{}\"", bad)));
    EXPECT_THAT(error(with(kSlurm, {{"SLURM_PROCID", bad}}), asked),
                HasSubstr(fmt::format("SLURM_PROCID=\"{}\"", bad)));
    EXPECT_THAT(error(with(kByHand, {{"RANK", bad}}), {.devices = 2}), HasSubstr(fmt::format("RANK=\"{}\"", bad)));
  }
  for (const char* bad : {"0", "65536", "70000"})
    EXPECT_THAT(error(with(kByHand, {{"MASTER_PORT", bad}}), {.devices = 2}),
                HasSubstr(fmt::format("MASTER_PORT={} is not a port", bad)));
}

TEST(Slurm, ReadsTheStepsVariables) {
  const WorldAsked asked{.devices = 2, .num_nodes = 2};
  EXPECT_EQ(place(kSlurm, asked), (Placement{3, 1, 1, 4, 2, "gpu07", 19567, false, 0}));
  EXPECT_EQ(place(with(kSlurm, {{"SLURM_JOB_ID", "12"}}), asked).master_port, 15012);
  EXPECT_EQ(place(with(kSlurm, {{"SLURM_JOB_ID", ""}}), asked).master_port, 12910);
  EXPECT_EQ(place(with(kSlurm, {{"MASTER_PORT", "4000"}}), asked).master_port, 4000);
  EXPECT_EQ(place(with(kSlurm, {{"MASTER_ADDR", "head"}}), asked).master_addr, "head");
  EXPECT_EQ(place(with(kSlurm, {{"SLURM_NODELIST", ""}}), asked).master_addr, "127.0.0.1");
  const Vars one = with(kSlurm, {{"SLURM_NTASKS", "1"},
                                 {"SLURM_NTASKS_PER_NODE", ""},
                                 {"SLURM_NNODES", "1"},
                                 {"SLURM_PROCID", "0"},
                                 {"SLURM_LOCALID", "0"},
                                 {"SLURM_NODEID", "0"}});
  EXPECT_EQ(place(one, {}).world_size, 1);
}

TEST(Slurm, RefusesWhatDoesNotFit) {
  const WorldAsked asked{.devices = 2, .num_nodes = 2};
  EXPECT_THAT(error(with(kSlurm, {{"SLURM_NTASKS_PER_NODE", ""}}), asked),
              AllOf(HasSubstr("SLURM_NTASKS=4"), HasSubstr("SLURM_NTASKS_PER_NODE is not set"),
                    HasSubstr("--ntasks-per-node")));
  EXPECT_THAT(error(kSlurm, {.devices = 4, .num_nodes = 2}), HasSubstr("SLURM_NTASKS_PER_NODE=2, but devices=4"));
  EXPECT_THAT(error(kSlurm, {.devices = 2, .num_nodes = 1}), HasSubstr("SLURM_NNODES=2, but num_nodes=1"));
  EXPECT_THAT(error(with(kSlurm, {{"SLURM_NTASKS", "3"}}), asked), HasSubstr("SLURM_NTASKS=3"));
  EXPECT_THAT(error(with(kSlurm, {{"SLURM_LOCALID", ""}}), asked), HasSubstr("SLURM_LOCALID is not set"));
  EXPECT_THAT(error(with(kSlurm, {{"SLURM_JOB_ID", "12a"}}), asked), HasSubstr("SLURM_JOB_ID=\"12a\""));
  EXPECT_THAT(error(with(kSlurm, {{"SLURM_NODELIST", "gpu[1-2"}}), asked), HasSubstr("SLURM_NODELIST=\"gpu[1-2\""));
}

TEST(Slurm, FindsTheFirstHost) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"host[5-9,1]", "host5"},
      {"1.2.3.[089, 100-110]", "1.2.3.089"},
      {"alpha,beta,gamma", "alpha"},
      {"alpha beta", "alpha"},
      {"host22[1,2-5]", "host221"},
      {"rack[1-2]node[03,7]", "rack1node03"},
      {"a[1-2]-ib,b", "a1-ib"},
      {"single", "single"},
      {"1.2.3.4", "1.2.3.4"},
      {"host-1[0-3]", "host-10"},
      {"", ""},
  };
  for (const auto& [list, host] : cases) EXPECT_EQ(detail::first_slurm_host(list), host) << list;
}

TEST(Lsf, ReadsTheRankFile) {
  const testing::TemporaryFolder folder;
  const auto path = (folder / "rankfile").string();
  std::ofstream(path) << "submit\nnodeA\nnodeA\nnodeB.cluster\nnodeB.cluster\n";
  const Vars variables{{"LSB_JOBID", "123456"},
                       {"LSB_DJOB_RANKFILE", path},
                       {"JSM_NAMESPACE_RANK", "2"},
                       {"JSM_NAMESPACE_LOCAL_RANK", "0"},
                       {"JSM_NAMESPACE_SIZE", "4"}};
  const WorldAsked asked{.devices = 2, .num_nodes = 2};
  const auto at = [&](const Vars& v, const char* host) { return detail::make_lsf(reader(v), host)->placement(asked); };
  const auto line = [&](const Vars& v, const char* host) -> std::string { return error_of([&] { at(v, host); }); };
  EXPECT_EQ(at(variables, "nodeB"), (Placement{2, 0, 1, 4, 2, "nodeA", 10456, false, 0}));
  EXPECT_EQ(at(with(variables, {{"MASTER_PORT", "77"}, {"MASTER_ADDR", "x"}}), "nodeA"),
            (Placement{2, 0, 0, 4, 2, "x", 77, false, 0}));
  EXPECT_THAT(line(variables, "nodeC"),
              AllOf(HasSubstr("\"nodeC\""), HasSubstr("LSB_DJOB_RANKFILE"), HasSubstr("nodeA, nodeB")));
  EXPECT_THAT(line(with(variables, {{"LSB_DJOB_RANKFILE", "/nowhere"}}), "nodeA"),
              HasSubstr("LSB_DJOB_RANKFILE=\"/nowhere\" cannot be read"));
  EXPECT_THAT(line(with(variables, {{"JSM_NAMESPACE_SIZE", "2"}}), "nodeA"),
              HasSubstr("JSM_NAMESPACE_SIZE=2, but devices x num_nodes"));
  EXPECT_THAT(line(with(variables, {{"JSM_NAMESPACE_RANK", ""}}), "nodeA"), HasSubstr("JSM_NAMESPACE_RANK is not set"));
  std::ofstream(path) << "submit\n";
  EXPECT_THAT(line(variables, "nodeA"), HasSubstr("names no host"));
}

TEST(Mpi, ReadsEachLibrarysVariables) {
  const auto open = place(kOpenMpi, {.devices = 2});
  EXPECT_EQ(open.global_rank, 1);
  EXPECT_EQ(open.local_rank, 1);
  EXPECT_EQ(open.node_rank, 0);
  EXPECT_EQ(open.world_size, 2);
  EXPECT_EQ(open.master_addr, "127.0.0.1");
  const auto mpich = place(kMpich, {.devices = 4});
  EXPECT_EQ(mpich.global_rank, 2);
  EXPECT_EQ(mpich.local_rank, 2);
  EXPECT_EQ(mpich.local_world_size, 4);
  const auto pmix = place(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", ""}}), {.devices = 2});
  EXPECT_EQ(pmix.global_rank, 1);
}

TEST(Mpi, DerivesOnePortFromTheJob) {
  const auto other_rank =
      with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"PMIX_RANK", "0"}});
  const auto port = [](const Vars& v, int parent) {
    return detail::make_mpi(reader(v), parent)->placement({.devices = 2}).master_port;
  };
  EXPECT_EQ(port(kOpenMpi, 1), port(other_rank, 2));
  EXPECT_NE(port(kOpenMpi, 1), port(with(kOpenMpi, {{"OMPI_MCA_ess_base_jobid", "42425"}}), 1));
  EXPECT_NE(port(kOpenMpi, 1), port(with(kOpenMpi, {{"PMIX_NAMESPACE", "job.1"}}), 1));
  const auto nameless = with(kOpenMpi, {{"OMPI_MCA_ess_base_jobid", ""}});
  EXPECT_EQ(port(nameless, 5), port(nameless, 5));
  EXPECT_NE(port(nameless, 5), port(nameless, 6));
  EXPECT_GE(port(nameless, 5), 20000);
  EXPECT_LT(port(nameless, 5), 30000);
  EXPECT_EQ(port(with(kOpenMpi, {{"MASTER_PORT", "333"}}), 1), 333);
}

TEST(Mpi, NeedsAnAddressAcrossHosts) {
  const Vars two = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}});
  const WorldAsked asked{.devices = 2, .num_nodes = 2};
  EXPECT_THAT(error(two, asked), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error(with(two, {{"MASTER_ADDR", "head"}}), asked), HasSubstr("MASTER_PORT is not set"));
  const auto there = place(with(two, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}}), asked);
  EXPECT_EQ(there, (Placement{3, 1, 1, 4, 2, "head", 29500, false, 0}));
  EXPECT_EQ(place(with(two, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}, {"NODE_RANK", "0"}}), asked).node_rank,
            0);
}

TEST(Mpi, RefusesWhatDoesNotFit) {
  EXPECT_THAT(error(kOpenMpi, {.devices = 4}), HasSubstr("world size=2, but devices x num_nodes = 4 x 1"));
  EXPECT_THAT(error({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, {.devices = 2}), HasSubstr("MPI_LOCALRANKID"));
  EXPECT_THAT(error({}, {}, "mpi"), HasSubstr("OMPI_COMM_WORLD_SIZE"));
}

TEST(Kubeflow, HasOneProcessPerPod) {
  const Vars pod{{"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}, {"RANK", "2"}, {"WORLD_SIZE", "3"}};
  const WorldAsked asked{.devices = 1, .num_nodes = 3};
  EXPECT_EQ(place(pod, asked, "kubeflow"), (Placement{2, 0, 2, 3, 1, "job-master-0", 23456, false, 0}));
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"})
    EXPECT_THAT(error(with(pod, {{name, ""}}), asked, "kubeflow"),
                HasSubstr(fmt::format("[environment.kubeflow] {} is not set", name)));
  EXPECT_THAT(error(pod, {.devices = 2, .num_nodes = 3}, "kubeflow"),
              HasSubstr("WORLD_SIZE=3, but devices x num_nodes = 2 x 3 = 6"));
}

TEST(ByHand, AProcessAloneNeedsNothing) {
  EXPECT_EQ(place({}, {}), Placement{});
  EXPECT_EQ(place({}, {.devices = 4}), (Placement{0, 0, 0, 4, 4, "127.0.0.1", 0, false, 0}));
}

TEST(ByHand, OneProcessPerNodeIsToBeLaunched) {
  const Vars node{{"NODE_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
  const WorldAsked asked{.devices = 4, .num_nodes = 2};
  EXPECT_EQ(place(node, asked), (Placement{4, 0, 1, 8, 4, "a", 29500, false, 0}));
  EXPECT_EQ(place(with(node, {{"NODE_RANK", ""}, {"GROUP_RANK", "1"}, {"WORLD_SIZE", "8"}}), asked).node_rank, 1);
  EXPECT_THAT(error(with(node, {{"MASTER_ADDR", ""}}), asked), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error(with(node, {{"MASTER_PORT", ""}}), asked), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(error(with(node, {{"NODE_RANK", ""}}), asked), HasSubstr("NODE_RANK is not set"));
  EXPECT_THAT(error(with(node, {{"NODE_RANK", "2"}}), asked), HasSubstr("NODE_RANK=2 does not fit num_nodes=2"));
  EXPECT_THAT(error(with(node, {{"WORLD_SIZE", "4"}}), asked),
              HasSubstr("WORLD_SIZE=4, but devices x num_nodes = 4 x 2 = 8"));
}

TEST(ByHand, OneProcessPerRank) {
  const WorldAsked asked{.devices = 2};
  EXPECT_EQ(place(kByHand, asked), (Placement{1, 1, 0, 2, 2, "127.0.0.1", 29511, false, 0}));
  EXPECT_EQ(place(with(kByHand, {{"RANK", ""}, {"GLOBAL_RANK", "1"}, {"MASTER_ADDR", ""}}), asked).global_rank, 1);
  EXPECT_EQ(place(with(kByHand, {{"RANK", ""}, {"LOCAL_RANK", "1"}, {"WORLD_SIZE", ""}}), asked).global_rank, 1);
  const Vars far{{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(place(far, {.devices = 4, .num_nodes = 2}), (Placement{5, 1, 1, 8, 4, "a", 29500, false, 0}));
  const Vars local{{"LOCAL_RANK", "3"}, {"NODE_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(place(local, {.devices = 4, .num_nodes = 2}), (Placement{7, 3, 1, 8, 4, "a", 29500, false, 0}));
}

TEST(ByHand, RefusesWhatDoesNotFit) {
  const WorldAsked asked{.devices = 2};
  EXPECT_THAT(error(with(kByHand, {{"WORLD_SIZE", ""}}), asked), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(error(with(kByHand, {{"WORLD_SIZE", "0"}}), {.devices = 0}), HasSubstr("WORLD_SIZE=0"));
  EXPECT_THAT(error(with(kByHand, {{"RANK", "2"}, {"LOCAL_RANK", "0"}}), asked), HasSubstr("NODE_RANK=1 does not fit"));
  EXPECT_THAT(error(with(kByHand, {{"RANK", "2"}, {"NODE_RANK", "0"}}), asked),
              HasSubstr("RANK=2 does not fit WORLD_SIZE=2"));
  EXPECT_THAT(error(with(kByHand, {{"WORLD_SIZE", "3"}}), asked),
              HasSubstr("WORLD_SIZE=3, but devices x num_nodes = 2 x 1"));
  EXPECT_THAT(error(with(kByHand, {{"MASTER_PORT", ""}}), asked), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(error(with(kByHand, {{"WORLD_SIZE", "4"}, {"MASTER_ADDR", ""}}), {.devices = 2, .num_nodes = 2}),
              HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error(with(kByHand, {{"LOCAL_WORLD_SIZE", "4"}}), asked),
              HasSubstr("LOCAL_WORLD_SIZE=4 does not fit WORLD_SIZE=2"));
}

TEST(ByHand, AnEmptyVariableCountsAsNotSet) {
  Vars empty = kByHand;
  for (auto& [name, value] : empty) value.clear();
  EXPECT_EQ(place(empty, {}), Placement{});
}

}  // namespace
}  // namespace levin
