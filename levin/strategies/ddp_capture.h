#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "levin/distributed/collective.h"

namespace levin::detail {

/// Gradients that travel together.
struct GradientBucket {
  Tensor memory;
  /// By their place among all parameters.
  std::vector<size_t> params;
  /// The part of each in `memory`.
  std::vector<Tensor> views;
};

/// Runs the kernels that only captured passes have: they cannot be loaded in a capture.
void load_pass_kernels(const std::vector<GradientBucket>& buckets);

/// What a pass averages, and how.
struct CapturedPassPlan {
  std::vector<std::string> names;
  std::vector<Tensor> params;
  /// In the order in which they are sent, which is the same on every rank.
  std::vector<GradientBucket> buckets;
  /// How often each parameter gets a gradient in a pass.
  std::vector<int> uses;
  /// Whether a parameter gets a gradient on any rank. None: that is known only of those that get one here.
  std::optional<std::vector<bool>> used_somewhere;
  /// A parameter may be without a gradient.
  bool allows_unused = false;
  /// Gradients become the views.
  bool gradients_are_views = false;
  /// In which they travel, when not in their own: divided by the number of ranks in it, as CompressHook does.
  std::optional<c10::ScalarType> travels_as;
};

/// Averages the gradients of one backward pass inside a CUDA graph: the all-reduces of torch's reducer, on its buckets,
/// with its numbers. The reducer itself cannot be captured: it works on the host in every pass. All that is decided
/// here is decided at the capture, and is the same in every replay. What is not ends the capture.
class CapturedPass {
 public:
  CapturedPass(Collective& group, CapturedPassPlan plan);

  /// The gradient of a parameter has come. A bucket is sent when it and those before it are complete.
  void ready(size_t param);
  /// All gradients have come: they are the mean over the ranks, for what follows on the current stream.
  void finish();

 private:
  void start(size_t bucket);
  void end(size_t bucket);
  void check_missing() const;

  Collective& group_;
  CapturedPassPlan plan_;
  std::vector<size_t> bucket_of_;
  std::vector<int> came_;
  /// Of each bucket, the parameters that have not come.
  std::vector<size_t> pending_;
  size_t next_ = 0;
  struct Sent {
    Tensor tensor;
    c10::intrusive_ptr<c10d::Work> work;
  };
  std::vector<Sent> sent_;
};

}  // namespace levin::detail
