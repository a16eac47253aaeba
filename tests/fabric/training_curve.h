#pragma once
// A small ViT trained for 200 steps follows Lightning's loss curve from the same weights (make_fixtures.py has the
// peer).
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/levin.h"
#include "levin/testing/paths.h"

namespace levin::testing {

inline std::pair<Tensor, Tensor> batch(int64_t step) {
  const int64_t n = 16;
  const auto sample = torch::arange(step * n, step * n + n);
  const auto label = (sample * 7).remainder(10);
  const auto f = (label + 1).to(at::kDouble).view({-1, 1, 1, 1});
  const auto i = sample.to(at::kDouble).view({-1, 1, 1, 1});
  auto axis = [](int64_t k, std::vector<int64_t> shape) { return torch::arange(k, at::kDouble).view(shape); };
  const auto image = torch::sin(0.7 * (i + 1) + 1.1 * axis(3, {1, -1, 1, 1}) + 0.31 * f * axis(16, {1, 1, -1, 1}) +
                                0.17 * f * axis(16, {1, 1, 1, -1}));
  return {image.to(at::kFloat), label};
}

inline std::vector<double> curve(const std::string& accelerator, const std::string& precision) {
  Fabric fabric({.accelerator = accelerator, .devices = 1, .precision = precision});
  fabric.launch();
  auto model = models::vit({.image_size = 16,
                            .patch_size = 4,
                            .num_layers = 2,
                            .num_heads = 2,
                            .hidden_dim = 32,
                            .mlp_dim = 64,
                            .num_classes = 10});
  fabric.load_raw(levin::testing::source_dir() + "/tests/fabric/fixtures/small_vit.safetensors", model);
  auto [net, optimizer] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-3}));
  std::vector<double> losses;
  for (int64_t step = 0; step < 200; ++step) {
    const auto [image, label] = fabric.to_device(batch(step));
    const auto loss = cross_entropy(net(image), label);
    fabric.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

inline void expect_follows(const std::string& accelerator, const std::string& precision, double each, double mean) {
  std::ifstream file(levin::testing::source_dir() + "/tests/fabric/fixtures/curves.json");
  const auto expected = nlohmann::json::parse(file).at(accelerator + " " + precision).get<std::vector<double>>();
  const auto found = curve(accelerator, precision);
  double worst = 0, sum = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(found[i] - expected[i]));
    sum += std::abs(found[i] - expected[i]);
  }
  std::printf("%s %s: worst difference %.5f, mean %.5f, last loss %.4f (peer %.4f)\n", accelerator.c_str(),
              precision.c_str(), worst, sum / expected.size(), found.back(), expected.back());
  EXPECT_LE(worst, each);
  EXPECT_LE(sum / expected.size(), mean);
}

}  // namespace levin::testing
