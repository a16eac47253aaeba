// Weights as training scripts leave them: inside DistributedDataParallel, beside arguments, in the format of old torch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/models/load_weights.h"
#include "levin/testing/paths.h"

namespace levin::models {
namespace {

std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(testing::source_dir()) / "tests/io/fixtures/weights" / name;
}

TEST(WrappedWeights, LoadStrictly) {
  for (const char* name :
       {"wrapped.pth.tar", "wrapped_legacy.pth", "reference.pth", "reference_legacy.pth", "engine.pt"}) {
    torch::nn::Linear net(2, 3);
    const auto report = load_weights(*net, fixture(name));
    EXPECT_EQ(report.loaded.size(), 2U) << name;
    EXPECT_TRUE(net->weight.equal(torch::arange(6, torch::kFloat).view({3, 2}))) << name;
    EXPECT_TRUE(net->bias.equal(torch::arange(3, torch::kFloat))) << name;
  }
}

TEST(WrappedWeights, AModuleMayHaveAChildOfThatName) {
  torch::nn::Module wrapper;
  torch::nn::Linear net(2, 3);
  wrapper.register_module("module", net);
  load_weights(wrapper, fixture("wrapped.pth.tar"));
  EXPECT_TRUE(net->bias.equal(torch::arange(3, torch::kFloat)));
  torch::nn::Linear other(2, 3);
  load_weights(*other, fixture("wrapped.pth.tar"), {.strip_prefix = "module."});
  EXPECT_TRUE(other->bias.equal(torch::arange(3, torch::kFloat)));
}

}  // namespace
}  // namespace levin::models
