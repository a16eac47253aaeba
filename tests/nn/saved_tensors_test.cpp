#include "levin/nn/saved_tensors.h"

#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>

#include "levin/nn/deferred_init.h"
#include "levin/nn/layers.h"

namespace levin {
namespace {

Tensor gradient_of(const Tensor& x) {
  auto leaf = x.detach().clone().requires_grad_();
  (leaf.tanh() * leaf).exp().sum().backward();
  return leaf.grad();
}

/// Keeps tensors negated, to see that each passes through.
struct Negated : SavedTensors {
  struct Hooks : SavedTensorHooks {
    explicit Hooks(Negated& o) : owner(o) {}
    void call_pack_hook(const Tensor& tensor) override {
      ++owner.packed;
      held = tensor.detach().neg();
    }
    Tensor call_unpack_hook() override {
      ++owner.unpacked;
      return held.neg();
    }
    Negated& owner;
    Tensor held;
  };
  std::unique_ptr<SavedTensorHooks> make() override { return std::make_unique<Hooks>(*this); }
  int packed = 0, unpacked = 0;
};

/// In a process in which nobody has asked for hooks yet.
int run_before_and_after() {
  const auto* plain = &torch::autograd::Engine::get_default_engine();
  const auto x = torch::randn({8, 8});
  const auto expected = gradient_of(x);
  auto early = x.clone().requires_grad_();
  const auto early_loss = (early.tanh() * early).exp().sum();  // a graph that is made before and runs after
  Negated negated;
  Tensor gradient;
  {
    SavedTensorScope scope(negated);
    if (&torch::autograd::Engine::get_default_engine() == plain) return 2;
    gradient = gradient_of(x);
  }
  if (!torch::equal(gradient, expected)) return 3;
  if (negated.packed != 4 || negated.unpacked != 4) return 4;
  early_loss.backward();
  if (!torch::equal(early.grad(), expected)) return 5;
  if (!torch::equal(gradient_of(x), expected) || negated.packed != 4) return 6;
  return 0;
}

TEST(SavedTensorScopeDeathTest, WorksAfterABackwardOfThePlainEngine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(run_before_and_after()), ::testing::ExitedWithCode(0), "");
}

TEST(SavedTensorScopeTest, EndOfBackwardCallbacksAndReentrantBackwardsRun) {
  Negated negated;
  SavedTensorScope scope(negated);
  bool called = false;
  auto x = torch::ones({2}).requires_grad_();
  auto y = x * x;
  y.register_hook([&](Tensor) {
    torch::autograd::Engine::get_default_engine().queue_callback([&] { called = true; });
    const at::AutoGradMode with_grad(true);
    auto inner = torch::ones({2}).requires_grad_();
    (inner * inner).sum().backward();
    EXPECT_EQ(inner.grad().sum().item<float>(), 4);
  });
  y.sum().backward();
  EXPECT_TRUE(called);
  EXPECT_EQ(x.grad().sum().item<float>(), 4);
}

TEST(SavedTensorScopeTest, NestsAndBelongsToItsThread) {
  Negated outer, inner;
  SavedTensorScope scope(outer);
  const auto x = torch::randn({3});
  const auto plain = x.clone().requires_grad_();
  {
    SavedTensorScope nested(inner);
    auto y = plain.exp();
    EXPECT_EQ(inner.packed, 1);
    EXPECT_NE(nested.outer_hooks(), nullptr);
  }
  auto y = plain.exp();
  EXPECT_EQ(inner.packed, 1);
  EXPECT_EQ(outer.packed, 1);
  EXPECT_EQ(scope.outer_hooks(), nullptr);
  std::thread([&] { gradient_of(x); }).join();
  EXPECT_EQ(outer.packed, 1);
}

TEST(SavedBytesTest, CountsEachStorageOnceAndNotTheParameters) {
  nn::Linear fc(16, 32);
  const auto x = torch::randn({4, 16});
  SavedBytes saved(*fc), all;
  auto hidden = fc(x);                          // saves x
  auto y = hidden.tanh();                       // saves its result
  auto z = y * y.view({-1, 1, 32}).squeeze(1);  // the same storage again
  EXPECT_EQ(saved.bytes(), (4 * 16 + 4 * 32) * 4);
  EXPECT_EQ(saved.storages(), 2);
  EXPECT_EQ(saved.bytes(at::kCPU), saved.bytes());
  EXPECT_EQ(saved.bytes(at::kMeta), 0);
  saved.ignore(x);
  EXPECT_EQ(saved.bytes(), 4 * 32 * 4);
  EXPECT_GE(all.bytes(), saved.bytes());
  z.sum().backward();
  EXPECT_TRUE(fc->weight.grad().defined());
}

TEST(SavedBytesTest, HoldsNoMemoryAndDoesNotConfuseStorages) {
  SavedBytes saved;
  auto x = torch::ones({256}).requires_grad_();
  c10::weak_intrusive_ptr<c10::StorageImpl> gone = [&] {
    auto y = x.exp();
    return y.storage().getWeakStorageImpl();
  }();
  EXPECT_TRUE(gone.expired());
  for (int i = 0; i < 9; ++i) (void)x.exp();
  EXPECT_EQ(saved.storages(), 10);
  EXPECT_EQ(saved.bytes(), 10 * 1024);
}

TEST(SavedBytesTest, WorksOnMetaTensors) {
  auto fc = init_module([] { return nn::Linear(16, 32); }, {.device = at::kMeta});
  SavedBytes saved(*fc);
  auto y = fc(torch::empty({1000000, 16}, at::kMeta)).tanh();
  EXPECT_EQ(saved.bytes(at::kMeta), int64_t{1000000} * (16 + 32) * 4);
}

}  // namespace
}  // namespace levin
