#include "levin/strategies/choice.h"

#include <algorithm>
#include <array>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/strategies/context_parallel.h"
#include "levin/strategies/ddp.h"
#include "levin/strategies/expert_parallel.h"
#include "levin/strategies/fsdp.h"
#include "levin/strategies/gemini.h"
#include "levin/strategies/model_parallel.h"
#include "levin/strategies/pipeline_parallel.h"
#include "levin/strategies/single_device.h"
#include "levin/strategies/tensor_parallel.h"
#include "levin/strategies/zero.h"

namespace levin {
namespace {

/// The registry: all built-in strategies.
const std::vector<NamedStrategy>& registry() {
  static const auto all = [] {
    std::vector<NamedStrategy> names;
    for (const auto& of_strategy : {
             SingleDeviceStrategy::names(),
             DdpStrategy::names(),
             FsdpStrategy::names(),
             ZeroStrategy::names(),
             GeminiStrategy::names(),
             TensorStrategy::names(),
             PipelineStrategy::names(),
             ModelParallelStrategy::names(),
             ContextStrategy::names(),
             ExpertStrategy::names(),
         })
      names.insert(names.end(), of_strategy.begin(), of_strategy.end());
    return names;
  }();
  return all;
}

/// Ways to start processes that are strategies elsewhere.
constexpr std::array kStarters{"ddp_spawn", "ddp_fork", "ddp_notebook"};

NamedStrategy find_named(const std::string& name) {
  for (const auto& each : registry())
    if (name == each.name) return each;
  // "model_parallel:dp_shard=2,tp=2"
  if (name.starts_with("model_parallel:")) return ModelParallelStrategy::named(name);
  for (const std::string starter : kStarters)
    LEVIN_CHECK(!name.starts_with(starter), "[strategy] \"", name,
                "\" is not needed: ranks are always processes of their own; \"ddp", name.substr(starter.size()),
                "\" is what is meant");
  fail_unknown("strategy", "name", name, known_strategies());
}

std::unique_ptr<Strategy> make_offloaded(const NamedStrategy& named) {
  std::vector<std::string> able;
  for (const auto& each : registry())
    if (each.make_offloaded) able.push_back(each.name);
  LEVIN_CHECK(named.make_offloaded, "[strategy] \"", named.name,
              "\" keeps all state on the device and cannot offload it; these can: ", join(able));
  return named.make_offloaded();
}

}  // namespace

std::string StrategyChoice::name() const {
  return make_ ? make_(options_)->name() : name_;
}

std::string StrategyChoice::process_group_backend() const {
  return make_ ? make_(options_)->traits().collective.backend : "auto";
}

std::vector<std::string> known_strategies() {
  std::vector<std::string> names{"auto"};
  for (const auto& each : registry()) names.push_back(each.name);
  return names;
}

std::string resolve_strategy_name(const std::string& name, int world_size) {
  if (name != "auto") return name;
  return world_size == 1 ? "single_device" : "ddp";
}

std::unique_ptr<Strategy> make_strategy(const StrategyChoice& choice, int world_size, bool offload) {
  const auto make = [&] {
    if (choice.make_) {
      LEVIN_CHECK(!offload, "[strategy] options say themselves what they offload");
      return choice.make_(choice.options_);
    }
    const auto named = find_named(resolve_strategy_name(choice.name_, world_size));
    return offload ? make_offloaded(named) : named.make();
  };
  auto strategy = make();
  if (choice.sync_batchnorm()) strategy->sync_batchnorm();
  return strategy;
}

}  // namespace levin
