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
#include "levin/data/batch_iterator.h"
#include "levin/data/batch_pipe.h"
#include "levin/data/dataset.h"
#include "levin/data/decode_gpu/gpu_images_work.h"
#include "levin/data/loader_options.h"
#include "levin/data/sampler.h"

namespace levin {

namespace detail {

/// What says in which order samples come, over all ranks.
struct SharedOrder {
  int64_t dataset_size = 0;
  int64_t batch_size = 0;
  /// 0 where it has no effect.
  uint64_t seed = 0;
  /// Of what else decides: the sampler, the kind of loader.
  uint64_t rest = 0;
};

/// Where a loader stands: one number, of the samples given out in the epoch over all ranks. Any ranks with batches of
/// any size resume from it; their batches begin there. The order of the samples is worked out again, never stored.
class LoaderPosition {
 public:
  using Order = std::shared_ptr<const std::vector<int64_t>>;

  LoaderPosition(int64_t dataset_size, const LoaderOptions& options, int rank, int world_size, bool repeat = true);

  /// Starts the next pass: resumes where a loaded state left off, or with the next epoch.
  void begin();
  /// Counts a batch as given out; false, and in the next epoch, at the end of the pass.
  bool next();
  /// The order of the epoch, for this rank.
  Order order() const;

  int64_t batches() const;
  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }
  const SamplerOptions& sampler() const { return sampler_; }
  /// All of an epoch.
  void set_epoch(int64_t epoch);
  /// A batch of an epoch. Those of the epoch under way stay as they are, also where a loaded state lay between two.
  void seek(int64_t epoch, int64_t batch);
  /// What the ranks of a run must have alike, so that they share each epoch: none where this loader has all of it.
  std::optional<SharedOrder> shared_order() const;
  /// Changes with every seek: a pass under way is then another one.
  int64_t jumps() const { return jumps_; }
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  int64_t dataset_size_;
  LoaderOptions options_;
  SamplerOptions sampler_;
  int64_t epoch_ = 0;
  int64_t batch_ = 0;  // given out in this epoch
  int64_t jumps_ = 0;
  bool inside_ = false;
};

/// Makes the batches of a dataset.
template <class B>
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  virtual int64_t size() const = 0;
  /// Batches come whole, from memory.
  virtual bool whole() const = 0;
  /// Why the images cannot be decoded on the device with the rest of their batch; empty when they can.
  virtual std::string why_not_gpu() const {
    return "the dataset decodes its images itself; an ImageDataset, or a subset of one, leaves that to the loader";
  }
  virtual std::shared_ptr<BatchOfWork<B>> start(BatchId id, std::vector<int64_t> indices,
                                                const BatchPipe<B>& pipe) const = 0;
};

template <class D>
concept PlacingDataset = requires(const D& dataset, Random& random, SamplePlace& place) {
  dataset.get(int64_t{}, random, place);
};
template <class D>
concept BatchDataset = requires(const D& dataset, std::span<const int64_t> indices) {
  dataset.get_batch(indices);
};

/// A sample, by whichever form of get() the dataset has.
template <class D>
auto get_sample(const D& dataset, int64_t index, Random& random, SamplePlace& place) {
  if constexpr (PlacingDataset<D>)
    return dataset.get(index, random, place);
  else if constexpr (requires { dataset.get(index, random); })
    return dataset.get(index, random);
  else
    return dataset.get(index);
}
template <class D>
using SampleOf = std::remove_cvref_t<decltype(get_sample(std::declval<const D&>(), 0, std::declval<Random&>(),
                                                         std::declval<SamplePlace&>()))>;

/// A dataset that can leave the decoding of images to the loader.
template <class D>
concept EncodedDataset = requires(const D& dataset, Random& random, const GpuJpegDecoder* decoder) {
  { dataset.get_encoded(int64_t{}, random, decoder) } -> std::convertible_to<EncodedImage>;
  { dataset.why_not_gpu() } -> std::convertible_to<std::string>;
};

