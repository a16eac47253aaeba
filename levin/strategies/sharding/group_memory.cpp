#include "levin/strategies/sharding/group_memory.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "levin/core/parallel.h"

namespace levin::detail {

size_t arrived_with_unit(std::span<const int64_t> bytes) {
  const auto all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  size_t arrived = 0;
  for (auto left = all; left > all / 2 && arrived + 1 < bytes.size(); ++arrived) left -= bytes[arrived];
  return arrived;
}

uint64_t fingerprint(const Tensor& tensor) {
  const auto* words = static_cast<const uint64_t*>(tensor.const_data_ptr());
  std::atomic<uint64_t> sum = 0;
  // More threads are not faster than memory, and others have work, too.
  constexpr int64_t kThreads = 8;
  const auto count = static_cast<int64_t>(tensor.nbytes() / sizeof(uint64_t)),
             grain = std::max<int64_t>(1 << 15, count / kThreads);
  parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    constexpr uint64_t kPlace = 0x9e3779b97f4a7c15, kMix = 0xd6e8feb86659fd93;
    // Two rounds: after one, the signs of two values could change without changing the sum.
    uint64_t part = 0, place = static_cast<uint64_t>(begin) * kPlace;
    for (int64_t i = begin; i < end; ++i, place += kPlace) {
      uint64_t mixed = words[i] ^ place;
      mixed = (mixed ^ (mixed >> 32)) * kMix;
      mixed = (mixed ^ (mixed >> 32)) * kMix;
      part += mixed ^ (mixed >> 32);
    }
    sum += part;
  });
  return sum;
}

}  // namespace levin::detail
