#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <vector>

#include "levin/core/batch.h"
#include "levin/core/random.h"
#include "levin/data/transforms/values.h"

namespace levin {

/// What changes a whole batch where it lies, on the CPU or on the device: any callable `void(Batch&, Random&)`. The
/// random numbers of image i are drawn in the order of i.
class BatchTransform {
 public:
  BatchTransform() = default;
  template <class F>
  requires(std::invocable<const F&, Batch&, Random&> && !std::same_as<F, BatchTransform>) BatchTransform(F step)
      : step_(std::move(step)) {}
  void operator()(Batch& batch, Random& random) const {
    if (step_) step_(batch, random);
  }
  bool empty() const { return !step_; }

 private:
  std::function<void(Batch&, Random&)> step_;
};

namespace transforms {

/// One after the other.
BatchTransform compose_batch(std::vector<BatchTransform> steps);

/// Images of bytes [B, C, H, W] to normalized numbers: cut (with a border), mirrored, normalized, cast and laid out in
/// one kernel. CIFAR's recipe is `BatchNormalize{.crop = 32, .padding = 4, .flip_p = 0.5}` with its mean and std.
struct BatchNormalize {
  std::vector<double> mean = {0.485, 0.456, 0.406};
  std::vector<double> std = {0.229, 0.224, 0.225};
  /// Float, Half or BFloat16.
  at::ScalarType dtype = at::kFloat;
  /// The memory of the result.
  bool channels_last = false;
  /// How many of the images are mirrored; 0 draws nothing.
  double flip_p = 0;
  /// A random part of this size; {} is the whole image.
  Size crop = {};
  /// A border that the part may reach into.
  Padding padding = {};
  /// Of the border, 0 to 255.
  int fill = 0;
  std::string image = "image";
  void operator()(Batch& batch, Random& random) const;
};

/// Every image and its neighbour, mixed by one share drawn from Beta(alpha, alpha); labels become probabilities.
struct MixUp {
  double alpha = 1;
  /// Needed for labels that are indices [B]; labels may be probabilities [B, classes] already.
  int64_t num_classes = 0;
  std::string image = "image";
  std::string label = "label";
  void operator()(Batch& batch, Random& random) const;
};

/// A rectangle of the neighbour in every image; labels are mixed by its area.
struct CutMix {
  double alpha = 1;
  int64_t num_classes = 0;
  std::string image = "image";
  std::string label = "label";
  void operator()(Batch& batch, Random& random) const;
};

/// RandomErasing of every image on its own, in one kernel. In place.
struct BatchRandomErasing {
  double p = 0.5;
  Range scale = {0.02, 0.33};
  Range ratio = {0.3, 3.3};
  Fill value = 0;
  std::string image = "image";
  void operator()(Batch& batch, Random& random) const;
};

/// MixUp and CutMix with their parameters given.
Tensor mix_images(const Tensor& images, double lam);
Tensor cut_images(const Tensor& images, int64_t x1, int64_t y1, int64_t x2, int64_t y2);
Tensor mix_labels(const Tensor& labels, double lam, int64_t num_classes);

}  // namespace transforms

}  // namespace levin