template <class D>
class RowsMaker final : public BatchMaker<SampleOf<D>> {
 public:
  using S = SampleOf<D>;
  explicit RowsMaker(D dataset) : dataset_(std::make_shared<const D>(std::move(dataset))) {}
  int64_t size() const override { return static_cast<int64_t>(dataset_->size()); }
  bool whole() const override { return false; }
  std::string why_not_gpu() const override {
    if constexpr (EncodedDataset<D>)
      return dataset_->why_not_gpu();
    else
      return BatchMaker<S>::why_not_gpu();
  }
  std::shared_ptr<BatchOfWork<S>> start(BatchId id, std::vector<int64_t> indices,
                                        const BatchPipe<S>& pipe) const override {
    if constexpr (EncodedDataset<D>)
      if (pipe.decoder)
        return std::make_shared<GpuImagesWork>(
            id, std::move(indices), pipe.bad_samples, pipe.memory, pipe.decoder,
            [dataset = dataset_](int64_t index, Random& random, const GpuJpegDecoder* decoder) {
              return dataset->get_encoded(index, random, decoder);
            },
            pipe.decode_on_cpu);
    return std::make_shared<RowsWork<S>>(
        id, std::move(indices), pipe.bad_samples, pipe.memory,
        [dataset = dataset_](int64_t, int64_t index, Random& random, SamplePlace& place) {
          return get_sample(*dataset, index, random, place);
        });
  }

 private:
  std::shared_ptr<const D> dataset_;
};

template <class D, class B>
class CollateMaker final : public BatchMaker<B> {
 public:
  using S = SampleOf<D>;
  using Collate = std::function<B(std::vector<S>)>;
  CollateMaker(D dataset, Collate collate)
      : dataset_(std::make_shared<const D>(std::move(dataset))), collate_(std::move(collate)) {}
  int64_t size() const override { return static_cast<int64_t>(dataset_->size()); }
  bool whole() const override { return false; }
  std::shared_ptr<BatchOfWork<B>> start(BatchId id, std::vector<int64_t> indices,
                                        const BatchPipe<B>& pipe) const override {
    return std::make_shared<CollateWork<S, B>>(
        id, std::move(indices), pipe.bad_samples,
        [dataset = dataset_](int64_t index, Random& random, SamplePlace& place) {
          return get_sample(*dataset, index, random, place);
        },
        collate_);
  }

 private:
  std::shared_ptr<const D> dataset_;
  Collate collate_;
};

template <class B>
class WholeMaker final : public BatchMaker<B> {
 public:
  using Fetch = std::function<B(std::span<const int64_t>)>;
  WholeMaker(int64_t size, Fetch fetch) : size_(size), fetch_(std::move(fetch)) {}
  int64_t size() const override { return size_; }
  bool whole() const override { return true; }
  std::shared_ptr<BatchOfWork<B>> start(BatchId id, std::vector<int64_t> indices,
                                        const BatchPipe<B>& pipe) const override {
    return std::make_shared<WholeWork<B>>(id, std::move(indices), pipe.bad_samples, fetch_);
  }

 private:
  int64_t size_;
  Fetch fetch_;
};

}  // namespace detail

/// Where batches are used.
struct LoaderPlacement {
  /// Batches arrive there, copied ahead of time on a stream of their own.
  c10::Device device = c10::Device(c10::kCPU);
  /// How many processes share the cores of this machine.
  int local_ranks = 1;
  /// The loader gives as many batches as its size() says (see DataLoader::fixed_size).
  bool fixed_size = false;
};

/// Batches of a dataset, pass by pass. A handle: copies share. Every pass is the next epoch, with its own order; the
/// state says which batch comes next, so that a run can stop anywhere and resume with the very same rest. Threads make
/// batches ahead of time; what they make does not depend on how many they are.
///
///     auto loader = levin::make_loader(dataset, {.batch_size = 64, .shuffle = true});
///     for (auto& batch : loader) train(batch["image"], batch["label"]);
template <class B>
class DataLoader {
 public:
  using Fetch = std::function<B(std::span<const int64_t>)>;
  using Transform = std::function<void(B&, Random&)>;

  DataLoader() = default;
  /// Of a function that makes the batch of these samples.
  DataLoader(int64_t dataset_size, Fetch fetch, LoaderOptions options = {}, int rank = 0, int world_size = 1,
             bool repeat = true)
      : DataLoader(std::make_shared<detail::WholeMaker<B>>(dataset_size, std::move(fetch)), std::move(options), rank,
                   world_size, repeat) {}
  DataLoader(std::shared_ptr<const detail::BatchMaker<B>> maker, LoaderOptions options, int rank = 0,
             int world_size = 1, bool repeat = true)
      : impl_(std::make_shared<Impl>()) {
    impl_->position = std::make_shared<detail::LoaderPosition>(maker->size(), options, rank, world_size, repeat);
    impl_->maker = std::move(maker);
    impl_->options = std::move(options);
  }

