#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "levin/core/state_dict.h"
#include "levin/data/dataset.h"
#include "levin/data/sampler.h"

namespace levin {

struct LoaderOptions {
  /// Samples of a batch, on each rank.
  int64_t batch_size = 1;
  /// A new order each epoch.
  bool shuffle = false;
  /// Leave out a last batch that is not full.
  bool drop_last = false;
  /// The order is a function of seed and epoch.
  uint64_t seed = 0;
};

namespace detail {

/// Where a loader stands. The order of the samples is worked out anew, never stored.
class LoaderPosition {
 public:
  LoaderPosition(int64_t dataset_size, const LoaderOptions& options, int rank, int world_size, bool repeat = true);

  /// Starts the next pass: goes on where a loaded state left off, or with the next epoch.
  void begin();
  /// The indices of the next batch; empty at the end of the pass.
  std::span<const int64_t> next();

  int64_t batches() const;
  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }
  const SamplerOptions& sampler() const { return sampler_; }
  void set_epoch(int64_t epoch) { seek(epoch, 0); }
  void seek(int64_t epoch, int64_t batch);
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  int64_t dataset_size_;
  LoaderOptions options_;
  SamplerOptions sampler_;
  std::vector<int64_t> order_;
  int64_t epoch_ = 0;
  int64_t batch_ = 0;  // given out in this epoch
  bool inside_ = false;
};

}  // namespace detail

/// Batches of a dataset, pass by pass. A handle: copies share. Every pass is the next epoch, with its own order; the
/// state says which batch comes next, so that a run can stop anywhere and go on with the very same rest.
///
///     auto loader = levin::make_loader(dataset, {.batch_size = 64, .shuffle = true});
///     for (auto& batch : loader) train(batch["image"], batch["label"]);
template <class B>
class DataLoader {
 public:
  using Fetch = std::function<B(std::span<const int64_t>)>;

  DataLoader() = default;
  DataLoader(int64_t dataset_size, Fetch fetch, LoaderOptions options = {}, int rank = 0, int world_size = 1,
             bool repeat = true)
      : impl_(std::make_shared<Impl>(Impl{dataset_size,
                                          std::move(fetch),
                                          options,
                                          detail::LoaderPosition(dataset_size, options, rank, world_size, repeat),
                                          {}})) {}

  class iterator;
  /// Starts a pass and fetches its first batch.
  iterator begin() const {
    impl_->position.begin();
    impl_->advance();
    return iterator(impl_.get());
  }
  std::default_sentinel_t end() const { return {}; }

  /// Batches of a pass, on this rank.
  int64_t size() const { return impl_->position.batches(); }
  int64_t batch_size() const { return impl_->options.batch_size; }
  /// Samples of the dataset, over all ranks.
  int64_t dataset_size() const { return impl_->dataset_size; }
  /// Whether each epoch has its own order.
  bool shuffles() const { return impl_->options.shuffle; }

  /// The epoch of the pass under way, or of the next one.
  int64_t epoch() const { return impl_->position.epoch(); }
  /// The next pass is this epoch.
  void set_epoch(int64_t epoch) const { impl_->position.set_epoch(epoch); }
  /// Batches given out in the pass under way.
  int64_t batch() const { return impl_->position.batch(); }
  /// The next pass is this epoch, without its first `batch` batches.
  void seek(int64_t epoch, int64_t batch) const { impl_->position.seek(epoch, batch); }

  /// A loader of the same data that gives out the part of one rank. Where the samples do not divide by the ranks, some
  /// come twice so that every rank has as many; without `repeat` (for evaluation) the first ranks have one more
  /// instead, and a rank may have none.
  DataLoader distributed(int rank, int world_size, bool repeat = true) const {
    return DataLoader(impl_->dataset_size, impl_->fetch, impl_->options, rank, world_size, repeat);
  }
  /// A loader of the same data, in the order of the dataset.
  DataLoader sequential() const {
    auto options = impl_->options;
    options.shuffle = false;
    return with(options);
  }
  /// A loader of the same data with another size of batches.
  DataLoader with_batch_size(int64_t batch_size) const {
    auto options = impl_->options;
    options.batch_size = batch_size;
    return with(options);
  }

  StateDict state_dict() const { return impl_->position.state_dict(); }
  void load_state_dict(const StateDict& state) const { impl_->position.load_state_dict(state); }

 private:
  struct Impl {
    int64_t dataset_size;
    Fetch fetch;
    LoaderOptions options;
    detail::LoaderPosition position;
    std::optional<B> current;

    void advance() {
      const auto indices = position.next();
      if (indices.empty())
        current.reset();
      else
        current.emplace(fetch(indices));
    }
  };

  DataLoader with(const LoaderOptions& options) const {
    const auto& sampler = impl_->position.sampler();
    return DataLoader(impl_->dataset_size, impl_->fetch, options, sampler.rank, sampler.world_size, sampler.repeat);
  }

  std::shared_ptr<Impl> impl_;

 public:
  class iterator {
   public:
    using value_type = B;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    iterator() = default;
    explicit iterator(Impl* impl) : impl_(impl) {}
    B& operator*() const { return *impl_->current; }
    iterator& operator++() {
      impl_->advance();
      return *this;
    }
    void operator++(int) { impl_->advance(); }
    bool operator==(std::default_sentinel_t) const { return !impl_->current; }

   private:
    Impl* impl_ = nullptr;
  };
};

/// A loader over a dataset, which it keeps (datasets are small handles to their data).
template <Dataset D>
auto make_loader(D dataset, LoaderOptions options = {}) {
  auto shared = std::make_shared<const D>(std::move(dataset));
  using B = decltype(detail::fetch(*shared, {}));
  return DataLoader<B>(
      shared->size(), [shared](std::span<const int64_t> indices) { return detail::fetch(*shared, indices); }, options);
}

/// Pairs of a count and what a range gives: `for (auto [i, batch] : levin::enumerate(loader))`.
template <class R>
class enumerate {
 public:
  explicit enumerate(R& range) : range_(range) {}

  class iterator {
   public:
    explicit iterator(R& range) : it_(range.begin()) {}
    auto operator*() const { return std::pair<int64_t, decltype(*std::declval<Inner&>())>(index_, *it_); }
    iterator& operator++() {
      ++index_;
      ++it_;
      return *this;
    }
    template <class S>
    bool operator==(const S& end) const {
      return it_ == end;
    }

   private:
    using Inner = decltype(std::declval<R&>().begin());
    int64_t index_ = 0;
    mutable Inner it_;
  };

  iterator begin() { return iterator(range_); }
  auto end() { return range_.end(); }

 private:
  R& range_;
};

}  // namespace levin
