// Tensors that a forward in a true precision makes itself, and what other threads make meanwhile.
#include "levin/nn/forward_dtype.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/data/loader.h"
#include "levin/data/sample_random.h"
#include "levin/fabric/fabric.h"
#include "levin/memory/promotion.h"

namespace levin {
namespace {

/// Sets the dtype for its life.
class ForwardDtype {
 public:
  explicit ForwardDtype(c10::ScalarType dtype) : before_(detail::set_forward_dtype(dtype)) {}
  ~ForwardDtype() { detail::set_forward_dtype(before_); }
  ForwardDtype(const ForwardDtype&) = delete;
  ForwardDtype& operator=(const ForwardDtype&) = delete;

 private:
  c10::ScalarType before_;
};

void expect_made(c10::ScalarType expected) {
  const auto integers = torch::arange(4);
  EXPECT_EQ(integers.scalar_type(), at::kLong);
  EXPECT_EQ(torch::full({2}, 1).scalar_type(), at::kLong);
  EXPECT_EQ(torch::randint(3, {2}).scalar_type(), at::kLong);
  EXPECT_EQ((integers * 2).scalar_type(), at::kLong);
  EXPECT_EQ(torch::zeros({2}, at::kHalf).scalar_type(), at::kHalf);
  EXPECT_EQ((integers + torch::ones({4}, at::kDouble)).scalar_type(), at::kDouble);
  const auto mask = integers > 1;
  EXPECT_EQ(mask.scalar_type(), at::kBool);
  const std::vector<Tensor> made{torch::rand({3}),
                                 torch::randn({3}),
                                 torch::zeros({3}),
                                 torch::empty({3}),
                                 torch::full({3}, 0.5),
                                 torch::arange(0.0, 3.0),
                                 torch::linspace(0, 1, 5),
                                 torch::eye(3),
                                 torch::scalar_tensor(0.5),
                                 integers * 0.5,
                                 0.5 * integers,
                                 integers + 0.5,
                                 integers / 2,
                                 integers / integers,
                                 integers.sqrt(),
                                 integers.pow(0.5),
                                 torch::pow(2.5, integers),
                                 torch::exp(integers),
                                 integers.clamp(0.5, 2.5),
                                 mask * -1e9,
                                 torch::where(mask, 0.0, -1e9),
                                 torch::where(mask, integers, 0.5)};
  for (size_t i = 0; i < made.size(); ++i) EXPECT_EQ(made[i].scalar_type(), expected) << i;
}

TEST(ForwardDtype, IsThatOfTensorsWithoutOne) {
  expect_made(at::kFloat);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const ForwardDtype scope(dtype);
    expect_made(dtype);
    EXPECT_EQ(c10::get_default_dtype_as_scalartype(), at::kFloat);
  }
  expect_made(at::kFloat);
}

TEST(ForwardDtype, ComputesAsTorchDoesInItsDefaultDtype) {
  const auto compute = [] {
    const auto n = torch::arange(300);
    return std::vector<Tensor>{n * 0.1, n / 7, (n + 1).log(), n.pow(0.3), torch::where(n > 3, 0.1, 0.7)};
  };
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kBFloat16));
  const auto expected = compute();
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kFloat));
  const ForwardDtype scope(at::kBFloat16);
  const auto found = compute();
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
}

TEST(ForwardDtype, IsOfOneThreadAndNests) {
  const ForwardDtype scope(at::kBFloat16);
  std::thread([] { expect_made(at::kFloat); }).join();
  {
    const ForwardDtype inner(at::kHalf);
    expect_made(at::kHalf);
  }
  expect_made(at::kBFloat16);
}

// Others take the same operators at the same key: each gets the call.
TEST(ForwardDtype, GoesWithOtherScopes) {
  const detail::MetaPromotion promotion;
  Random random(1, 2, 3), again(1, 2, 3);
  const ForwardDtype scope(at::kBFloat16);
  const auto draw = [](Random& from) {
    const detail::SampleRandomScope sample(from);
    return torch::rand({3});
  };
  const auto first = draw(random), second = draw(again);
  EXPECT_EQ(first.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(first.equal(second));
  expect_made(at::kBFloat16);
}

struct SlowNetImpl : torch::nn::Module {
  SlowNetImpl() : a(register_module("a", torch::nn::Linear(3, 3))) {}
  Tensor forward(const Tensor& x) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // threads of the loader work meanwhile
    made = torch::zeros({1}).scalar_type();
    return a(x) + torch::arange(3) * 0.5;
  }
  torch::nn::Linear a;
  c10::ScalarType made = at::kFloat;
};
TORCH_MODULE(SlowNet);

struct Samples {
  std::shared_ptr<std::atomic<int>> others = std::make_shared<std::atomic<int>>(0);
  int64_t size() const { return 400; }
  Batch get(int64_t) const {
    const auto x = torch::rand({3}), y = torch::tensor({0.5, 0.25, 0.125}), z = torch::arange(3) * 0.5;
    for (const auto& each : {x, y, z}) *others += each.scalar_type() != at::kFloat;
    return {{"x", x}, {"y", y}};
  }
};

TEST(ForwardDtype, SamplesOfLoaderThreadsHaveTheDtypeOfTorch) {
  for (const auto* precision : {"bf16-true", "64-true"}) {
    Fabric fabric({.accelerator = "cpu", .precision = precision});
    SlowNet model;
    auto net = fabric.setup(model);
    Samples samples;
    auto loader = fabric.setup_dataloaders(make_loader(samples, {.batch_size = 4, .num_workers = 2}));
    for (auto& batch : loader) (void)net(batch["x"]);
    EXPECT_EQ(*samples.others, 0) << precision;
    EXPECT_NE(model->made, at::kFloat);
  }
}

}  // namespace
}  // namespace levin
