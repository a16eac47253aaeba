// A model that is trained with sequences over two ranks, by the options of Fabric alone.
#include "levin/strategies/context_parallel.h"

#include <gtest/gtest.h>

#include "levin/fabric/fabric.h"
#include "levin/models/folder.h"
#include "levin/optim/adam.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/ranks.h"
#include "levin/testing/scoped_variable.h"

namespace levin::context_fabric_tests {
namespace {

using namespace levin::testing;

/// Losses and norms of four steps over batches of 2 x 24 tokens.
std::vector<Tensor> trained(FabricOptions options) {
  options.accelerator = "cpu";
  Fabric fabric(options);
  fabric.launch();
  auto model = models::open_model(std::filesystem::path(source_dir()) / "tests/models/fixtures/language/llama").decoder;
  auto [net, optimizer] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-2}));
  std::vector<Tensor> seen;
  for (int64_t step = 0; step < 4; ++step) {
    const auto tokens = (torch::arange(2 * 24) * 7 + step).remainder(48).view({2, 24});
    const auto loss = net(tokens, models::next_tokens(tokens));
    fabric.backward(loss);
    const auto norm = fabric.clip_gradients(net, optimizer, {.max_norm = 0.5});
    optimizer.step();
    optimizer.zero_grad();
    seen.push_back(loss.detach());
    seen.push_back(norm.detach());
  }
  return seen;
}

class ContextFabric : public ::testing::TestWithParam<std::string> {};

TEST_P(ContextFabric, TrainsAsOneProcessDoes) {
  const auto precision = GetParam();
  const auto expected = trained({.precision = precision});
  const auto port = std::to_string(free_port());
  run_ranks(2, [&](Collective& group) {
    const auto rank = std::to_string(group.rank());
    const ScopedVariable variables[] = {{"RANK", rank},
                                        {"LOCAL_RANK", rank},
                                        {"WORLD_SIZE", "2"},
                                        {"LOCAL_WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", "127.0.0.1"},
                                        {"MASTER_PORT", port}};
    const auto got = trained({.strategy = "context_parallel_2", .devices = 2, .precision = precision});
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(got[i].item<double>(), expected[i].item<double>(), precision == "32-true" ? 1e-5 : 5e-2) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(Precisions, ContextFabric, ::testing::Values("32-true", "bf16-mixed"),
                         [](const auto& each) { return each.param == "32-true" ? "float32" : "bf16_mixed"; });

}  // namespace
}  // namespace levin::context_fabric_tests
