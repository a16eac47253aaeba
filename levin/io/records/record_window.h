#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace levin::detail {

/// Reads bytes at a place of a file; an Error when they are not there.
using ReadAt = std::function<void(uint64_t offset, std::span<std::byte> into)>;

/// Reads the heads of records, one after the other, without what lies between: several small records share one read.
class RecordWindow {
 public:
  RecordWindow(ReadAt read, uint64_t size) : read_(std::move(read)), size_(size) {}

  uint64_t size() const { return size_; }
  /// Valid until the next call; the bytes must be within the file, and at most kBytes.
  std::span<const std::byte> get(uint64_t offset, size_t count) {
    if (offset < begin_ || offset + count > begin_ + held_.size()) {
      held_.resize(static_cast<size_t>(std::min<uint64_t>(kBytes, size_ - offset)));
      begin_ = offset;
      read_(offset, held_);
    }
    return std::span<const std::byte>(held_).subspan(static_cast<size_t>(offset - begin_), count);
  }

  static constexpr size_t kBytes = 4096;

 private:
  ReadAt read_;
  uint64_t size_;
  uint64_t begin_ = 0;
  std::vector<std::byte> held_;
};

}  // namespace levin::detail
