#include "levin/data/sampler.h"

#include <numeric>
#include <utility>

#include "levin/core/error.h"

namespace levin {
namespace {

// SplitMix64: small, fast, the same on every platform (std::shuffle and std::uniform_int_distribution are not).
struct SplitMix {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound): the high half of a product; the bias is below bound / 2^64.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
};

}  // namespace

int64_t samples_per_rank(int64_t dataset_size, const SamplerOptions& options) {
  const int64_t world = options.world_size;
  if (options.drop_last) return dataset_size / world;
  return (dataset_size + world - 1 - (options.repeat ? 0 : options.rank)) / world;
}

std::vector<int64_t> sample_order(int64_t dataset_size, const SamplerOptions& options, int64_t epoch) {
  LEVIN_CHECK(options.world_size >= 1 && options.rank >= 0 && options.rank < options.world_size, "[data] rank ",
              options.rank, " of ", options.world_size, " is not possible");
  LEVIN_CHECK(dataset_size > 0, "[data] the dataset is empty");
  std::vector<int64_t> all(static_cast<size_t>(dataset_size));
  std::iota(all.begin(), all.end(), int64_t{0});
  if (options.shuffle) {
    SplitMix random{options.seed * 0xd1342543de82ef95 + static_cast<uint64_t>(epoch) + 1};
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
  }
  if (options.world_size == 1) return all;
  const int64_t count = samples_per_rank(dataset_size, options);
  std::vector<int64_t> mine;
  mine.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    mine.push_back(all[static_cast<size_t>((i * options.world_size + options.rank) % dataset_size)]);
  return mine;
}

}  // namespace levin
