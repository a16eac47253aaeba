#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

/// Whoever wants to know all that a step does: its operators, and its work past the dispatcher.
namespace levin::detail {

using at::Tensor;

/// Work on tensors that no operator stands for, such as a fused step of an optimizer over lists of tensors.
struct ToldWork {
  std::string name;
  /// What is written and read is among both.
  std::vector<Tensor> reads, writes;
  /// Does it, on these tensors or on others like them in the same order. It may be called again later, once for each
  /// replay, and reads numbers that change between steps from where they are then.
  std::function<void(std::span<const Tensor> reads, std::span<const Tensor> writes)> work;
};

class StepWatch {
 public:
  virtual ~StepWatch() = default;
  /// In place of the operator: it calls `pass_on` of its own, and leaves what the operator returns on the stack.
  virtual void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) = 0;
  /// In place of `told.work`.
  virtual void on_work(ToldWork& told) = 0;
};

/// Makes a watch see what this thread does, and backward for it, while it lives. One at a time in a process.
class WatchStep {
 public:
  explicit WatchStep(StepWatch& watch);
  ~WatchStep();
  WatchStep(const WatchStep&) = delete;
  WatchStep& operator=(const WatchStep&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

/// The operator, below the key at which steps are watched. With `inside` the operators that it is made of are seen.
void call_below_watch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                      bool inside = false);
/// For others who register kernels at kBelowAutogradKey: tells the watch, if there is one, else calls what is below.
void pass_to_watch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
/// The fallback of kBelowAutogradKey for the operators that nobody has taken there. Without `watches` it costs nothing,
/// until a step is watched for the first time.
void register_step_watch(bool watches);

/// Whether this thread is watched.
bool is_step_watched();
/// Does the work, and tells the watch about it.
void tell_work(ToldWork told);

}  // namespace levin::detail
