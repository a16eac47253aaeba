#pragma once

#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/strategies/module_sync.h"

namespace levin::detail {

using at::Tensor;

/// The backward of one stage for one micro-batch, at once or in two parts: first the gradient of the input, which the
/// stage before waits for, later the gradients of the weights.
///
/// The graph is cut where the way of a parameter meets the way of the input: at the node that uses the weight. The
/// first part keeps the gradients that arrive at these nodes, and has only their inputs differentiated; the second part
/// starts from them, so nothing is computed twice. A parameter that several nodes use is left to the first part.
class StageBackward {
 public:
  /// `roots` have a graph, `grads` are theirs (undefined: one); `inputs` are leaves.
  StageBackward(std::vector<Tensor> roots, std::vector<Tensor> grads, std::vector<Tensor> inputs);
  ~StageBackward();
  StageBackward(const StageBackward&) = delete;
  StageBackward& operator=(const StageBackward&) = delete;

  /// Accumulates gradients of the weights and returns those of the inputs.
  std::vector<Tensor> all();
  /// The same in two calls.
  std::vector<Tensor> of_inputs();
  /// `owner` is told of which of its parts the weights are, one part after the other; null: nobody is.
  void of_weights(ModuleSync* owner = nullptr);

 private:
  struct Split;
  std::vector<Tensor> input_grads();
  std::vector<Tensor> roots_, grads_, inputs_;
  std::unique_ptr<Split> split_;
};

}  // namespace levin::detail
