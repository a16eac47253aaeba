#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "levin/trainer/metric_log.h"
#include "levin/trainer/step.h"

namespace levin::detail {

class Run;

/// What a step logs while it is called once for each micro-batch: one value is made of those of all parts, and it is
/// logged on every rank of the pipeline, also where the step was left before it came to log().
class PartLogs {
 public:
  /// What is logged from now on counts when `keep` is called; else it is forgotten.
  void begin() { pending_.clear(); }
  void keep(int64_t rows);
  bool record(std::string_view name, const LoggedValue& value, const LogOptions& options);

  /// One value for each name: the mean weighted by rows, or the sum, the least, the largest, as reduce_fx says.
  std::string to_text() const;
  /// Logs what a text says, as of the step at hand.
  static void replay(Run& run, const std::string& text);

 private:
  struct Entry {
    std::string name, reduce_fx;
    LogOptions options;
    double value = 0, weight = 0;
  };
  std::vector<Entry> pending_, kept_;
};

/// In how many parts the strategy computes this batch; 0: in one, forward and backward apart.
int step_parts(Run& run, const AnyBatch& batch);
/// A step over a batch in parts: forward and, where gradients are enabled, backward. What it returns is the same on
/// every rank that works on the batch, but for `extra`, which only the rank of the last stage has: parts one behind the
/// other. The loss is multiplied by `loss_factor` for backward.
StepOutput run_in_parts(Run& run, Stage stage, const AnyBatch& batch, const StepInfo& at, int parts,
                        double loss_factor = 1);

}  // namespace levin::detail
