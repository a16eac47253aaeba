#include "levin/nn/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/nn/layers.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

namespace tnn = torch::nn;
using testing::error_of;

struct BlockImpl : tnn::Module {
  explicit BlockImpl(int64_t n) {
    up = register_module("up", nn::Linear(n, 4 * n));
    down = register_module("down", nn::Linear(4 * n, n));
  }
  Tensor forward(const Tensor& x) { return down(up(x)); }
  nn::Linear up = nullptr, down = nullptr;
};
LEVIN_MODULE(Block);

struct NetImpl : tnn::Module {
  NetImpl() {
    layers = register_module("layers", tnn::ModuleList());
    for (int i = 0; i < 2; ++i) layers->push_back(Block(8));
    attention = register_module("attention", nn::MultiheadAttention(8, 2));
    head = register_module("head", tnn::Linear(8, 3));
    again = register_module("again", layers[0]);  // registered twice
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = layer->as<Block>()->forward(x);
    return head(x);
  }
  tnn::ModuleList layers = nullptr;
  nn::MultiheadAttention attention = nullptr;
  tnn::Linear head = nullptr;
  std::shared_ptr<tnn::Module> again;
};
LEVIN_MODULE(Net);

std::vector<std::string> names(const std::vector<SelectedUnit>& units) {
  std::vector<std::string> result;
  for (const auto& each : units) {
    EXPECT_EQ(&each.unit->as_module(), each.module);
    result.push_back(each.name);
  }
  return result;
}

using ::testing::ElementsAre;

TEST(Policy, ByClassTakesHoldersAndImpls) {
  Net net;
  EXPECT_THAT(names(select_units(*net, policy::by_class<Block>())), ElementsAre("layers.0", "layers.1"));
  EXPECT_THAT(names(select_units(*net, policy::by_class<BlockImpl, nn::MultiheadAttention>())),
              ElementsAre("layers.0", "layers.1", "attention"));
}

TEST(Policy, ChildrenComeBeforeParents) {
  Net net;
  EXPECT_THAT(
      names(select_units(*net, policy::all_units())),
      ElementsAre("layers.0.up", "layers.0.down", "layers.0", "layers.1.up", "layers.1.down", "layers.1", "attention"));
}

TEST(Policy, BySizeTakesWhatIsNotYetTaken) {
  Net net;
  // up has 8*32+32 = 288 parameters, down 32*8+8 = 264, a block 552, the attention 288 (out_proj 72).
  EXPECT_THAT(names(select_units(*net, policy::by_size(280))), ElementsAre("layers.0.up", "layers.1.up"))
      << "the 264 that are left in a block do not reach the limit";
  EXPECT_THAT(names(select_units(*net, policy::by_size(289))), ElementsAre("layers.0", "layers.1"));
  EXPECT_THAT(names(select_units(*net, policy::by_size(200))),
              ElementsAre("layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down"));
  EXPECT_THAT(
      error_of([&] { select_units(*net, policy::by_size(100000)); }),
      ::testing::HasSubstr("policy::by_size(100000) matches no unit below Net (unit classes: Block x2, Linear x"));
}

TEST(Policy, PredicateSeesNamesAndModules) {
  Net net;
  const auto chosen = select_units(*net, policy::predicate([](const std::string& name, const tnn::Module& module) {
    return name.starts_with("layers.1") && module.parameters().size() == 4;
  }));
  EXPECT_THAT(names(chosen), ElementsAre("layers.1"));
}

TEST(Policy, ErrorsSayWhatThereIs) {
  Net net;
  EXPECT_THAT(error_of([&] { select_units(*net, policy::by_class<nn::GRU>()); }),
              ::testing::HasSubstr("matches no unit below Net (unit classes: Block x2"));
  tnn::Linear plain(2, 2);
  EXPECT_THAT(error_of([&] { select_units(*plain, policy::all_units()); }),
              ::testing::HasSubstr("declare modules with LEVIN_MODULE"));
  EXPECT_THAT(error_of([&] { select_units(*net, policy::by_class<tnn::LinearImpl>()); }),
              ::testing::HasSubstr("matches attention.out_proj (Linear), which is no unit"));
}

TEST(Policy, UnitsThatDoNotFireAreNamed) {
  Net net;
  {
    FiredCheck check("fsdp", select_units(*net, policy::by_class<Block>()));
    net(torch::ones({1, 8}));
    check.finish();
    EXPECT_FALSE(check.watching());
    EXPECT_EQ(select_units(*net, policy::by_class<Block>())[0].unit->num_interceptors(), 0u);
  }
  FiredCheck check("fsdp", select_units(*net, policy::by_class<Block, nn::MultiheadAttention>()));
  net(torch::ones({1, 8}));
  EXPECT_THAT(
      error_of([&] { check.finish(); }),
      ::testing::StartsWith("[fsdp] 1 of 3 units did not run in the first step: attention (MultiheadAttention);"));
}

}  // namespace
}  // namespace levin
