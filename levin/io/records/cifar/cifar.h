#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/io/records/records.h"

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

/// "cifar10" or "cifar100" when a folder holds it, in any of its layouts; else empty.
std::string_view cifar_in(const std::filesystem::path& folder);

/// The writer, in cifar_write.cpp.
std::unique_ptr<RecordWriter> create_cifar(const std::filesystem::path& path, const RecordWriterOptions& options);

}  // namespace levin::detail
