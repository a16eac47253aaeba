#pragma once

#include <filesystem>

#include "levin/program/recipes/images.h"

namespace levin::cli {

/// CIFAR-10; without its files an Error says where to put them. `drawn` takes coloured shapes instead.
class Cifar10 : public MemoryImages {
 public:
  struct Options : Sizes {
    std::filesystem::path folder = {};
    int64_t drawn = 0;

    Options() { val_size = 5000; }

    void fields(auto f) {
      f("folder", folder, "CIFAR-10, as unpacked; by itself where it usually is");
      f("drawn", drawn, "draw so many coloured shapes instead, to try things without data");
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

/// Three channels, by the means and spreads of CIFAR-10; training mirrors half of the images and moves them by up to 4
/// pixels.
ImageInput cifar10_input();

}  // namespace levin::cli