 private:
  struct Impl;

 public:
  using iterator = detail::BatchIterator<B, Impl>;
  /// Starts a pass and fetches its first batch.
  iterator begin() const {
    impl_->position->begin();
    impl_->start();
    impl_->advance();
    return iterator(impl_.get());
  }
  std::default_sentinel_t end() const { return {}; }

  /// Batches of a pass, on this rank; the most, when batches of bad samples alone are left out.
  int64_t size() const { return impl_->position->batches(); }
  int64_t batch_size() const { return impl_->options.batch_size; }
  /// Samples of the dataset, over all ranks.
  int64_t dataset_size() const { return impl_->maker->size(); }
  /// Whether each epoch has its own order.
  bool shuffles() const {
    const auto& options = impl_->options;
    return options.sampler.empty() ? options.shuffle : options.sampler.is_random();
  }
  /// How the loader has kept up so far.
  LoaderStats stats() const { return impl_->pipe ? impl_->pipe->stats() : LoaderStats{}; }

  /// The epoch of the pass under way, or of the next one.
  int64_t epoch() const { return impl_->position->epoch(); }
  /// The next pass is this epoch.
  void set_epoch(int64_t epoch) const { impl_->position->set_epoch(epoch); }
  /// Batches given out in the pass under way.
  int64_t batch() const { return impl_->position->batch(); }
  /// The next pass is this epoch, without its first `batch` batches.
  void seek(int64_t epoch, int64_t batch) const { impl_->position->seek(epoch, batch); }
  /// What all ranks must have alike; none where this loader is of one rank.
  std::optional<detail::SharedOrder> shared_order() const { return impl_->position->shared_order(); }

  /// A loader of the same data that gives out the part of one rank. Where the samples do not divide by the ranks, some
  /// come twice so that every rank has as many; without `repeat` (for evaluation) the first ranks have one more
  /// instead, and a rank may have none.
  DataLoader distributed(int rank, int world_size, bool repeat = true) const {
    return with(impl_->options, rank, world_size, repeat);
  }
  /// A loader of the same data, in the order of the dataset.
  DataLoader sequential() const {
    auto options = impl_->options;
    options.shuffle = false;
    options.sampler = {};
    return with(options);
  }
  /// A loader of the same data with another size of batches.
  DataLoader with_batch_size(int64_t batch_size) const {
    auto options = impl_->options;
    options.batch_size = batch_size;
    return with(options);
  }
  /// A loader of the same data whose batches go through `f` last of all: on the device, when they go to one, and ahead
  /// of their use. The random numbers belong to the batch.
  DataLoader transformed(Transform f) const {
    auto other = with(impl_->options);
    other.impl_->delivery.transforms.push_back(std::move(f));
    return other;
  }
  /// This loader, whose batches arrive on a device: it stands where this one stands, and advances together with it.
  DataLoader placed(const LoaderPlacement& placement) const {
    auto other = with(impl_->options);
    other.impl_->position = impl_->position;
    other.impl_->local_ranks = placement.local_ranks;
    other.impl_->fixed_size = impl_->fixed_size || placement.fixed_size;
    if (!placement.device.is_cpu()) other.impl_->delivery.copy = std::make_shared<detail::DeviceCopy>(placement.device);
    return other;
  }

  /// This loader with as many batches as size() says, also when bad samples are skipped: a batch of which no sample is
  /// good takes the next good one of the epoch. Without that such a batch is left out. Where ranks work together, or
  /// the end of an epoch is counted out, loaders are made so.
  DataLoader fixed_size() const {
    if (impl_->fixed_size || impl_->options.bad_samples != "skip") return *this;
    auto other = with(impl_->options);
    other.impl_->position = impl_->position;
    other.impl_->fixed_size = true;
    return other;
  }

  /// The program is through with a batch that it moved out of a pass: on a device its memory is used again after the
  /// work that it was given so far. Leaves no batch.
  void let_go(std::optional<B>& batch) const { detail::let_go(batch, impl_->delivery); }

  StateDict state_dict() const { return impl_->position->state_dict(); }
  void load_state_dict(const StateDict& state) const { impl_->position->load_state_dict(state); }

 private:
  struct Impl {
    std::shared_ptr<const detail::BatchMaker<B>> maker;
    LoaderOptions options;
    std::shared_ptr<detail::LoaderPosition> position;
    detail::Delivery<B> delivery;
    int local_ranks = 1;
    bool fixed_size = false;
    int64_t jumps = 0;
    std::optional<B> current;
    std::unique_ptr<detail::BatchPipe<B>> pipe;

