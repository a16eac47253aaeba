#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "levin/data/dataset.h"

namespace levin {

/// Images and labels to train and to test on: "image" uint8 [N, 1, 28, 28], "label" int64 [N], ten classes.
struct ImageData {
  /// For people: "Fashion-MNIST", "drawn shapes".
  std::string name;
  TensorDataset train;
  TensorDataset test;
};

/// Fashion-MNIST (or MNIST: the files have the same names) from a folder with the four IDX files, plain or .gz. Without
/// one from where Debian's package dataset-fashion-mnist puts them. An Error says which file is missing and where it
/// was looked for.
ImageData load_fashion_mnist(const std::filesystem::path& folder = {});
bool has_fashion_mnist(const std::filesystem::path& folder = {});

/// Images that need no file: ten kinds of shapes of random place, size and brightness, under noise; the same for the
/// same seed.
ImageData draw_shapes(int64_t train = 20000, int64_t test = 4000, uint64_t seed = 0);

/// Fashion-MNIST where it is, else drawn shapes. A folder that was named must have the files.
ImageData load_fashion_mnist_or_drawn(const std::filesystem::path& folder = {});

}  // namespace levin
