#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/ops/cat.h>
#include <nlohmann/json.hpp>

#include "levin/models/folder.h"
#include "levin/testing/paths.h"

namespace levin::generate_tests {

using Ids = std::vector<int64_t>;

inline const std::filesystem::path kTests = std::filesystem::path(levin::testing::source_dir()) / "tests";
inline const std::vector<Ids> kPrompts{{7, 3, 11, 42, 5}, {9, 30, 2, 2, 17, 8, 1, 44, 23}, {13}};

/// What transformers generates for kPrompts, by model.
inline nlohmann::json fixture() {
  std::ifstream stream(kTests / "generate/fixtures/tokens.json");
  return nlohmann::json::parse(stream);
}

/// A model of the tests with room for 80 positions, as make_fixtures.py makes it.
inline models::Decoder longer_model(const std::string& name) {
  auto model = models::open_model(kTests / "models/fixtures/language" / name).decoder;
  auto& options = model->options;
  if (options.rotary_scaling.type != "dynamic") options.max_positions = 80;
  if (!model->positions) return model;
  const at::NoGradGuard no_grad;
  const auto rows = model->positions->weight.detach();
  const auto offset = options.position_offset;
  model->positions->weight = at::cat({rows.slice(0, 0, offset), rows.slice(0, offset).repeat({5, 1})});
  return model;
}

}  // namespace levin::generate_tests
