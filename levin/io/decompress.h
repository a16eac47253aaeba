#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "levin/core/files.h"

/// Whole files in gzip or zstd, decompressed from the first byte to the last in blocks: memory is bounded, whatever the
/// file declares.
namespace levin::detail {

enum class Compression { kNone, kGzip, kZstd };

/// By the first bytes of a file.
Compression compression_of(const FileReader& file);

using EachBlock = std::function<void(std::span<const std::byte> block)>;

/// Hands on the content of a compressed file. What is cut short or damaged is an Error that names the file: all
/// checksums are verified.
void decompress(const FileReader& file, Compression kind, const EachBlock& each);

/// Of one kind each; zstd.cpp has a twin no_zstd.cpp.
void decompress_gzip(const FileReader& file, const EachBlock& each);
void decompress_zstd(const FileReader& file, const EachBlock& each);
/// Whether this build reads zstd.
bool has_zstd();

/// Reads a file from the front, a block at a time.
class BlockReader {
 public:
  explicit BlockReader(const FileReader& file) : file_(file), buffer_(kBytes) {}
  /// Empty at the end of the file.
  std::span<const std::byte> next();
  static constexpr size_t kBytes = size_t{256} << 10;

 private:
  const FileReader& file_;
  uint64_t at_ = 0;
  std::vector<std::byte> buffer_;
};

/// The content of compressed files, one after the other in a temporary file that has no name and goes with this object.
/// Threads may read at once. Blocks of zeros take no place.
class UnpackedFiles {
 public:
  UnpackedFiles();
  ~UnpackedFiles();
  UnpackedFiles(const UnpackedFiles&) = delete;
  UnpackedFiles& operator=(const UnpackedFiles&) = delete;

  struct Place {
    uint64_t begin = 0, size = 0;
  };
  /// Where the content of a file lies now; an Error when it is larger than `most`.
  Place add(const FileReader& file, Compression kind, uint64_t most);
  void read(uint64_t offset, std::span<std::byte> into) const;

 private:
  void put(std::span<const std::byte> bytes);

  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace levin::detail
