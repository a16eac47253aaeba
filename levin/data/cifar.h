#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "levin/data/fashion_mnist.h"

namespace levin {

/// CIFAR-10 in memory: "image" uint8 [N, 3, 32, 32], "label" int64 [N], 50000 to train and 10000 to test on. The folder
/// has the binary files, those for Python, or train/ and test/ with a folder of PNG files for each class; as unpacked
/// or one above. Without a folder it is looked for in $LEVIN_DATA/cifar10, ~/.cache/levin/cifar10 and data/cifar10.
/// An Error says where to put it.
ImageData load_cifar10(const std::filesystem::path& folder = {});
bool has_cifar10(const std::filesystem::path& folder = {});

/// "airplane" to "truck", by label.
const std::vector<std::string>& cifar10_classes();

/// A stand-in that needs no file: ten kinds of shapes in random colours before random colours, "image" uint8
/// [N, 3, 32, 32]; the same for the same seed.
ImageData draw_color_shapes(int64_t train = 20000, int64_t test = 4000, uint64_t seed = 0);
/// "disc" to "chequers", by label.
const std::vector<std::string>& color_shape_classes();

/// CIFAR-10 where it is, else drawn shapes. A folder that was named must have the files.
ImageData load_cifar10_or_drawn(const std::filesystem::path& folder = {});

/// Writes "image" uint8 [N, C, H, W] and "label" as PNG files, a folder for each class, named by `classes` or by
/// number.
void write_image_folder(const std::filesystem::path& folder, const TensorDataset& data,
                        const std::vector<std::string>& classes = {});

}  // namespace levin
