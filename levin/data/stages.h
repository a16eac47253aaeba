#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "levin/core/error.h"
#include "levin/core/random.h"
#include "levin/data/dataset.h"
#include "levin/data/loader.h"
#include "levin/data/stream.h"

/// Datasets and streams made of others. Each is a dataset or a stream itself, so they compose:
///
///     auto data = stages::map(stages::subset(folder, few), [](levin::Batch sample, levin::Random& random) { ... });
namespace levin::stages {

namespace detail {
template <class F, class S>
auto call(const F& f, S sample, Random& random) {
  if constexpr (std::invocable<const F&, S, Random&>)
    return f(std::move(sample), random);
  else
    return f(std::move(sample));
}
}  // namespace detail

/// Every sample through `f(sample)` or `f(sample, random)`. It runs where samples are made: on all threads.
template <Dataset D, class F>
class Mapped {
 public:
  Mapped(D data, F f) : data_(std::move(data)), f_(std::move(f)) {}
  int64_t size() const { return static_cast<int64_t>(data_.size()); }
  auto get(int64_t index, Random& random, SamplePlace& place) const {
    return detail::call(f_, levin::detail::get_sample(data_, index, random, place), random);
  }

 private:
  D data_;
  F f_;
};
template <Dataset D, class F>
Mapped<D, F> map(D data, F f) {
  return Mapped<D, F>(std::move(data), std::move(f));
}

/// The samples of these indices.
template <Dataset D>
class Subset {
 public:
  Subset(D data, std::vector<int64_t> indices) : data_(std::move(data)), indices_(std::move(indices)) {
    for (const int64_t index : indices_)
      LEVIN_CHECK(index >= 0 && index < static_cast<int64_t>(data_.size()), "[data] a subset names sample ", index,
                  " of a dataset with ", data_.size());
  }
  int64_t size() const { return static_cast<int64_t>(indices_.size()); }
  auto get(int64_t index, Random& random, SamplePlace& place) const {
    return levin::detail::get_sample(data_, indices_[static_cast<size_t>(index)], random, place);
  }
  /// Of images that the loader decodes.
  auto get_encoded(int64_t index, Random& random,
                   const levin::detail::GpuJpegDecoder* decoder) const requires levin::detail::EncodedDataset<D> {
    return data_.get_encoded(indices_[static_cast<size_t>(index)], random, decoder);
  }
  std::string why_not_gpu() const requires levin::detail::EncodedDataset<D> { return data_.why_not_gpu(); }

 private:
  D data_;
  std::vector<int64_t> indices_;
};
template <Dataset D>
Subset<D> subset(D data, std::vector<int64_t> indices) {
  return Subset<D>(std::move(data), std::move(indices));
}

/// Parts of these sizes, drawn at random by the seed; the sizes must add up to that of the dataset (torch's
/// random_split).
template <Dataset D>
std::vector<Subset<D>> random_split(const D& data, const std::vector<int64_t>& sizes, uint64_t seed = 0) {
  const int64_t size = static_cast<int64_t>(data.size()), sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  LEVIN_CHECK(sum == size, "[data] random_split: the parts have ", sum, " samples in all, the dataset has ", size);
  const auto order = Sampler::shuffled().order(size, seed, 0);
  std::vector<Subset<D>> parts;
  auto first = order.begin();
  for (const int64_t count : sizes) {
    parts.emplace_back(data, std::vector<int64_t>(first, first + count));
    first += count;
  }
  return parts;
}

/// One dataset after the other.
template <Dataset D>
class Concat {
 public:
  explicit Concat(std::vector<D> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_)
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + static_cast<int64_t>(part.size()));
  }
  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  auto get(int64_t index, Random& random, SamplePlace& place) const {
    const auto part = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    return levin::detail::get_sample(parts_[part], index - (part ? ends_[part - 1] : 0), random, place);
  }

 private:
  std::vector<D> parts_;
  std::vector<int64_t> ends_;
};
template <Dataset D>
Concat<D> concat(std::vector<D> parts) {
  return Concat<D>(std::move(parts));
}

