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
      f("flip", flip, "share of the training images that are mirrored");
      f("shift", shift, "pixels that training images are moved by, at most");
    }
  };

  explicit VitClassifier(const Options& options);
};

}  // namespace levin::cli
