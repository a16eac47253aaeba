#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "levin/core/error.h"
#include "levin/core/state_dict.h"
#include "levin/data/batch_iterator.h"
#include "levin/data/batch_pipe.h"
#include "levin/data/loader.h"

namespace levin {

/// Data that come one after the other, of no known number (lines of a pipe, a simulator, shards of a tar):
/// `start(epoch)` begins a pass, `next()` gives the next item, or nothing at the end. One thread at a time calls them.
/// What takes time belongs into a stage (stages::map), which runs on all threads. A stream that can resume in the
/// middle may add `skip(count)`; else the loader reads up to there.
template <class D>
concept Stream = requires(D& stream, int64_t epoch) {
  stream.start(epoch);
  { stream.next().has_value() } -> std::convertible_to<bool>;
  *stream.next();
};

namespace detail {

template <class D>
using ItemOf = std::remove_cvref_t<decltype(*std::declval<D&>().next())>;

/// A stream whose items still have a stage before them that may run anywhere.
template <class D>
concept StagedStream = Stream<D> && requires(const D& stream, ItemOf<D> item, Random& random) {
  stream.finish(std::move(item), random);
};
template <class D, class I>
auto finish_item(const D& stream, I item, Random& random) {
  if constexpr (StagedStream<D>)
    return stream.finish(std::move(item), random);
  else
    return item;
}
template <class D>
using StreamSampleOf = std::remove_cvref_t<decltype(finish_item(std::declval<const D&>(), std::declval<ItemOf<D>>(),
                                                                std::declval<Random&>()))>;

}  // namespace detail

/// Batches of a stream. A handle, like DataLoader, and deterministic like it for any number of threads; it does not
/// know how many batches come. Of several ranks each takes every world_size-th item, and all have as many batches: a
/// rank that the last step has no item for repeats one of them.
///
///     auto loader = levin::make_loader(levin::stages::map(Lines("log.txt"), tokenize), {.batch_size = 32});
template <Stream D>
class StreamLoader {
 public:
  using B = detail::StreamSampleOf<D>;
  using Transform = std::function<void(B&, Random&)>;

  StreamLoader() = default;
  StreamLoader(std::shared_ptr<D> stream, LoaderOptions options, int rank = 0, int world_size = 1, bool repeat = true)
      : impl_(std::make_shared<Impl>()) {
    detail::check_loader_options(options);
    LEVIN_CHECK(
        !options.shuffle && options.sampler.empty(),
        "[data] a stream cannot be shuffled as a whole; stages::shuffle(stream, buffer) does it within a buffer");
    impl_->stream = std::move(stream);
    impl_->options = std::move(options);
    impl_->rank = rank;
    impl_->world_size = world_size;
    impl_->repeat = repeat;
  }

 private:
  struct Impl;

 public:
  using iterator = detail::BatchIterator<B, Impl>;
  iterator begin() const {
    if (impl_->inside) {
      ++impl_->epoch;
      impl_->batch = 0;
    }
    impl_->inside = true;
    impl_->start();
    impl_->advance();
    return iterator(impl_.get());
  }
  std::default_sentinel_t end() const { return {}; }

  int64_t batch_size() const { return impl_->options.batch_size; }
  int64_t epoch() const { return impl_->epoch; }
  int64_t batch() const { return impl_->batch; }
  /// The next pass is all of this epoch.
  void set_epoch(int64_t epoch) const {
    impl_->offset = 0;
    seek(epoch, 0);
  }
  /// The next pass is this epoch, without its first `batch` batches.
  void seek(int64_t epoch, int64_t batch) const {
    impl_->epoch = epoch;
    impl_->batch = batch;
    impl_->inside = false;
  }
  bool shuffles() const { return false; }
  LoaderStats stats() const { return impl_->pipe ? impl_->pipe->stats() : LoaderStats{}; }

  /// The loaders share the stream: one of them can be iterated at a time.
  /// Without `repeat` (for evaluation) no item comes twice, and a rank may have a batch less.
  StreamLoader distributed(int rank, int world_size, bool repeat = true) const {
    return with(impl_->options, rank, world_size, repeat);
  }
  StreamLoader with_batch_size(int64_t batch_size) const {
    auto options = impl_->options;
    options.batch_size = batch_size;
    return with(options, impl_->rank, impl_->world_size, impl_->repeat);
  }
  StreamLoader transformed(Transform f) const {
    auto other = with(impl_->options, impl_->rank, impl_->world_size, impl_->repeat);
    other.impl_->delivery.transforms.push_back(std::move(f));
    return other;
  }
  StreamLoader placed(const LoaderPlacement& placement) const {
    auto other = with(impl_->options, impl_->rank, impl_->world_size, impl_->repeat);
    other.impl_->local_ranks = placement.local_ranks;
    other.seek(impl_->epoch, impl_->batch);
    other.impl_->offset = impl_->offset;
    other.impl_->offset_epoch = impl_->offset_epoch;
    if (!placement.device.is_cpu()) other.impl_->delivery.copy = std::make_shared<detail::DeviceCopy>(placement.device);
    return other;
  }