/// Every item of a stream through `f(item)` or `f(item, random)`, on all threads.
template <Stream D, class F>
class MappedStream {
 public:
  MappedStream(D stream, F f) : stream_(std::move(stream)), f_(std::move(f)) {}
  void start(int64_t epoch) { stream_.start(epoch); }
  auto next() { return stream_.next(); }
  void skip(int64_t count) requires requires(D& d) { d.skip(count); }
  { stream_.skip(count); }
  auto finish(levin::detail::ItemOf<D> item, Random& random) const {
    return detail::call(f_, levin::detail::finish_item(stream_, std::move(item), random), random);
  }

 private:
  D stream_;
  F f_;
};
template <Stream D, class F>
requires(!Dataset<D>) MappedStream<D, F> map(D stream, F f) {
  return MappedStream<D, F>(std::move(stream), std::move(f));
}

/// The items for which `keep(item)` holds; it looks at items before the stages of other threads.
template <Stream D, class F>
class FilteredStream {
 public:
  FilteredStream(D stream, F keep) : stream_(std::move(stream)), keep_(std::move(keep)) {}
  void start(int64_t epoch) { stream_.start(epoch); }
  auto next() {
    auto item = stream_.next();
    while (item && !keep_(std::as_const(*item))) item = stream_.next();
    return item;
  }
  auto finish(levin::detail::ItemOf<D> item, Random& random) const {
    return levin::detail::finish_item(stream_, std::move(item), random);
  }

 private:
  D stream_;
  F keep_;
};
template <Stream D, class F>
FilteredStream<D, F> filter(D stream, F keep) {
  return FilteredStream<D, F>(std::move(stream), std::move(keep));
}

/// Items leave a buffer of that size at random; a function of seed and epoch.
template <Stream D>
class ShuffledStream {
 public:
  ShuffledStream(D stream, int64_t buffer, uint64_t seed)
      : stream_(std::move(stream)), buffer_(buffer), seed_(seed), random_(seed, 0, 0) {
    LEVIN_CHECK(buffer >= 1, "[data] a buffer of ", buffer, " items is not allowed (1 or more)");
  }
  void start(int64_t epoch) {
    stream_.start(epoch);
    held_.clear();
    random_ = Random(seed_, static_cast<uint64_t>(epoch), 0);
  }
  auto next() {
    auto item = stream_.next();
    for (; item && static_cast<int64_t>(held_.size()) < buffer_; item = stream_.next())
      held_.push_back(std::move(*item));
    if (item) {
      std::swap(*item, held_[random_.below(held_.size())]);
    } else if (!held_.empty()) {
      std::swap(held_[random_.below(held_.size())], held_.back());
      item.emplace(std::move(held_.back()));
      held_.pop_back();
    }
    return item;
  }
  auto finish(levin::detail::ItemOf<D> item, Random& random) const {
    return levin::detail::finish_item(stream_, std::move(item), random);
  }

 private:
  D stream_;
  int64_t buffer_;
  uint64_t seed_;
  Random random_;
  std::vector<levin::detail::ItemOf<D>> held_;
};
template <Stream D>
ShuffledStream<D> shuffle(D stream, int64_t buffer, uint64_t seed = 0) {
  return ShuffledStream<D>(std::move(stream), buffer, seed);
}

/// The first `count` items.
template <Stream D>
class TakenStream {
 public:
  TakenStream(D stream, int64_t count) : stream_(std::move(stream)), count_(count) {}
  void start(int64_t epoch) {
    stream_.start(epoch);
    given_ = 0;
  }
  auto next() { return given_++ < count_ ? stream_.next() : decltype(stream_.next())(); }
  auto finish(levin::detail::ItemOf<D> item, Random& random) const {
    return levin::detail::finish_item(stream_, std::move(item), random);
  }

 private:
  D stream_;
  int64_t count_;
  int64_t given_ = 0;
};
template <Stream D>
TakenStream<D> take(D stream, int64_t count) {
  return TakenStream<D>(std::move(stream), count);
}

}  // namespace levin::stages
