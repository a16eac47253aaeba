#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "levin/strategies/sharding_options.h"
#include "levin/strategies/strategy.h"

namespace levin {

/// A strategy as a user writes it: by name, or by its own options.
///
///     FabricOptions{.strategy = "ddp"}
///     FabricOptions{.strategy = DdpOptions{.find_unused_parameters = true}}
///     FabricOptions{.strategy = FsdpOptions{.cpu_offload = true}}
class StrategyChoice {
 public:
  using Value = std::variant<std::string, DdpOptions, FsdpOptions, ZeroOptions, GeminiOptions>;

  StrategyChoice() : value_("auto") {}
  StrategyChoice(const char* name) : value_(std::string(name)) {}
  StrategyChoice(std::string name) : value_(std::move(name)) {}
  StrategyChoice(DdpOptions options) : value_(std::move(options)) {}
  StrategyChoice(FsdpOptions options) : value_(std::move(options)) {}
  StrategyChoice(ZeroOptions options) : value_(std::move(options)) {}
  StrategyChoice(GeminiOptions options) : value_(std::move(options)) {}

  const Value& value() const { return value_; }
  /// The name given, or that of the strategy whose options were given.
  std::string name() const;
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
  Value value_;
  bool sync_batchnorm_ = false;
};

/// Names that make_strategy takes.
std::vector<std::string> known_strategies();

/// Makes a strategy; it is not connected yet. "auto" is "single_device" for one process and "ddp" for more. An unknown
/// name is an Error with the known ones and the nearest.
std::unique_ptr<Strategy> make_strategy(const StrategyChoice& choice, int world_size = 1);

}  // namespace levin
