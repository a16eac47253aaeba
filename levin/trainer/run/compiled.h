#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/fabric/compiled_step.h"
#include "levin/trainer/metric_log.h"
#include "levin/trainer/step.h"

namespace levin::detail {

class Run;

/// The steps of a run that are captured in CUDA graphs. What log() is given inside of one is kept with the graph, and
/// logged again, with new values, at each replay.
class CompiledSteps {
 public:
  explicit CompiledSteps(std::shared_ptr<StepCompiler> compiler) : compiler_(std::move(compiler)) {}

  /// Runs or replays one step on a batch, and returns what it gave. `call` has name, flags and the rest of the key.
  StepOutput run(Run& run, StepCall call, const AnyBatch& batch, const std::function<StepOutput()>& step);
  /// Takes a value of log() while a step is captured; false at all other times.
  bool record(std::string_view name, const LoggedValue& value, const LogOptions& options);

  /// False where nothing can be compiled.
  bool has_compiler() const { return compiler_ != nullptr; }
  StepCompiler& compiler() { return *compiler_; }

 private:
  struct Logged {
    std::string name;
    Tensor value;
    LogOptions options;
    std::string reduce_fx;
  };
  struct Result {
    StepOutput output;
    std::vector<Logged> logged;
  };

  std::shared_ptr<StepCompiler> compiler_;
  Result* recording_ = nullptr;
};

/// Null where steps run eagerly; the first time it says why.
CompiledSteps* compiled_steps(Run& run, Stage stage);

}  // namespace levin::detail
