#include "levin/core/random.h"

#include <cmath>
#include <numbers>

namespace levin {
namespace {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

}  // namespace

// The key is the seed. The counter has 128 bits: 32 for the numbers drawn, 96 for epoch and index, of which no data set
// has more than 2^48 of each.
Random::Random(uint64_t seed, uint64_t epoch, uint64_t index) noexcept
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      counter_{0, static_cast<uint32_t>(index),
               static_cast<uint32_t>(index >> 32 & 0xffff) | static_cast<uint32_t>(epoch << 16),
               static_cast<uint32_t>(epoch >> 16)} {}

void Random::refill() noexcept {
  block_ = philox(counter_, key_);
  ++counter_[0];
  used_ = 0;
}

uint64_t Random::below(uint64_t count) noexcept {
  if (count < 2) return 0;
  // Lemire's way: the high half of a product, and a second draw only for the few values that would be too frequent.
  unsigned __int128 product = static_cast<unsigned __int128>(bits64()) * count;
  if (auto low = static_cast<uint64_t>(product); low < count) {
    const uint64_t threshold = (0 - count) % count;
    while (low < threshold) {
      product = static_cast<unsigned __int128>(bits64()) * count;
      low = static_cast<uint64_t>(product);
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

double Random::normal() noexcept {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

// Marsaglia and Tsang; a shape below 1 is brought above it by a power of a uniform number.
double Random::gamma(double shape) noexcept {
  if (shape < 1) {
    const double above = gamma(shape + 1);
    return above * std::pow(1 - uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(), v = 1 + c * x;
    if (v <= 0) continue;
    const double cube = v * v * v;
    if (std::log(1 - uniform()) < 0.5 * x * x + d - d * cube + d * std::log(cube)) return d * cube;
  }
}

double Random::beta(double a, double b) noexcept {
  const double x = gamma(a);
  const double sum = x + gamma(b);
  return sum > 0 ? x / sum : 0.5;
}

}  // namespace levin
