#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::detail {

inline constexpr int64_t kCifarSide = 32;
inline constexpr int64_t kCifarBytes = 3 * kCifarSide * kCifarSide;

/// A batch of the Python version of CIFAR: pixels uint8 [N, 3072], plane by plane, and its labels. Coarse labels are
/// there for CIFAR-100 alone.
struct CifarBatch {
  at::Tensor pixels;
  std::vector<int64_t> labels;
  std::vector<int64_t> coarse_labels;
};

/// Reads a batch as Python pickled it; nothing in the file is executed.
CifarBatch read_cifar_pickle(const std::filesystem::path& path);
/// The list of names in batches.meta ("label_names") or meta ("fine_label_names").
std::vector<std::string> read_cifar_names(const std::filesystem::path& path, const std::string& field);

}  // namespace levin::detail
