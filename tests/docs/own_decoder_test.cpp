// examples/own_decoder.cpp: a model of one's own over meshes loses as it does in one process.
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "levin/testing/paths.h"
#include "levin/testing/process.h"

namespace levin::testing {
namespace {

struct Steps {
  std::vector<double> losses, sent;
};

Steps run_of(const std::vector<std::string>& words) {
  std::vector<std::string> command{binary_dir() + "/bin/examples/own_decoder", "--steps", "4"};
  command.insert(command.end(), words.begin(), words.end());
  const auto result = run_program(command, {"OMP_NUM_THREADS=1"});
  EXPECT_EQ(result.status, 0) << result.text();
  Steps steps;
  static const std::regex line("step [0-9]+ loss ([0-9.e+-]+), rank 0 sends ([0-9]+) bytes");
  for (std::sregex_iterator at(result.out.begin(), result.out.end(), line), end; at != end; ++at) {
    steps.losses.push_back(std::stod((*at)[1]));
    steps.sent.push_back(std::stod((*at)[2]));
  }
  EXPECT_EQ(steps.losses.size(), 4u) << result.text();
  return steps;
}

TEST(OwnDecoder, LosesOverEveryMeshAsInOneProcess) {
  const auto alone = run_of({});
  ASSERT_EQ(alone.losses.size(), 4u);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  EXPECT_EQ(alone.sent.back(), 0);
  for (const std::string mesh : {"pp=2,tp=2,microbatches=4", "dp_shard=2,tp=2", "tp=4,sequence_parallel",
                                 "pp=2,dp_shard=2,tp=2,sequence_parallel,microbatches=4"}) {
    const bool eight = mesh.find("pp=2,dp_shard=2") != std::string::npos;
    const auto steps = run_of({"--devices", eight ? "8" : "4", "--strategy", "model_parallel:" + mesh});
    ASSERT_EQ(steps.losses.size(), 4u) << mesh;
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(steps.losses[i], alone.losses[i], 2e-5) << mesh << " step " << i;
    EXPECT_GT(steps.sent.back(), 0) << mesh;
  }
}

}  // namespace
}  // namespace levin::testing
