#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levin/nn/interceptor.h"
#include "levin/strategies/pipeline/cut.h"
#include "levin/strategies/pipeline/shapes.h"

namespace levin {

/// A module of which this rank has some stages. The others are released: their parameters have no rows here, and are
/// never materialized when they were deferred.
///
/// A stage is run by calling the user's own forward. Units before the stage do not compute: they return placeholders.
/// The first unit of the stage takes what the stage before has sent. Where the first unit of the next stage is called,
/// its arguments are what this stage sends, and the rest of the forward is left by an exception.
class StageModule {
 public:
  /// `rank_of_stage` says which rank of the pipeline has each stage; this is rank `rank`. Changes the module in place.
  /// Parameters and buffers of other stages are emptied; those of this rank are left as they are, also deferred.
  StageModule(StageCut cut, std::vector<int> rank_of_stage, int rank);
  ~StageModule();
  StageModule(const StageModule&) = delete;
  StageModule& operator=(const StageModule&) = delete;

  const StageCut& cut() const { return cut_; }
  int rank() const { return rank_; }
  /// Where activations are; that of the parameters when it was made.
  c10::Device device() const { return device_; }
  void set_device(c10::Device device) { device_ = device; }
  int rank_of(int stage) const { return rank_of_stage_[static_cast<size_t>(stage)]; }
  int stages() const { return cut_.stages(); }
  /// Ranks of the pipeline that have a parameter or buffer, in order.
  std::vector<int> holders(const StageCut::State& state) const;
  bool holds(const StageCut::State& state) const;

  /// What one call of the user's forward gave.
  struct Output {
    /// Of the last stage: what the function returned.
    Tensor loss;
    /// Of another one: what the next stage takes, in order.
    std::vector<Tensor> tensors;
  };
  /// Runs one stage. `shapes` is what the stage before has told, null for the first one; `inputs` are what it has sent.
  /// `next` is what the next stage is told, null for the last one. While it is empty it is found out, for which the way
  /// to the next stage is run once more, without computing.
  Output run(int stage, const std::function<Tensor()>& forward, detail::StageShapes* shapes,
             const std::vector<Tensor>& inputs, detail::StageShapes* next);
  bool running() const { return now_ != nullptr; }

  /// While it lives, parameters outside of units that are not here have their sizes and no values, for code that
  /// computes with them before the stage begins.
  class Shown {
   public:
    explicit Shown(StageModule& owner);
    ~Shown();
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;

   private:
    StageModule& owner_;
  };
  /// An Error when something of another stage was used here: it then has a gradient.
  void check_unused() const;

 private:
  class Around;
  struct Now;
  void around_unit(Call& call, size_t unit);
  void around_side(Call& call, size_t side);
  void skip(Call& call, const std::string& name, bool dense);
  void note_result(Call& call, const std::string& name);
  void enter(Call& call, const std::string& name);
  [[noreturn]] void end(Call& call);
  /// Calls the user's forward; true: it was left where the stage ends.
  bool call(Now& now, const std::function<Tensor()>& forward, Tensor& result);
  class KeptBuffers;
  std::vector<bool> find_carried(const Now& now, const std::function<Tensor()>& forward,
                                 const std::vector<detail::UnitResult>& before);
  void check_others(const Now& now, const std::vector<Tensor>& arguments, const std::vector<bool>& carried,
                    const std::function<std::vector<Tensor>()>& skip_all);
  Now begin(int stage, const detail::StageShapes* shapes, const std::vector<Tensor>& inputs) const;
  void check_carried(const Now& now, const Output& output, const std::function<Tensor()>& forward,
                     const std::vector<Tensor>& inputs);
  void check_order(size_t unit) const;

  StageCut cut_;
  std::vector<int> rank_of_stage_;
  int rank_;
  c10::Device device_ = at::kCPU;
  std::vector<Attachment> attached_;
  /// Sides whose parameters are not all here.
  std::vector<bool> side_absent_;
  Now* now_ = nullptr;
};

}  // namespace levin
