#pragma once

#include <array>
#include <cstdint>

namespace levin {

/// Random numbers that belong to something (a sample of an epoch, a batch), not to a thread: a counter-based generator
/// (Philox 4x32-10) whose key is what it belongs to. The same key gives the same numbers on every machine, whoever asks
/// and whenever.
///
///     levin::Random random(seed, epoch, index);
///     if (random.chance(0.5)) flip(image);
class Random {
 public:
  Random(uint64_t seed, uint64_t epoch, uint64_t index) noexcept;

  /// 32 random bits.
  uint32_t bits() noexcept {
    if (used_ == 4) refill();
    return block_[used_++];
  }
  uint64_t bits64() noexcept {
    const uint64_t high = bits();
    return high << 32 | bits();
  }
  /// In [0, 1), of 53 bits.
  double uniform() noexcept { return static_cast<double>(bits64() >> 11) * 0x1p-53; }
  /// In [low, high).
  double uniform(double low, double high) noexcept { return low + (high - low) * uniform(); }
  /// In [0, count), without bias; 0 when count is 0 or 1.
  uint64_t below(uint64_t count) noexcept;
  /// In [low, high], both included.
  int64_t integer(int64_t low, int64_t high) noexcept {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }
  bool chance(double probability) noexcept { return uniform() < probability; }
  /// Mean 0, standard deviation 1.
  double normal() noexcept;
  /// Of a gamma distribution of that shape (> 0) and scale 1; of Beta(a, b), as mixup draws it.
  double gamma(double shape) noexcept;
  double beta(double a, double b) noexcept;

 private:
  void refill() noexcept;

  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> block_{};
  uint32_t used_ = 4;
};

}  // namespace levin
