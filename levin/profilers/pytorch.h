#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "levin/profilers/profile.h"
#include "levin/profilers/profiler.h"

namespace levin {

class TraceSpan;

/// Torch's profiler over the steps of a run: traces for TensorBoard, Perfetto and `levin report`, and a table of
/// operators. Actions are spans of the trace. A loop of the Trainer (fit, validate, test, predict) is one run of the
/// schedule.
class PyTorchProfiler : public Profiler {
 public:
  explicit PyTorchProfiler(PyTorchProfilerOptions options = {});
  ~PyTorchProfiler() override;

  ActionId register_action(std::string name) override;
  void start(ActionId action) override;
  void stop(ActionId action) override;
  /// The table of the last recording and where the traces are; empty when nothing was recorded.
  std::string summary() const override;

  void begin_loop(const ProfiledRun& run) override;
  void step() override;
  void end_step() override;
  void end_loop() override;
  /// With `profile_memory`, once, and not while it records: the prediction itself would be in the trace.
  bool wants_predicted_memory() const override;
  void add_metadata(const std::string& key, const std::string& json) override;

  profilers::Profile& profile() { return profile_; }

 private:
  struct Open {
    ActionId action;
    std::unique_ptr<TraceSpan> span;
  };
  struct Action {
    std::string name;
    /// Left out of traces: it encloses whole steps, and every moment of them would count as work of the host.
    bool encloses_steps;
  };

  const Action& at(ActionId action, const char* what) const;

  std::vector<Action> actions_;
  std::unordered_map<std::string, int32_t> index_;
  std::vector<Open> open_;
  /// The first step of the loop has begun.
  bool is_started_ = false;
  bool has_predicted_memory_ = false;
  profilers::Profile profile_;
};

}  // namespace levin
