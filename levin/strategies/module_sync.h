#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin {

using at::Tensor;

/// Ranks that make different numbers of steps (fabric.join_uneven_inputs).
class UnevenInputs {
 public:
  virtual ~UnevenInputs() = default;

  /// From here on a rank that has made its last step takes part in the reductions of the others with zeros. Gradients
  /// are divided by the number of all ranks, or of those that still step.
  virtual void begin(bool divide_by_initial_world_size) = 0;
  /// This rank has made its last step. Returns when all have; parameters and buffers are then those of a rank that made
  /// the most.
  virtual void end() = 0;
};

/// A step over a batch in parts.
struct MicrobatchStep {
  /// Rows of each part.
  std::vector<int64_t> rows;
  /// What each part is like (shapes and dtypes); the same on ranks that work on it together.
  std::vector<std::string> shapes;
  /// The user's step on one part: returns its loss.
  std::function<Tensor(size_t part)> forward;
  /// What backward starts from, for a loss (loss scaling).
  std::function<Tensor(const Tensor& loss)> scale;
};

/// What a strategy does around one module that was set up with it. All calls are made by Fabric, in this order, each
/// step: before_forward, leave_forward, after_forward, before_backward, after_backward.
class ModuleSync {
 public:
  virtual ~ModuleSync() = default;

  /// Before the module's forward, when gradients are enabled or not.
  virtual void before_forward() = 0;
  /// After it, whether it returned or threw.
  virtual void leave_forward() {}
  /// Then, when it returned, with every tensor of the output that needs a gradient.
  virtual void after_forward(std::span<Tensor> outputs) = 0;
  /// Before the backward of a loss that came from this module's output.
  virtual void before_backward(const Tensor& loss) = 0;
  /// After it. Throws when ranks disagree about what was used: one line, the same on every rank.
  ///
  /// `failure` is what backward threw; null: it returned. After a failure it throws the line on which the ranks agree
  /// when other ranks are concerned; it returns when the failure is this rank's own, after telling the others.
  virtual void after_backward(const std::exception* failure) = 0;
  /// While false, gradients are only accumulated locally (no_backward_sync). It must cover forward and backward.
  virtual void set_sync(bool enabled) = 0;
  /// Rank 0's buffers on every rank, where the strategy keeps them the same. Every rank must call.
  virtual void sync_buffers() {}
  /// Null: every rank must make as many steps.
  virtual UnevenInputs* uneven_inputs() { return nullptr; }

  /// Whether ranks meet in a step in the grad mode of now, and so make as many of them. The same on every rank.
  virtual bool communicates() const { return true; }
  /// Called before a step is captured in a CUDA graph. Returns why it cannot be; empty: it can. With `keeps_gradients`
  /// gradients stay where they are from call to call.
  virtual std::string prepare_capture(bool keeps_gradients);
  /// Where a gradient that keeps its memory from call to call is to be; undefined: anywhere.
  virtual Tensor gradient_memory(const Tensor& /*param*/) { return {}; }
  /// A replay of a captured step was given to the device.
  virtual void after_replay() {}
  /// A capture has failed at any point of the step. Nothing of it was executed, and it is about to run again.
  virtual void capture_failed() {}
  /// Changes when memory that it keeps from step to step is another: steps captured before do not fit any more.
  virtual uint64_t layout_version() const { return 0; }
  /// False: memory that it keeps from step to step is about to move, so a capture had better wait for a later step.
  virtual bool is_settled() const { return true; }

  /// In how many parts a batch of that many rows is computed, forward and backward of all parts in one call; 0: it is
  /// not computed in parts, and forward and backward are the caller's.
  virtual int microbatches(int64_t /*rows*/) { return 0; }
  /// Runs forward and, where gradients are enabled, backward of all parts. Returns the mean of their losses, weighted
  /// by rows, without a graph; the same on every rank that works on the batch.
  virtual Tensor run_microbatches(const MicrobatchStep& step);
  /// A text of the rank that computed the losses of the last run, on every rank that worked on the batch.
  virtual std::string share_text(std::string text) { return text; }

  /// Of a backward that computes gradients of weights alone, apart from those of activations (zero-bubble pipelines):
  /// the part of the module with which a weight is gathered and reduced; -1: it is always there.
  virtual int weight_part(const Tensor& /*weight*/) const { return -1; }
  /// Gradients of the weights of a part are next. The first call of such a backward has part -1.
  virtual void enter_weights(int /*part*/) {}
  /// All that this backward gives them has been computed.
  virtual void leave_weights(int /*part*/) {}
};

/// Runs a backward pass between the before_backward and after_backward of modules, as every strategy needs it.
///
///     run_backward(syncs, loss, [&] { loss.backward(); });
void run_backward(std::span<ModuleSync* const> modules, const Tensor& loss, const std::function<void()>& backward);

}  // namespace levin
