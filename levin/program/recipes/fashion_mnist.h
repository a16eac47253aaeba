#pragma once

#include <filesystem>

#include "levin/program/recipes/images.h"

namespace levin::cli {

/// Fashion-MNIST, or drawn shapes where it is not.
class FashionMnist : public MemoryImages {
 public:
  struct Options : Sizes {
    std::filesystem::path folder = {};

    void fields(auto f) {
      f("folder", folder, "the four IDX files; by itself the system's, else drawn shapes");
      Sizes::fields(f);
    }
  };

  explicit FashionMnist(const Options& options) : MemoryImages(options), folder_(options.folder) {}

 protected:
  ImageData load() const override { return load_fashion_mnist_or_drawn(folder_); }

 private:
  std::filesystem::path folder_;
};

/// One channel, by the mean and spread of Fashion-MNIST.
ImageInput fashion_mnist_input();

/// uint8 [B, 1, 28, 28] to floats around 0.
Tensor normalized(const Tensor& image);

}  // namespace levin::cli