  StateDict state_dict() const {
    return {{"epoch", epoch()}, {"samples", impl_->begins_at() + batch() * batch_size() * impl_->world_size}};
  }
  void load_state_dict(const StateDict& state) const {
    const int64_t samples = state.at("samples").to_int(), step = batch_size() * impl_->world_size;
    LEVIN_CHECK(samples >= 0, "[data] the state is ", samples, " samples into the stream");
    seek(state.at("epoch").to_int(), samples / step);
    impl_->offset = samples % step;
    impl_->offset_epoch = epoch();
  }

 private:
  struct Impl {
    std::shared_ptr<D> stream;
    LoaderOptions options;
    int rank = 0;
    int world_size = 1;
    int local_ranks = 1;
    bool repeat = true;
    int64_t epoch = 0;
    int64_t batch = 0;
    /// Items before the first batch of an epoch: a loaded state lay between two of these batches.
    int64_t offset = 0;
    int64_t offset_epoch = 0;
    bool inside = false;
    detail::Delivery<B> delivery;
    std::optional<B> current;
    std::unique_ptr<detail::BatchPipe<B>> pipe;

    int64_t begins_at() const { return epoch == offset_epoch ? offset : 0; }
    void start() {
      const bool to_device = delivery.copy != nullptr;
      detail::let_go(current, delivery);
      // A new pipe: threads of a pass that was left may still be reading the stream.
      pipe.reset();
      pipe = std::make_unique<detail::BatchPipe<B>>(
          detail::engine_options(options, !detail::StagedStream<D>, to_device, local_ranks),
          options.pin_memory.value_or(to_device), options.bad_samples == "skip", world_size == 1);
      stream->start(epoch);
      int64_t item = 0;
      if (const int64_t passed = begins_at() + batch * options.batch_size * world_size; passed > 0) {
        if constexpr (requires { stream->skip(passed); }) {
          stream->skip(passed);
          item = passed;
        } else {
          while (item < passed && stream->next()) ++item;
        }
      }
      pipe->start([this, item, number = batch, pass = epoch, first = begins_at(),
                   to = std::make_shared<const detail::Delivery<B>>(
                       delivery)]() mutable -> std::shared_ptr<detail::BatchOfWork<B>> {
        using Item = detail::ItemOf<D>;
        auto items = std::make_shared<std::vector<Item>>();
        std::vector<int64_t> numbers;
        // Every rank reads the items of all, so that all of them know which step is the last.
        const int64_t full = options.batch_size * world_size;
        std::optional<Item> spare;
        int64_t count = 0;
        for (; count < full; ++count, ++item) {
          auto next = stream->next();
          if (!next) break;
          if ((item - first) % world_size == rank) {
            items->push_back(std::move(*next));
            numbers.push_back(item);
          } else if (count == 0) {
            spare.emplace(std::move(*next));
          }
        }
        if (count == 0 || (options.drop_last && count < full)) return nullptr;
        if (items->empty()) {
          if (!repeat) return nullptr;
          items->push_back(std::move(*spare));
          numbers.push_back(item - count);
        }
        auto work = std::make_shared<detail::RowsWork<B>>(
            detail::BatchId{options.seed, pass, number * world_size + rank, number}, std::move(numbers),
            pipe->bad_samples, pipe->memory,
            [items, from = stream](int64_t row, int64_t, Random& random, SamplePlace&) {
              return detail::finish_item(*from, std::move((*items)[static_cast<size_t>(row)]), random);
            });
        ++number;
        work->delivery = to;
        return work;
      });
    }
    void advance() {
      detail::let_go(current, delivery);
      bool came = true;
      while (!current && (came = pipe->next(current))) ++batch;
      if (!came) {
        pipe->end();
        ++epoch;
        batch = 0;
        inside = false;
      }
    }
  };

  StreamLoader with(const LoaderOptions& options, int rank, int world_size, bool repeat) const {
    StreamLoader other(impl_->stream, options, rank, world_size, repeat);
    other.impl_->delivery = impl_->delivery;
    other.impl_->local_ranks = impl_->local_ranks;
    return other;
  }

  std::shared_ptr<Impl> impl_;
};

/// A loader over a stream, which it keeps.
template <Stream D>
requires(!Dataset<D>) StreamLoader<D> make_loader(D stream, LoaderOptions options = {}) {
  return StreamLoader<D>(std::make_shared<D>(std::move(stream)), std::move(options));
}

}  // namespace levin
