#pragma once

#include "levin/program/recipes/fashion_mnist.h"
#include "levin/program/recipes/vit.h"

namespace levin::cli {

/// A small vision transformer for 28 x 28 pixels.
class VitClassifier : public VitImages {
 public:
  struct Options : VitSizes {
    Options() : VitSizes{7, 4, 4, 64, 128, 0, 0} {}
    double flip = 0;
    int64_t shift = 0;

    void fields(auto f) {
      VitSizes::fields(f);
      f("flip", flip, "probability of a horizontal flip in training");
      f("shift", shift, "maximum random shift in training, in pixels");
    }
  };

  explicit VitClassifier(const Options& options);
};

}  // namespace levin::cli
