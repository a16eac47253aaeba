// A loop of the program's own under every strategy: killed in the middle and resumed in new processes, it ends with the
// bits of the loop that was not disturbed: weights, optimizer, random generators and the loss of every step.
//   LEVIN_ALL_RESUMES=1: every strategy that the library knows, on 2, 3 and 4 ranks, and not a sample.
#include <csignal>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "levin/core/batch.h"
#include "levin/fabric/fabric.h"
#include "levin/models/decoder.h"
#include "levin/optim/adam.h"
#include "levin/testing/probe.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {
namespace {

constexpr int kSteps = 6, kSaveEvery = 2, kKilledIn = 4;

/// "whole", "killed" (in step 4, rank 1), "resumed".
LEVIN_PROBE(decoder_loop) {
  const std::string folder = arguments.at(0), mode = arguments.at(3);
  Fabric fabric({.accelerator = "cpu", .strategy = arguments.at(1), .devices = std::stoi(arguments.at(2))});
  fabric.launch();
  at::set_num_threads(1);
  torch::manual_seed(mode == "resumed" ? 7 : 2);
  models::Decoder module(models::DecoderOptions{
      .vocab_size = 48, .max_positions = 12, .num_layers = 4, .num_heads = 12, .hidden_dim = 24, .dropout = 0.1});
  auto [net, optimizer] = fabric.setup(module, optim::AdamW(module->parameters(), {.lr = 0.01}));
  auto random = fabric.generators();
  int64_t step = 0;
  const State state{{"net", net}, {"optimizer", optimizer}, {"random", random}, {"step", step}};
  const auto saved = folder + "/saved", rows = fmt::format("{}/rows.{}", folder, fabric.global_rank());
  if (mode == "resumed") fabric.load(saved, state);
  while (step < kSteps) {
    at::Generator draw = at::detail::createCPUGenerator(static_cast<uint64_t>(100 * step + fabric.data_place().rank));
    Batch batch{{"x", torch::randint(0, 48, {4, 12}, draw, torch::kLong)},
                {"y", torch::randint(0, 48, {4, 12}, draw, torch::kLong)}};
    const auto loss =
        fabric.forward_backward(net, batch, [&](auto& part) -> Tensor { return net(part["x"], part["y"]); });
    if (mode == "killed" && step == kKilledIn && fabric.global_rank() == 1) ::kill(::getpid(), SIGKILL);
    optimizer.step();
    optimizer.zero_grad();
    std::ofstream(rows, std::ios::app) << fmt::format("{} {:a}\n", step, loss.template item<double>());
    ++step;
    if (step % kSaveEvery == 0 && step < kSteps) fabric.save(saved, state);
  }
  fabric.save(folder + "/end", state);
}

void expect_same(const StateValue& a, const StateValue& b, const std::string& at) {
  if (a.is_dict())
    for (const auto& [name, value] : a.to_dict()) expect_same(value, b.to_dict().at(name), at + "." + name);
  else if (a.is_list())
    for (size_t i = 0; i < a.to_list().size(); ++i)
      expect_same(a.to_list()[i], b.to_list().at(i), at + "." + std::to_string(i));
  else if (a.is_tensor())
    EXPECT_TRUE(a.to_tensor().equal(b.to_tensor())) << at;
}

/// The rows of a rank, of each step the last one: a run that resumes makes some again.
std::map<std::string, std::string> rows_of(const std::filesystem::path& folder, int rank) {
  std::map<std::string, std::string> rows;
  std::ifstream file(folder / fmt::format("rows.{}", rank));
  for (std::string step, loss; file >> step >> loss;) rows[step] = loss;
  return rows;
}

struct GridCase {
  std::string strategy;
  int ranks = 2;

  friend void PrintTo(const GridCase& c, std::ostream* out) { *out << c.strategy << " on " << c.ranks; }
};

/// What has no meaning for this model on that number of ranks.
bool is_possible(const std::string& strategy, int ranks) {
  if (strategy == "auto" || strategy == "single_device" || strategy.starts_with("expert_parallel")) return false;
  for (const int size : {2, 4, 8})
    if (strategy.ends_with(fmt::format("_parallel_{}", size)) || strategy == fmt::format("pipeline_{}", size))
      return ranks % size == 0;
  return true;
}

std::vector<GridCase> grid_cases() {
  if (!std::getenv("LEVIN_ALL_RESUMES"))
    return {{"ddp", 4}, {"deepspeed_stage_2_offload", 3}, {"colossalai", 3}, {"pipeline", 3}};
  std::vector<GridCase> all;
  for (const auto& name : known_strategies())
    for (const int ranks : {2, 3, 4})
      if (is_possible(name, ranks)) all.push_back({name, ranks});
  return all;
}

class ResumeGrid : public ::testing::TestWithParam<GridCase> {};

TEST_P(ResumeGrid, EndsWithTheBitsOfTheLoopThatWasNotDisturbed) {
  const TemporaryFolder whole, killed;
  const auto& [strategy, ranks] = GetParam();
  const auto run = [&](const TemporaryFolder& folder, const char* mode) {
    return launch_probe("decoder_loop", ranks, {folder.path().string(), strategy, std::to_string(ranks), mode});
  };
  ASSERT_EQ(run(whole, "whole"), 0);
  ASSERT_NE(run(killed, "killed"), 0);
  ASSERT_EQ(run(killed, "resumed"), 0);
  const auto expected = load_checkpoint(whole / "end"), found = load_checkpoint(killed / "end");
  EXPECT_FALSE(expected.empty());
  expect_same(expected, found, strategy);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(rows_of(whole.path(), rank).size(), kSteps);
    EXPECT_EQ(rows_of(whole.path(), rank), rows_of(killed.path(), rank)) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, ResumeGrid, ::testing::ValuesIn(grid_cases()), [](const auto& one) {
  auto name = fmt::format("{}_{}", one.param.strategy, one.param.ranks);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

}  // namespace
}  // namespace levin::testing
