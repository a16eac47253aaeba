#pragma once

#include <any>
#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "levin/strategies/options.h"
#include "levin/strategies/strategy.h"

namespace levin {

/// Options of a strategy: `strategy_of(options)` makes it.
template <class T>
concept StrategyOptions = requires(const T& options) {
  { strategy_of(options) } -> std::same_as<std::unique_ptr<Strategy>>;
};

/// A strategy as a user writes it: by name, or by its own options.
///
///     FabricOptions{.strategy = "ddp"}
///     FabricOptions{.strategy = DdpOptions{.find_unused_parameters = true}}
///     FabricOptions{.strategy = FsdpOptions{.cpu_offload = true}}
class StrategyChoice {
 public:
  StrategyChoice() = default;
  StrategyChoice(const char* name) : name_(name) {}
  StrategyChoice(std::string name) : name_(std::move(name)) {}
  template <StrategyOptions Options>
  StrategyChoice(Options options)
      : options_(std::move(options)),
        make_([](const std::any& given) { return strategy_of(std::any_cast<const Options&>(given)); }) {}

  /// The name given, or that of the strategy whose options were given.
  std::string name() const;
  /// The options given; null when they are of another type, or a name was given.
  template <StrategyOptions Options>
  const Options* options() const {
    return std::any_cast<Options>(&options_);
  }
  /// The same with batch norm over the batches of all ranks; an Error of make_strategy where the strategy cannot.
  StrategyChoice with_sync_batchnorm() const {
    auto choice = *this;
    choice.sync_batchnorm_ = true;
    return choice;
  }
  bool sync_batchnorm() const { return sync_batchnorm_; }
  /// How the ranks are to communicate: "auto", "gloo", "nccl".
  std::string process_group_backend() const;

 private:
  friend std::unique_ptr<Strategy> make_strategy(const StrategyChoice&, int, bool);

  std::string name_ = "auto";
  std::any options_;
  std::unique_ptr<Strategy> (*make_)(const std::any&) = nullptr;  // null: by name
  bool sync_batchnorm_ = false;
};

/// Names that make_strategy takes.
std::vector<std::string> known_strategies();
/// "auto" is "single_device" for one process and "ddp" for more; any other name stays.
std::string resolve_strategy_name(const std::string& name, int world_size);

/// Makes a strategy; it is not connected yet. An unknown name is an Error with the known ones and the nearest. With
/// `offload`, the strategy of that name has as much state in host memory as it can; an Error when it cannot.
std::unique_ptr<Strategy> make_strategy(const StrategyChoice& choice, int world_size = 1, bool offload = false);

/// A name of a strategy. Each strategy lists its own, and the registry in choice.cpp has one row for it.
struct NamedStrategy {
  /// As users write it: "deepspeed_stage_2_offload".
  std::string name;
  std::function<std::unique_ptr<Strategy>()> make;
  /// The same with as much state in host memory as it can; empty: all state is on the device.
  std::function<std::unique_ptr<Strategy>()> make_offloaded = {};
};

template <StrategyOptions Options>
NamedStrategy named_strategy(std::string name, Options options) {
  return {std::move(name), [options = std::move(options)] { return strategy_of(options); }};
}
template <StrategyOptions Options>
NamedStrategy named_strategy(std::string name, Options options, Options offloaded) {
  auto named = named_strategy(std::move(name), std::move(options));
  named.make_offloaded = [offloaded = std::move(offloaded)] { return strategy_of(offloaded); };
  return named;
}

}  // namespace levin
