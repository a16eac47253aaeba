#pragma once

#include <cmath>

#include <nlohmann/json.hpp>

#include "folder.h"
#include "levin/core/state_dict.h"

namespace levin::testing {

/// HPARAMS of make_fixtures.py.
inline StateDict ordinary_hparams() {
  const StateDict head_a{{"dim", 64}, {"name", "a"}}, head_b{{"dim", 32}, {"name", "b"}};
  const StateDict model{{"layers", 12},
                        {"act", "gelu"},
                        {"sizes", StateList{StateList{1, 2}, StateList{3, 4}}},
                        {"heads", StateList{head_a, head_b}}};
  return {{"lr", 1e-5},           {"batch_size", 64},
          {"name", "vit_b_16"},   {"amp", true},
          {"none", StateValue()}, {"betas", StateList{0.9, 0.999}},
          {"empty", StateList{}}, {"nothing", StateDict{}},
          {"model", model},       {"huge", 1e16},
          {"tiny", 5e-324},       {"one", 1.0},
          {"inf", INFINITY},      {"neg", -INFINITY},
          {"zero", -0.0},         {"path", "/data/run 1/x.yaml"},
          {"count", -3}};
}

/// With texts that a careless writer of YAML would get wrong, as values and as names.
inline StateDict all_hparams() {
  auto tree = ordinary_hparams();
  StateList strings;
  StateDict keys;
  for (const auto& text : nlohmann::json::parse(log_fixture("strings.json"))) {
    keys[text.get<std::string>()] = strings.size();
    strings.push_back(text.get<std::string>());
  }
  std::string long_key, longer_key;
  for (int i = 0; i < 300; ++i) long_key += "long ", longer_key += "longer ";
  keys[long_key] = StateDict{{"a", StateList{1}}};
  keys[longer_key] = 2;
  tree["strings"] = std::move(strings);
  tree["keys"] = std::move(keys);
  return tree;
}

}  // namespace levin::testing
