#pragma once

#include <filesystem>

#include "levin/program/recipes/images.h"

namespace levin::cli {

/// Fashion-MNIST, or generated images where it is not installed.
class FashionMnist : public MemoryImages {
 public:
  struct Options : Sizes {
    std::filesystem::path folder = {};

    void fields(auto f) {
      f("folder", folder, "folder of the IDX files; default: the usual places, else generated images");
      Sizes::fields(f);
    }
  };

  explicit FashionMnist(const Options& options) : MemoryImages(options), folder_(options.folder) {}

 protected:
  ImageData load() const override { return load_fashion_mnist_or_drawn(folder_); }

 private:
  std::filesystem::path folder_;
};

/// Normalizes by mean and standard deviation of Fashion-MNIST.
ImageInput fashion_mnist_input();

/// uint8 [B, 1, 28, 28] to floats around 0.
Tensor normalized(const Tensor& image);

}  // namespace levin::cli
