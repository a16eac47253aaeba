#include "levin/strategies/choice.h"

#include <algorithm>
#include <array>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/strategies/ddp.h"
#include "levin/strategies/single_device.h"

namespace levin {
namespace {

using Make = std::unique_ptr<Strategy> (*)(int world_size);

std::unique_ptr<Strategy> make_single(int) {
  return std::make_unique<SingleDeviceStrategy>();
}
std::unique_ptr<Strategy> make_ddp(int) {
  return std::make_unique<DdpStrategy>(DdpOptions{});
}

struct Entry {
  const char* name;
  Make make;
};

/// All built-in strategies.
constexpr std::array kTable{
    Entry{"auto", [](int world_size) { return world_size == 1 ? make_single(world_size) : make_ddp(world_size); }},
    Entry{"single_device", make_single},
    Entry{"ddp", make_ddp},
    Entry{"ddp_find_unused_parameters_true",
          [](int) -> std::unique_ptr<Strategy> {
            return std::make_unique<DdpStrategy>(DdpOptions{.find_unused_parameters = true});
          }},
    Entry{"ddp_find_unused_parameters_false", make_ddp},
    Entry{"ddp_static_graph",
          [](int) -> std::unique_ptr<Strategy> {
            return std::make_unique<DdpStrategy>(DdpOptions{.static_graph = true});
          }},
};

/// Ways to start processes that are strategies elsewhere.
constexpr std::array kStarters{"ddp_spawn", "ddp_fork", "ddp_notebook"};

std::unique_ptr<Strategy> make_by_name(const std::string& name, int world_size) {
  for (const auto& entry : kTable)
    if (name == entry.name) return entry.make(world_size);
  for (const std::string starter : kStarters)
    LEVIN_CHECK(!name.starts_with(starter), "[strategy] \"", name,
                "\" is not needed: ranks are always processes of their own; \"ddp", name.substr(starter.size()),
                "\" is what is meant");
  fail_unknown("strategy", "name", name, known_strategies());
}

}  // namespace

std::string StrategyChoice::name() const {
  const auto* name = std::get_if<std::string>(&value_);
  return name ? *name : "ddp";
}

std::vector<std::string> known_strategies() {
  std::vector<std::string> names;
  for (const auto& entry : kTable) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Strategy> make_strategy(const StrategyChoice& choice, int world_size) {
  if (const auto* options = std::get_if<DdpOptions>(&choice.value())) return std::make_unique<DdpStrategy>(*options);
  return make_by_name(std::get<std::string>(choice.value()), world_size);
}

}  // namespace levin
