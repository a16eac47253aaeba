// A rank that forks: its child cannot communicate, and says so; it can let go of everything and end, and the ranks do
// not notice.
#include <cstdlib>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "levin/fabric/fabric.h"
#include "levin/optim/adam.h"
#include "levin/testing/forked.h"
#include "levin/testing/probe.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

LEVIN_PROBE(forks) {
  at::set_num_threads(1);  // a forked child has no threads of OpenMP
  std::optional<Fabric> fabric;
  fabric.emplace(FabricOptions{.accelerator = "cpu", .strategy = arguments.at(1), .devices = 2});
  fabric->launch();
  auto module = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(8, 8), torch::nn::Linear(8, 2));
  auto made = fabric->setup(module, optim::AdamW(module->parameters(), {.lr = 1e-3}));
  std::optional net(std::move(std::get<0>(made)));
  std::optional optimizer(std::move(std::get<1>(made)));
  module.reset();
  const auto step = [&] {
    const auto loss = (*net)(at::ones({4, 8})).pow(2).mean();
    fabric->backward(loss);
    optimizer->step();
    optimizer->zero_grad();
    return loss.item<double>();
  };
  const double first = step();
  EXPECT_THAT(in_a_child([&] {
                fabric->barrier();
                return std::string("no error");
              }),
              HasSubstr("which alone communicates"));
  EXPECT_THAT(in_a_child([&] {
                for (int i = 0; i < 2; ++i) step();
                return std::string("no error");
              }),
              HasSubstr("which alone communicates"));
  EXPECT_EQ(in_a_child([&] {
              optimizer.reset();
              net.reset();
              fabric.reset();
              return std::string("gone");
            }),
            "gone");
  // An exception that leaves the run of a child is not the rank's.
  EXPECT_THAT(in_a_child([&]() -> std::string {
                struct Holder {
                  std::optional<Fabric>& held;
                  ~Holder() { held.reset(); }
                } const holder{fabric};
                throw Error("of the child");
              }),
              HasSubstr("of the child"));
  // All that runs at exit, too.
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    std::exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const double second = step();
  EXPECT_LT(second, first);
  fabric->barrier();
  write_answer(arguments.at(0), "done");
}

TEST(ForkedRank, ItsChildEndsAndTheRanksContinue) {
  for (const char* strategy : {"ddp", "fsdp", "deepspeed_stage_2_offload", "colossalai"}) {
    const TemporaryFolder folder;
    EXPECT_EQ(launch_probe("forks", 2, {folder.path().string(), strategy}), 0) << strategy;
    EXPECT_EQ(read_answers(folder.path(), 2), (std::vector<std::string>{"done", "done"})) << strategy;
  }
}

}  // namespace
}  // namespace levin::testing
