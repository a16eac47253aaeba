// An error of torch out of a loop of one's own says which unit it was, and what that got.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "levin/core/main.h"
#include "levin/fabric/fabric.h"
#include "levin/nn/unit.h"

namespace levin {
namespace {

using ::testing::HasSubstr;

struct NarrowImpl : torch::nn::Module {
  NarrowImpl() : linear(register_module("linear", torch::nn::Linear(3, 2))) {}
  Tensor forward(Tensor x, const Tensor& y) {
    auto z = std::move(x) + 0;
    return linear(z) + y;
  }
  torch::nn::Linear linear;
};
LEVIN_MODULE(Narrow);

struct BodyImpl : torch::nn::Module {
  BodyImpl() : narrow(register_module("narrow", Narrow())) {}
  Tensor forward(const Tensor& x) { return narrow(x + 1, at::ones({1}, at::kDouble)); }
  Narrow narrow;
};
LEVIN_MODULE(Body);

struct PlainImpl : torch::nn::Module {
  PlainImpl() : linear(register_module("linear", torch::nn::Linear(3, 2))) {}
  Tensor forward(const Tensor& x) { return linear(x); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Plain);

template <class F>
std::string line_of(F&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return one_line(error);
  }
  return "(nothing)";
}

TEST(FabricErrorPlace, NamesTheUnitAndItsInputs) {
  for (const char* precision : {"32-true", "bf16-mixed"}) {
    Fabric fabric({.accelerator = "cpu", .precision = precision});
    Body body;
    auto net = fabric.setup(body);
    const auto line = line_of([&] { net(at::ones({4, 5})); });
    EXPECT_THAT(line, HasSubstr("cannot be multiplied"));
    EXPECT_THAT(line, HasSubstr("(unit narrow (Narrow), input float32 [4, 5], float64 [1])")) << precision;
  }
}

TEST(FabricErrorPlace, AModuleThatIsNoUnitIsNamedItself) {
  Fabric fabric({.accelerator = "cpu"});
  Plain plain;
  auto net = fabric.setup(plain);
  const auto x = at::ones({4, 5});
  EXPECT_THAT(line_of([&] { net(x); }), HasSubstr("(unit Plain, input float32 [4, 5])"));
}

TEST(FabricErrorPlace, AUnitAloneSaysItsClass) {
  Body body;
  EXPECT_THAT(line_of([&] { body(at::ones({4, 5})); }), HasSubstr("(unit Narrow, input float32 [4, 5], float64 [1])"));
}

TEST(FabricErrorPlace, OutOfMemoryKeepsItsType) {
  struct FullImpl : torch::nn::Module {
    Tensor forward(const Tensor&) { throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "out of memory"); }
  };
  Fabric fabric({.accelerator = "cpu"});
  auto net = fabric.setup(Holder<FullImpl>());
  EXPECT_THROW(net(at::ones({1})), c10::OutOfMemoryError);
}

}  // namespace
}  // namespace levin