    void start() {
      const bool to_device = delivery.copy != nullptr;
      if (!pipe) {
        pipe = std::make_unique<detail::BatchPipe<B>>(
            detail::engine_options(options, maker->whole(), to_device, local_ranks),
            options.pin_memory.value_or(to_device), options.bad_samples == "skip",
            !fixed_size && position->sampler().world_size == 1);
        pipe->decoder = detail::choose_jpeg_decoder(
            options.decode, to_device ? delivery.copy->device() : c10::Device(c10::kCPU), maker->why_not_gpu());
        pipe->decode_on_cpu = options.decode_on_cpu;
      }
      detail::let_go(current, delivery);
      jumps = position->jumps();
      pipe->start([order = position->order(), batch = position->batch(), batches = position->batches(),
                   size = options.batch_size, sampler = position->sampler(), epoch = position->epoch(), maker = maker,
                   pipe = pipe.get(), to = std::make_shared<const detail::Delivery<B>>(delivery)]() mutable
                  -> std::shared_ptr<detail::BatchOfWork<B>> {
        if (batch >= batches) return nullptr;
        const auto first = order->begin() + batch * size;
        const auto last = std::min(first + size, order->end());
        auto work = maker->start(
            {.seed = sampler.seed, .epoch = epoch, .batch = batch * sampler.world_size + sampler.rank, .shown = batch},
            std::vector<int64_t>(first, last), *pipe);
        work->delivery = to;
        // What follows in the order, around the end and up to this batch again.
        const int64_t from = last - order->begin(), others = static_cast<int64_t>(order->size()) - (last - first);
        work->spare = [order, from, others](int64_t attempt) -> std::optional<int64_t> {
          if (attempt >= others) return std::nullopt;
          return (*order)[static_cast<size_t>(from + attempt) % order->size()];
        };
        ++batch;
        return work;
      });
    }
    void advance() {
      if (jumps != position->jumps()) start();  // the program went elsewhere in the middle of a pass
      detail::let_go(current, delivery);
      // The batch first: one that cannot be made counts as not given out, and whoever continues all the same gets it
      // again.
      jumps = -1;
      do {
        if (position->batch() < position->batches())
          pipe->next(current);
        else
          pipe->end();
      } while (position->next() && !current);  // a batch whose samples were all skipped is passed over
      jumps = position->jumps();
    }
  };

  DataLoader with(const LoaderOptions& options) const {
    const auto& sampler = impl_->position->sampler();
    return with(options, sampler.rank, sampler.world_size, sampler.repeat);
  }
  DataLoader with(const LoaderOptions& options, int rank, int world_size, bool repeat) const {
    DataLoader other(impl_->maker, options, rank, world_size, repeat);
    other.impl_->delivery = impl_->delivery;
    other.impl_->local_ranks = impl_->local_ranks;
    other.impl_->fixed_size = impl_->fixed_size;
    return other;
  }

  std::shared_ptr<Impl> impl_;
};

/// A loader over a dataset, which it keeps (datasets are small handles to their data).
template <Dataset D>
auto make_loader(D dataset, LoaderOptions options = {}) {
  if constexpr (detail::BatchDataset<D>) {
    auto shared = std::make_shared<const D>(std::move(dataset));
    using B = std::remove_cvref_t<decltype(shared->get_batch(std::span<const int64_t>()))>;
    return DataLoader<B>(
        static_cast<int64_t>(shared->size()),
        [shared](std::span<const int64_t> indices) { return shared->get_batch(indices); }, std::move(options));
  } else {
    return DataLoader<detail::SampleOf<D>>(std::make_shared<detail::RowsMaker<D>>(std::move(dataset)),
                                           std::move(options));
  }
}

/// The same with a function of the program's that makes a batch of samples (for samples of different sizes, say):
/// `collate(std::vector<Sample>)`. It is called by several threads at once.
template <Dataset D, class Collate>
requires std::invocable<Collate&, std::vector<detail::SampleOf<D>>>
auto make_loader(D dataset, LoaderOptions options, Collate collate) {
  using B = std::remove_cvref_t<std::invoke_result_t<Collate&, std::vector<detail::SampleOf<D>>>>;
  return DataLoader<B>(std::make_shared<detail::CollateMaker<D, B>>(std::move(dataset), std::move(collate)),
                       std::move(options));
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
