#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "levin/levin.h"

namespace levin::testing {

/// Numbers from a seed, the same on every machine (the distributions of <random> are not).
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  /// 0 to below - 1.
  int64_t below(int64_t count) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(count)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  /// True `percent` times of a hundred.
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<int64_t>(values.size())));
  }

 private:
  std::mt19937_64 engine_;
};

/// What one module of a random model does. All take and return [B, width].
struct NodePlan {
  /// "linear", "mlp", "norm", "gate", "sequence", "residual", "twice", "rare" (its child runs in some steps only).
  std::string kind;
  int64_t hidden = 0;
  /// Has a parameter that takes no part.
  bool spare = false;
  /// Has a parameter of shape [0, 5].
  bool empty = false;
  bool frozen = false;
  std::vector<NodePlan> children;
};

/// Something that a program does besides training, at one point of a step.
struct Interlude {
  enum class Point : uint8_t { kBeforeBackward, kBeforeStep, kBetweenOptimizers, kAfterStep, kAfterZeroGrad };
  /// Observations leave training as it is: a forward whose graph nobody differentiates, one without gradients, the full
  /// state dict, a read of the parameters that this rank shows, a checkpoint. A write behind versions and the load of
  /// an earlier checkpoint change it.
  enum class Kind : uint8_t { kForward, kEvaluation, kState, kRead, kSave, kWrite, kLoad };

  int step = 0;
  Point point = Point::kAfterStep;
  Kind kind = Kind::kForward;

  bool observes() const { return kind != Kind::kWrite && kind != Kind::kLoad; }
};

/// A training program drawn from a seed: model, unit policy, strategy, precision, optimizer, accumulation, what it does
/// besides, and what goes wrong in it.
struct RandomProgram {
  explicit RandomProgram(uint64_t seed);

  uint64_t seed;
  int64_t width = 4;
  std::vector<NodePlan> nodes;
  /// Weights of the first and the last layer are one parameter.
  bool tied = false;

  int ranks = 1;
  std::string strategy;
  std::string policy;
  int64_t policy_size = 0;
  std::string precision = "32-true";
  std::string optimizer;
  int steps = 4;
  int accumulate = 1;
  bool no_sync = true;
  double clip = 0;
  bool checkpointing = false;
  bool offload = false;
  bool in_backward = false;
  /// Each has every other parameter.
  bool two_optimizers = false;
  std::vector<Interlude> interludes;
  /// "": nothing. "forward", "backward": that pass of `throw_step` throws on every rank and is caught, and training
  /// continues. "one_forward", "one_backward": it throws on one rank alone, and ends the run.
  std::string failure;
  int throw_step = -1;

  /// A line with all that was drawn.
  std::string describe() const;
  /// The strategy's options; those of a single process when `alone`.
  StrategyChoice choice(bool alone) const;

  bool has(const std::string& kind) const;
  bool has_spare() const;
  bool has_observations() const;
  bool loads() const;

 private:
  NodePlan draw_node(Dice& dice, int depth);
  void draw_run(Dice& dice);
  void draw_interludes(Dice& dice);
};

/// Thrown by a random program's own module.
struct DrawnFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct TrainedProgram {
  /// The mean loss of all ranks, by step.
  std::vector<double> losses;
  /// What interludes have seen, the same on all ranks.
  std::vector<double> observed;
  /// Errors that the program caught and continued after.
  std::vector<std::string> caught;
};

enum class Mode : uint8_t {
  kRanks,
  /// The same without observations: every bit is as with them.
  kUndisturbed,
  /// One process on the whole batch.
  kAlone
};

/// Trains as this process's rank, of `world` that share a store on that port, and writes the unsharded model to
/// `folder`.
TrainedProgram train_program(const RandomProgram& program, Mode mode, const std::string& folder);

}  // namespace levin::testing
