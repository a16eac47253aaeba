#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace levin::detail {

/// Which chunks were computed with in a step, use after use. Its numbers are the clock of the placement.
class UseTrace {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  void add(std::span<const int> chunks);
  void clear();
  int64_t size() const { return static_cast<int64_t>(uses_.size()); }
  std::span<const int> at(int64_t use) const { return uses_.at(static_cast<size_t>(use)); }
  /// Whether this use was recorded with just these chunks.
  bool matches(int64_t use, std::span<const int> chunks) const;
  /// The first use of the chunk after that one, or kNever.
  int64_t next_use(int chunk, int64_t after) const;

 private:
  std::vector<std::vector<int>> uses_;
  std::vector<std::vector<int64_t>> by_chunk_;
};

}  // namespace levin::detail
