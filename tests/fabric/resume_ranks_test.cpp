// A loop of the program's own that saves, ends, and resumes: on three and four ranks the bits are those of the loop
// that was not disturbed.
#include <gtest/gtest.h>

#include "levin/fabric/fabric.h"
#include "levin/optim/adam.h"
#include "levin/testing/boring.h"
#include "levin/testing/probe.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    last = register_module("last", torch::nn::Linear(17, 3));
    first = register_module("first", torch::nn::Linear(32, 17));
    middle = register_module("middle", torch::nn::Linear(17, 17));
  }
  Tensor forward(const Tensor& x) { return last(torch::tanh(middle(torch::tanh(first(x))))); }
  torch::nn::Linear last{nullptr}, first{nullptr}, middle{nullptr};
};
TORCH_MODULE(Net);

/// Losses, and the state at the end. Saves after `save_at` steps, or resumes from there.
std::pair<std::vector<double>, StateDict> steps(const std::string& strategy, int ranks, const std::string& path,
                                                bool resumes) {
  constexpr int kSteps = 6, kSaveAt = 3;
  Fabric fabric({.accelerator = "cpu", .strategy = strategy, .devices = ranks});
  fabric.launch();
  torch::manual_seed(resumes ? 7 : 2);
  Net module;
  auto [net, optimizer] = fabric.setup(module, optim::AdamW(module->parameters(), {.lr = 0.01}));
  if (resumes) fabric.load(path, {{"net", net}, {"optimizer", optimizer}});
  std::vector<double> losses;
  for (int step = resumes ? kSaveAt : 0; step < kSteps; ++step) {
    const auto [x, y] = boring_data(5, 32, static_cast<uint64_t>(10 * step + fabric.global_rank()));
    const auto loss = net(x).pow(2).mean();
    fabric.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.template item<double>());
    if (!resumes && step + 1 == kSaveAt) fabric.save(path, {{"net", net}, {"optimizer", optimizer}});
  }
  const auto end = path + (resumes ? ".resumed" : ".whole");
  fabric.save(end, {{"net", net}, {"optimizer", optimizer}});
  fabric.barrier();
  return {losses, load_checkpoint(end)};
}

void expect_same(const StateValue& a, const StateValue& b, const std::string& at) {
  if (a.is_dict())
    for (const auto& [name, value] : a.to_dict()) expect_same(value, b.to_dict().at(name), at + "." + name);
  else if (a.is_tensor())
    EXPECT_TRUE(a.to_tensor().equal(b.to_tensor())) << at;
}

LEVIN_PROBE(fabric_resumes) {
  const auto& strategy = arguments.at(1);
  const int ranks = std::stoi(arguments.at(2));
  const auto path = arguments.at(0) + "/" + strategy + arguments.at(2);
  const auto whole = steps(strategy, ranks, path, false), resumed = steps(strategy, ranks, path, true);
  for (size_t i = 0; i < resumed.first.size(); ++i)
    EXPECT_EQ(resumed.first[i], whole.first[i + resumed.first.size()]) << strategy << " step " << i;
  expect_same(whole.second, resumed.second, strategy);
  EXPECT_FALSE(whole.second.empty());
}

TEST(FabricResume, HasTheBitsOfTheLoopThatWasNotDisturbed) {
  const TemporaryFolder folder;
  for (const auto& [strategy, ranks] : {std::pair("ddp", 3), std::pair("ddp", 4), std::pair("fsdp", 3),
                                        std::pair("deepspeed_stage_2", 3), std::pair("deepspeed_stage_3", 4)})
    EXPECT_EQ(launch_probe("fabric_resumes", ranks, {folder.path().string(), strategy, std::to_string(ranks)}), 0)
        << strategy << " on " << ranks;
}

}  // namespace
}  // namespace levin::testing
