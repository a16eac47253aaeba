#pragma once

#include <filesystem>

#include "levin/program/recipes/images.h"

namespace levin::cli {

/// CIFAR-10; without its files an Error says where to put them. `drawn` generates images of coloured shapes instead.
class Cifar10 : public MemoryImages {
 public:
  struct Options : Sizes {
    std::filesystem::path folder = {};
    int64_t drawn = 0;

    Options() { val_size = 5000; }

    void fields(auto f) {
      f("folder", folder, "folder of CIFAR-10; default: the usual places");
      f("drawn", drawn, "use N generated images instead, to run without the dataset");
      Sizes::fields(f);
    }
  };

  explicit Cifar10(const Options& options) : MemoryImages(options), folder_(options.folder), drawn_(options.drawn) {}

 protected:
  ImageData load() const override;

 private:
  std::filesystem::path folder_;
  int64_t drawn_;
};

/// Normalizes by mean and standard deviation of CIFAR-10; in training random flips and shifts of up to 4 pixels.
ImageInput cifar10_input();

}  // namespace levin::cli
