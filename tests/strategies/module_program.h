#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/levin.h"

namespace levin::testing {

/// One thing that a program of several modules does.
struct ModuleOp {
  enum Kind { kRun, kBackward, kStep };
  Kind kind = kRun;
  /// Runs or steps.
  int module = 0;
  /// The input is that slot; -1: data of this rank.
  int from = -1;
  /// The input is cut off from its graph; the forward records none.
  bool detached = false, no_grad = false;
  /// Where the output goes.
  int to = 0;
  /// Their losses are added up for a backward.
  std::vector<int> slots = {};
  bool retain_graph = false;
};

/// A training program of several modules, each with an optimizer: forwards, backwards and steps in any order that
/// torch itself allows.
struct ModuleProgram {
  std::string name;
  int modules = 2;
  std::vector<ModuleOp> step;
  int steps = 3;

  std::string describe() const;
};

/// The orders that people write: a GAN, an actor with its critic, a cached encoder, a target that lags, two losses on
/// one forward, three modules in a ring.
std::vector<ModuleProgram> known_module_programs();
/// `retains`: some backwards leave their graph for another one.
ModuleProgram drawn_module_program(uint64_t seed, bool retains = true);

/// Strategies that the programs are run under.
std::vector<std::pair<std::string, StrategyChoice>> module_strategies();

/// Losses of every backward (the mean of the ranks'), then all parameters, full. As this process's rank.
std::vector<Tensor> train_modules(const ModuleProgram& program, const StrategyChoice& choice,
                                  const std::string& folder);
/// The same in the training_step of a Trainer with manual optimization; the losses. The modules are children of one
/// there, so that a backward leaves parameters unused.
std::vector<Tensor> train_modules_manually(const ModuleProgram& program, const StrategyChoice& choice, int devices,
                                           const std::string& folder);

}  // namespace levin::testing
