#include "levin/strategies/choice.h"

#include <algorithm>
#include <array>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/strategies/ddp.h"
#include "levin/strategies/fsdp.h"
#include "levin/strategies/gemini.h"
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

std::unique_ptr<Strategy> make_zero(int stage, bool offload) {
  ZeroOptions options{.stage = stage};
  if (offload) options.offload_optimizer.device = "cpu";
  if (offload && stage == 3) options.offload_param.device = "cpu";
  return std::make_unique<ZeroStrategy>(options);
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
    Entry{"fsdp", [](int) -> std::unique_ptr<Strategy> { return std::make_unique<FsdpStrategy>(FsdpOptions{}); }},
    Entry{"fsdp_cpu_offload",
          [](int) -> std::unique_ptr<Strategy> {
            return std::make_unique<FsdpStrategy>(FsdpOptions{.cpu_offload = true});
          }},
    Entry{"deepspeed", [](int) { return make_zero(2, false); }},
    Entry{"deepspeed_stage_1", [](int) { return make_zero(1, false); }},
    Entry{"deepspeed_stage_1_offload", [](int) { return make_zero(1, true); }},
    Entry{"deepspeed_stage_2", [](int) { return make_zero(2, false); }},
    Entry{"deepspeed_stage_2_offload", [](int) { return make_zero(2, true); }},
    Entry{"deepspeed_stage_3", [](int) { return make_zero(3, false); }},
    Entry{"deepspeed_stage_3_offload", [](int) { return make_zero(3, true); }},
    Entry{"colossalai",
          [](int) -> std::unique_ptr<Strategy> { return std::make_unique<GeminiStrategy>(GeminiOptions{}); }},
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
  struct Name {
    std::string operator()(const std::string& name) const { return name; }
    std::string operator()(const DdpOptions&) const { return "ddp"; }
    std::string operator()(const FsdpOptions&) const { return "fsdp"; }
    std::string operator()(const ZeroOptions& options) const {
      return "deepspeed_stage_" + std::to_string(options.stage);
    }
    std::string operator()(const GeminiOptions&) const { return "colossalai"; }
  };
  return std::visit(Name(), value_);
}

std::string StrategyChoice::process_group_backend() const {
  struct Backend {
    std::string operator()(const std::string&) const { return "auto"; }
    std::string operator()(const DdpOptions& options) const { return options.process_group_backend; }
    std::string operator()(const FsdpOptions& options) const { return options.process_group_backend; }
    std::string operator()(const ZeroOptions& options) const { return options.process_group_backend; }
    std::string operator()(const GeminiOptions& options) const { return options.process_group_backend; }
  };
  return std::visit(Backend(), value_);
}

std::vector<std::string> known_strategies() {
  std::vector<std::string> names;
  for (const auto& entry : kTable) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Strategy> make_strategy(const StrategyChoice& choice, int world_size) {
  struct Maker {
    int world_size;
    std::unique_ptr<Strategy> operator()(const std::string& name) const { return make_by_name(name, world_size); }
    std::unique_ptr<Strategy> operator()(const DdpOptions& options) const {
      return std::make_unique<DdpStrategy>(options);
    }
    std::unique_ptr<Strategy> operator()(const FsdpOptions& options) const {
      return std::make_unique<FsdpStrategy>(options);
    }
    std::unique_ptr<Strategy> operator()(const ZeroOptions& options) const {
      return std::make_unique<ZeroStrategy>(options);
    }
    std::unique_ptr<Strategy> operator()(const GeminiOptions& options) const {
      return std::make_unique<GeminiStrategy>(options);
    }
  };
  auto strategy = std::visit(Maker{world_size}, choice.value());
  if (choice.sync_batchnorm()) strategy->sync_batchnorm();
  return strategy;
}

}  // namespace levin
