#pragma once

#include <cstdint>
#include <filesystem>

#include <ATen/core/Tensor.h>

namespace levin {

struct IdxOptions {
  /// A file that declares more bytes of data than this is refused before anything is allocated.
  uint64_t limit_bytes = uint64_t{4} << 30;
};

/// Reads an IDX file (the format of MNIST), plain or compressed with gzip, whatever its name: uint8, int8, int16,
/// int32, float32 or float64, in the shape it declares. Truncated files, bytes after the end and absurd sizes are
/// Errors.
///
///     Tensor images = levin::read_idx("train-images-idx3-ubyte.gz");    // uint8 [60000, 28, 28]
at::Tensor read_idx(const std::filesystem::path& path, IdxOptions options = {});

}  // namespace levin
