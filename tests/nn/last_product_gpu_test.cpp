// Checkpointed blocks of a vision transformer on a GPU: their last product is not computed again, and gradients are the
// same.
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "levin/models/vit.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/testing/gpu.h"

namespace levin {
namespace {

using LastProductGpu = testing::GpuTest;

/// Products of all threads: backward has one of its own.
class ProductCount {
 public:
  ProductCount() : handle_(at::addGlobalCallback(at::RecordFunctionCallback(note))) { count = 0; }
  ~ProductCount() { at::removeCallback(handle_); }
  ProductCount(const ProductCount&) = delete;
  ProductCount& operator=(const ProductCount&) = delete;

  static inline std::atomic<int> count = 0;

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    const std::string_view name = function.name();
    if (name == "levin::matmul" || name == "levin::matmul_and_sums") ++count;
    return nullptr;
  }
  at::CallbackHandle handle_;
};

TEST_F(LastProductGpu, IsLeftOut) {
  const c10::Device gpu(at::kCUDA, 0);
  std::vector<std::string> names;
  const auto run = [&](bool kept) {
    torch::manual_seed(1);
    auto net = models::vit({.num_layers = 3, .num_heads = 2, .hidden_dim = 128, .mlp_dim = 256});
    net->to(gpu, at::kBFloat16);
    if (kept) checkpoint_activations(net, policy::by_class<models::EncoderBlock>());
    const auto tokens = at::randn({4, 197, 128}, at::TensorOptions(gpu).dtype(at::kBFloat16));
    const auto loss = net->encoder(tokens).to(at::kFloat).square().sum();
    std::vector<Tensor> grads;
    {
      const ProductCount counted;
      loss.backward();
      names.clear();
      for (const auto& item : net->encoder->named_parameters()) {
        names.push_back(item.key());
        grads.push_back(item.value().grad());
      }
    }
    return std::pair(grads, ProductCount::count.load());
  };
  const auto [plain, products] = run(false);
  const auto [kept, products_again] = run(true);
  for (size_t i = 0; i < plain.size(); ++i) {
    // The bias behind a block's last product: plain blocks have its gradient from the norm of the next one, which adds
    // in another order.
    const bool of_next = names[i].ends_with("mlp.3.bias") && !names[i].starts_with("layers.encoder_layer_2.");
    const auto close = torch::allclose(plain[i].to(at::kFloat), kept[i].to(at::kFloat), /*rtol=*/1e-2, /*atol=*/1e-2);
    EXPECT_TRUE(of_next ? close : torch::equal(plain[i], kept[i])) << names[i];
  }
  EXPECT_EQ(products_again - products, 3 * 3) << "of the four products of a block the last is not computed again";
}

}  // namespace
}  // namespace levin
