#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/cli/train_main.h"
#include "levin/config/config.h"
#include "levin/core/main.h"

namespace levin::cli {

/// "fit", "validate", "test", "predict", in this order.
const std::vector<std::string>& train_commands();
std::string_view train_command_summary(std::string_view command);

/// What a run is about, before any word of the user.
struct TrainSpec {
  /// "fit"
  std::string command;
  /// Stands in front of errors and in the usage: "levin fit vit_fashion_mnist", "app fit".
  std::string usage;
  /// The recipe's name; empty for a program of its own.
  std::string recipe = {};
  TrainMainOptions options = {};
};

/// All there is to say about a run of a program, and where what is said goes. Neither copied nor moved: its fields
/// point into it.
class TrainConfig {
 public:
  TrainConfig(const TrainSpec& spec, TrainProgram& program);
  TrainConfig(const TrainConfig&) = delete;
  TrainConfig& operator=(const TrainConfig&) = delete;

  config::Config& config() { return *config_; }
  /// The optimizers that were chosen by name; empty when none was.
  Configure configure() const;
  /// Makes what was chosen, on a parameter of no use, so that its refusal comes before anything starts.
  void check() const;
  /// With the callbacks and the profiler that were chosen.
  TrainerOptions trainer_options() const;

  std::optional<int64_t> seed;
  std::string ckpt_path;
  std::filesystem::path output;

 private:
  [[noreturn]] void fail_chosen(const config::Chosen& chosen, const std::exception& error) const;

  TrainSpec spec_;
  TrainerOptions trainer_;
  std::vector<config::Chosen> optimizer_, scheduler_, callbacks_, profiler_;
  std::unique_ptr<config::Config> config_;
};

/// Runs one command with the words after its name (and the recipe's). Returns the exit status, throws Error.
int run_train_command(const TrainSpec& spec, TrainProgram& program, const std::vector<std::string>& words,
                      const Args& args);

}  // namespace levin::cli
