#include "levin/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "levin/core/error.h"

namespace levin {
namespace {

// SplitMix64: small, fast, the same on every platform (std::shuffle and std::uniform_int_distribution are not).
struct SplitMix {
  uint64_t state;
  SplitMix(uint64_t seed, int64_t epoch) : state(seed * 0xd1342543de82ef95 + static_cast<uint64_t>(epoch) + 1) {}
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
  // In (0, 1].
  double uniform() { return static_cast<double>((next() >> 11) + 1) * 0x1p-53; }
};

std::vector<int64_t> in_order(int64_t size) {
  std::vector<int64_t> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

std::vector<int64_t> shuffled_order(int64_t size, uint64_t seed, int64_t epoch) {
  auto all = in_order(size);
  SplitMix random(seed, epoch);
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
  return all;
}

std::vector<int64_t> buffered_order(int64_t size, int64_t buffer, uint64_t seed, int64_t epoch) {
  SplitMix random(seed, epoch);
  std::vector<int64_t> held, order;
  order.reserve(static_cast<size_t>(size));
  const auto leave = [&] {
    const auto at = random.below(held.size());
    order.push_back(held[at]);
    held[at] = held.back();
    held.pop_back();
  };
  for (int64_t i = 0; i < size; ++i) {
    held.push_back(i);
    if (static_cast<int64_t>(held.size()) > buffer) leave();
  }
  while (!held.empty()) leave();
  return order;
}

std::vector<int64_t> drawn_again(const std::vector<double>& sums, int64_t count, uint64_t seed, int64_t epoch) {
  SplitMix random(seed, epoch);
  std::vector<int64_t> order(static_cast<size_t>(count));
  for (auto& index : order) {
    // The uniform number is never 0, so a leading sample of weight 0 is never the first that reaches it.
    const double at = random.uniform() * sums.back();
    index = std::min(std::lower_bound(sums.begin(), sums.end(), at) - sums.begin(),
                     static_cast<std::ptrdiff_t>(sums.size()) - 1);
  }
  return order;
}

// The `count` samples whose exponential waiting time, by weight, is shortest come, in that order: the same distribution
// as drawing one after the other without putting back.
std::vector<int64_t> drawn_once(const std::vector<double>& weights, int64_t count, uint64_t seed, int64_t epoch) {
  SplitMix random(seed, epoch);
  std::vector<double> times(weights.size());
  for (size_t i = 0; i < times.size(); ++i) {
    const double time = -std::log(random.uniform());
    times[i] = weights[i] > 0 ? time / weights[i] : std::numeric_limits<double>::infinity();
  }
  auto order = in_order(static_cast<int64_t>(weights.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int64_t a, int64_t b) {
    const double left = times[static_cast<size_t>(a)], right = times[static_cast<size_t>(b)];
    return left != right ? left < right : a < b;
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

}  // namespace

struct Sampler::Impl {
  std::string name;
  Order order;
  Count count;
  bool random;
};

Sampler::Sampler(std::string name, Order order, Count count, bool random)
    : impl_(std::make_shared<Impl>(Impl{std::move(name), std::move(order), std::move(count), random})) {}

Sampler Sampler::sequential() {
  return Sampler(
      "sequential", [](int64_t size, uint64_t, int64_t) { return in_order(size); }, {}, false);
}

Sampler Sampler::shuffled() {
  return Sampler("shuffled", shuffled_order);
}

Sampler Sampler::weighted(std::vector<double> weights, int64_t count, bool replacement) {
  int64_t possible = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    LEVIN_CHECK(weights[i] >= 0 && std::isfinite(weights[i]), "[data] weight ", weights[i], " of sample ", i,
                " is not allowed (0 or more)");
    possible += weights[i] > 0;
  }
  LEVIN_CHECK(possible > 0, "[data] a weighted sampler needs a weight above 0");
  LEVIN_CHECK(count >= 1 && (replacement || count <= possible), "[data] a weighted sampler cannot draw ", count,
              " samples without replacement from ", possible, " with a weight above 0");
  std::vector<double> sums(weights.size());
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  const auto samples = static_cast<int64_t>(weights.size());
  auto table = std::make_shared<const std::vector<double>>(replacement ? std::move(sums) : std::move(weights));
  return Sampler(
      "weighted",
      [=](int64_t size, uint64_t seed, int64_t epoch) {
        LEVIN_CHECK(size == samples, "[data] the sampler has ", samples, " weights, the dataset ", size, " samples");
        return replacement ? drawn_again(*table, count, seed, epoch) : drawn_once(*table, count, seed, epoch);
      },
      [count](int64_t) { return count; });
}

Sampler Sampler::buffered(int64_t buffer) {
  LEVIN_CHECK(buffer >= 1, "[data] a buffer of ", buffer, " samples is not allowed (1 or more)");
  return Sampler("buffered", [buffer](int64_t size, uint64_t seed, int64_t epoch) {
    return buffered_order(size, buffer, seed, epoch);
  });
}

Sampler Sampler::by_length(std::vector<int64_t> lengths, int64_t group) {
  LEVIN_CHECK(group >= 1, "[data] a group of ", group, " samples is not allowed (1 or more)");
  return Sampler("by_length", [lengths = std::move(lengths), group](int64_t size, uint64_t seed, int64_t epoch) {
    LEVIN_CHECK(size == static_cast<int64_t>(lengths.size()), "[data] the sampler has ", lengths.size(),
                " lengths, the dataset ", size, " samples");
    auto order = shuffled_order(size, seed, epoch);
    const auto longer = [&](int64_t a, int64_t b) {
      return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
    };
    for (int64_t begin = 0; begin < size; begin += group)
      std::stable_sort(order.begin() + begin, order.begin() + std::min(begin + group, size), longer);
    // What does not fit into memory is to be known at the first step.
    auto longest = order.begin();
    for (int64_t begin = 0; begin < size; begin += group)
      if (longer(order[static_cast<size_t>(begin)], *longest)) longest = order.begin() + begin;
    std::iter_swap(order.begin(), longest);
    return order;
  });
}

Sampler Sampler::subset(std::vector<int64_t> indices) {
  const auto count = static_cast<int64_t>(indices.size());
  return Sampler(
      "subset", [indices = std::move(indices)](int64_t, uint64_t, int64_t) { return indices; },
      [count](int64_t) { return count; }, false);
}

const std::string& Sampler::name() const {
  return impl_->name;
}

bool Sampler::is_random() const {
  return impl_->random;
}

int64_t Sampler::count(int64_t size) const {
  return impl_->count ? impl_->count(size) : size;
}

std::vector<int64_t> Sampler::order(int64_t size, uint64_t seed, int64_t epoch) const {
  auto result = impl_->order(size, seed, epoch);
  LEVIN_CHECK(static_cast<int64_t>(result.size()) == count(size), "[data] the sampler \"", name(), "\" gave ",
              result.size(), " samples, ", count(size), " were promised");
  for (const int64_t index : result)
    LEVIN_CHECK(index >= 0 && index < size, "[data] the sampler \"", name(), "\" gave sample ", index,
                " of a dataset with ", size);
  return result;
}

namespace {

int64_t drawn(int64_t dataset_size, const SamplerOptions& options) {
  return options.sampler.empty() ? dataset_size : options.sampler.count(dataset_size);
}

}  // namespace

int64_t samples_per_rank(int64_t dataset_size, const SamplerOptions& options) {
  const int64_t world = options.world_size;
  const int64_t samples = std::max<int64_t>(drawn(dataset_size, options) - options.start, 0);
  if (options.drop_last) return samples / world;
  return (samples + world - 1 - (options.repeat ? 0 : options.rank)) / world;
}

std::vector<int64_t> sample_order(int64_t dataset_size, const SamplerOptions& options, int64_t epoch) {
  LEVIN_CHECK(options.world_size >= 1 && options.rank >= 0 && options.rank < options.world_size, "[data] rank ",
              options.rank, " of ", options.world_size, " is not possible");
  LEVIN_CHECK(dataset_size > 0, "[data] the dataset is empty");
  auto all = !options.sampler.empty() ? options.sampler.order(dataset_size, options.seed, epoch)
             : options.shuffle        ? shuffled_order(dataset_size, options.seed, epoch)
                                      : in_order(dataset_size);
  LEVIN_CHECK(options.start >= 0 && options.start <= static_cast<int64_t>(all.size()), "[data] an epoch of ",
              all.size(), " samples has no sample ", options.start);
  if (options.world_size == 1) {
    all.erase(all.begin(), all.begin() + options.start);
    return all;
  }
  const int64_t count = samples_per_rank(dataset_size, options);
  std::vector<int64_t> mine;
  mine.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    mine.push_back(all[static_cast<size_t>(options.start + i * options.world_size + options.rank) % all.size()]);
  return mine;
}

}  // namespace levin
