#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin::optim::testing {

using levin::testing::error_of;

using Json = nlohmann::json;

inline Json fixture(const std::string& name) {
  std::ifstream file(levin::testing::source_dir() + "/tests/optim/fixtures/" + name + ".json");
  EXPECT_TRUE(file.good()) << name;
  auto cases = Json::parse(file);
  EXPECT_FALSE(cases.empty()) << name;
  return cases;
}

/// The hash that make_fixtures.py fills parameters and gradients with.
inline double number(uint32_t tensor, uint32_t element, uint32_t time) {
  uint32_t x = element * 2654435761u + tensor * 40503u + time * 69069u + 12345u;
  x ^= x >> 15;
  x *= 2246822519u;
  return (static_cast<double>((x >> 13) % 2001) - 1000) / 1024;
}

inline at::Tensor filled(at::IntArrayRef shape, at::ScalarType dtype, uint32_t tensor, uint32_t time) {
  auto out = torch::empty(shape, at::kDouble);
  for (int64_t i = 0; i < out.numel(); ++i) out.data_ptr<double>()[i] = number(tensor, static_cast<uint32_t>(i), time);
  return out.to(dtype);
}

inline bool has_grad(size_t tensor, int step) {
  return !(tensor == 1 && (step == 1 || step == 5));
}

inline const std::vector<std::vector<std::vector<int64_t>>>& shapes() {
  static const std::vector<std::vector<std::vector<int64_t>>> all{{{3, 5}, {7}, {}}, {{2, 3, 4}, {1}}};
  return all;
}

/// Two groups of parameters of odd shapes, and what fills their gradients step by step.
struct Problem {
  explicit Problem(at::ScalarType type = at::kFloat, at::Device where = at::kCPU) : dtype(type), device(where) {
    uint32_t index = 0;
    for (const auto& group : shapes()) {
      auto& list = groups.emplace_back();
      for (const auto& shape : group) list.push_back(filled(shape, dtype, index++, 0).to(device).requires_grad_());
      all.insert(all.end(), list.begin(), list.end());
    }
  }
  void set_grads(int step) const {
    for (size_t k = 0; k < all.size(); ++k) {
      auto& grad = all[k].mutable_grad();
      grad = has_grad(k, step)
                 ? filled(all[k].sizes(), dtype, static_cast<uint32_t>(k), static_cast<uint32_t>(step)).to(device)
                 : at::Tensor();
    }
  }
  at::ScalarType dtype;
  at::Device device;
  std::vector<std::vector<at::Tensor>> groups;
  std::vector<at::Tensor> all;
};

inline void expect_near(const at::Tensor& actual, const Json& expected, double tolerance, const std::string& where) {
  const auto flat = actual.detach().cpu().to(at::kDouble).flatten();
  ASSERT_EQ(static_cast<size_t>(flat.numel()), expected.size()) << where;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const double value = expected[static_cast<size_t>(i)];
    ASSERT_NEAR(flat.data_ptr<double>()[i], value, tolerance * std::max(1.0, std::abs(value)))
        << where << " element " << i;
  }
}

}  // namespace levin::optim::testing
