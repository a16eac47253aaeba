// What docs/parallelism.md says that a step sends on the CPU, held against the counter of the groups.
#include <fstream>
#include <map>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/distributed/traffic.h"
#include "levin/nn/layers.h"
#include "levin/nn/unit.h"
#include "levin/optim/sgd.h"
#include "levin/testing/paths.h"
#include "tests/strategies/training.h"

namespace levin::testing {
namespace {

struct StepBlockImpl : torch::nn::Module {
  StepBlockImpl() {
    up = register_module("up", nn::Linear(320, 400));
    down = register_module("down", nn::Linear(400, 320));
  }
  Tensor forward(const Tensor& x) { return x + down(torch::relu(up(x))); }
  nn::Linear up{nullptr}, down{nullptr};
};
LEVIN_MODULE(StepBlock);

struct StepNetImpl : torch::nn::Module {
  StepNetImpl() {
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module("block" + std::to_string(i), StepBlock()));
  }
  Tensor forward(Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<StepBlock> blocks;
};
LEVIN_MODULE(StepNet);

/// Rows of "| strategy | NCCL | Gloo, on the CPU |": strategies, and the numbers of P.
std::map<std::string, double> table_of_gloo() {
  std::ifstream file(source_dir() + "/docs/parallelism.md");
  std::map<std::string, double> rows;
  bool inside = false;
  static const std::regex row(R"(\|([^|]*)\| *([0-9]) P *\| *([0-9]) P *\|)"), word("`([^`]+)`");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| strategy | NCCL | Gloo")) inside = true;
    if (!inside || line.starts_with("|---")) continue;
    if (!line.starts_with("|")) break;
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    const std::string names = match[1];
    for (std::sregex_iterator at(names.begin(), names.end(), word), end; at != end; ++at)
      rows[(*at)[1]] = std::stod(match[3]);
  }
  return rows;
}

TEST(Bytes, OfAStepAreThoseOfTheTable) {
  const auto rows = table_of_gloo();
  ASSERT_GE(rows.size(), 5u);
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](Collective& group) {
      for (const auto& [name, numbers] : rows) {
        torch::manual_seed(1);
        StepNet net;
        int64_t bytes = 0;
        for (const auto& parameter : net->parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
        Trainee trainee(group, name, *net);
        Optimizer optimizer = optim::SGD(net->parameters(), {.lr = 0.01});
        optimizer = trainee.strategy().setup_optimizer(optimizer);
        const auto step = [&] {
          const auto loss = trainee.forward([&] { return net(torch::ones({4, 320})).square().mean(); });
          trainee.backward(loss);
          optimizer.step();
          optimizer.zero_grad();
        };
        step(), step();
        const auto before = traffic(group);
        step();
        const auto sent = (traffic(group) - before).sent();
        const double whole = static_cast<double>(bytes) * (ranks - 1) / ranks;
        EXPECT_NEAR(static_cast<double>(sent) / whole / numbers, 1, 0.03) << name << " on " << ranks;
      }
    });
  }
}

}  // namespace
}  // namespace levin::testing
