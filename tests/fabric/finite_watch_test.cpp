// A loop of the program's own that goes back to its last checkpoint, on all ranks at the same step.
#include "levin/fabric/finite_watch.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/fabric/fabric.h"
#include "levin/optim/adam.h"
#include "levin/testing/probe.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {
namespace {

constexpr int64_t kBadBatch = 5;

/// Trains on 8 batches; what is bad: batch 5 of the last rank ("loss", "gradient"), or nothing.
std::string trained(const std::string& folder, const std::string& strategy, int ranks, const std::string& bad,
                    const std::vector<int64_t>& left_out) {
  Fabric fabric({.accelerator = "cpu", .strategy = strategy, .devices = ranks});
  fabric.launch();
  torch::manual_seed(3);
  auto module = std::make_shared<torch::nn::LinearImpl>(8, 2);
  auto [net, optimizer] = fabric.setup(module, optim::AdamW(module->parameters(), {.lr = 0.05}));
  FiniteWatch watch(fabric);
  const auto path = folder + "/good";
  int64_t returns = 0;
  std::string where;
  for (int64_t batch = 0; batch < 8; ++batch) {
    const auto x = at::full({4, 8}, 0.1 * static_cast<double>(batch + fabric.global_rank() + 1));
    auto loss = net(x).pow(2).mean();
    if (batch == kBadBatch && fabric.global_rank() == ranks - 1 && bad == "loss")
      loss = loss + std::numeric_limits<double>::infinity();
    if (batch == kBadBatch && fabric.global_rank() == ranks - 1 && bad == "gradient") {
      const auto y = net(x);
      loss = loss + (y - y.detach()).sqrt().sum();
    } else if (batch == kBadBatch && bad == "gradient") {
      loss = loss + 0 * net(x).sum();
    }
    fabric.backward(loss);
    if (watch.found_bad(loss, optimizer)) {
      ++returns;
      where = std::to_string(watch.bad_step());
      fabric.load(path, {{"net", net}, {"optimizer", optimizer}});
      optimizer.zero_grad();
      continue;
    }
    if (std::count(left_out.begin(), left_out.end(), batch) == 0) optimizer.step();
    optimizer.zero_grad();
    if (batch % 2 == 1 && !watch.found_bad_before_save()) fabric.save(path, {{"net", net}, {"optimizer", optimizer}});
  }
  const auto end = folder + "/end";
  fabric.save(end, {{"net", net}});
  fabric.barrier();
  double sum = 0;
  const auto state = load_checkpoint(end);
  for (const auto& [name, value] : state.at("net").to_dict())
    sum += value.to_tensor().to(at::kDouble).sum().item<double>();
  fabric.barrier();
  return levin::detail::concat(returns, " at ", where, ", ", sum);
}

LEVIN_PROBE(goes_back) {
  const auto& strategy = arguments.at(1);
  const int ranks = std::stoi(arguments.at(2));
  // Batch 4 was done since the save after batch 3, and 5 was not: both are left out.
  const auto expected = trained(arguments.at(0), strategy, ranks, "", {4, 5});
  for (const char* bad : {"loss", "gradient"})
    EXPECT_EQ(trained(arguments.at(0), strategy, ranks, bad, {}), "1 at 5" + expected.substr(expected.find(',')))
        << strategy << " " << bad;
}

TEST(FiniteWatch, TakesEveryRankBackAtTheSameStep) {
  for (const auto& [strategy, ranks] :
       {std::pair("single_device", 1), std::pair("ddp", 3), std::pair("fsdp", 2), std::pair("deepspeed_stage_2", 3)}) {
    const TemporaryFolder folder;
    EXPECT_EQ(launch_probe("goes_back", ranks, {folder.path().string(), strategy, std::to_string(ranks)}), 0)
        << strategy;
  }
}

/// What a device does, in host memory: the answer comes with the 64 that follow.
TEST(LateFlags, TellOfTheFirstBadOneLater) {
  levin::detail::LateFlags late;
  for (int64_t i = 0; i < 127; ++i)
    EXPECT_EQ(late.add(at::scalar_tensor(i == 10 || i == 70 ? NAN : 1.0), i), std::nullopt) << i;
  EXPECT_EQ(late.add(at::scalar_tensor(1.0), 127), 10);
  EXPECT_EQ(late.finish(), 70);
  EXPECT_EQ(late.finish(), std::nullopt);
}

}  // namespace
}  // namespace levin::testing
