#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "levin/core/error.h"
#include "levin/trainer/optimizers.h"
#include "levin/trainer/step.h"

namespace levin {

class TrainerContext;

/// A module and what it may ask of the run it is in: log(), its optimizers, where the run is.
class ModuleInRun : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// A value for the progress bar, the loggers and the callbacks; see LogOptions. Outside of a run it goes nowhere,
  /// with a warning.
  void log(std::string_view name, const Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  void log_dict(std::initializer_list<std::pair<std::string_view, Tensor>> values, const LogOptions& options = {});
  /// One line on stdout, of rank 0; printed above the progress bar.
  template <class... Args>
  void print(const Args&... args) {
    print_line(detail::concat(args...));
  }

  /// Optimizers as the run uses them: for manual optimization.
  Optimizer& optimizer(size_t index = 0);
  const std::vector<Optimizer>& optimizers();
  Scheduler& lr_scheduler(size_t index = 0);
  /// Backward in manual optimization: in the run's precision, reduced over the ranks.
  void manual_backward(const Tensor& loss);
  /// Only this optimizer's parameters get gradients until untoggle.
  void toggle_optimizer(Optimizer& optimizer);
  void untoggle_optimizer(Optimizer& optimizer);
  /// "norm" or "value"; 0 does nothing.
  void clip_gradients(Optimizer& optimizer, double clip_val, std::string_view algorithm = "norm");

  /// The run under way; an Error outside of one.
  TrainerContext& trainer() const;
  bool has_trainer() const { return context_ != nullptr; }
  int64_t current_epoch() const;
  int64_t global_step() const;
  c10::Device device() const;
  void set_context(TrainerContext* context) { context_ = context; }

 protected:
  void run_backward(const Tensor& loss);
  void print_line(const std::string& line);
  [[noreturn]] void fail_missing(const char* step, const char* what) const;

 private:
  void warn_log_goes_nowhere(std::string_view value) const;

  TrainerContext* context_ = nullptr;
  std::vector<std::pair<Tensor, bool>> toggled_;
};

}  // namespace levin
