#pragma once

#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <c10/core/Device.h>

#include "levin/core/each_tensor.h"

namespace levin {

namespace detail {

struct FabricCore;

/// Tells the ranks of a run how far this one is in a loader, for lines about ranks that wait for it. Empty: there are
/// no others.
class LoaderNote {
 public:
  LoaderNote() = default;
  LoaderNote(std::weak_ptr<FabricCore> core, int number) : core_(std::move(core)), number_(number) {}
  void at(int64_t batch, std::optional<int64_t> batches) const {
    if (number_ >= 0) tell(batch, batches, false);
  }
  void ended(int64_t batches) const {
    if (number_ >= 0) tell(batches, {}, true);
  }

 private:
  void tell(int64_t batch, std::optional<int64_t> batches, bool ended) const;
  std::weak_ptr<FabricCore> core_;
  int number_ = -1;
};

/// The thing with begin() and end() behind a loader, a pointer to one, torch's unique_ptr to one, or a pointer to that.
template <class L>
auto& loader_range(L& loader) {
  if constexpr (requires { loader.begin(), loader.end(); })
    return loader;
  else
    return loader_range(*loader);
}
template <class L>
using Pointee = std::remove_cvref_t<decltype(loader_range(std::declval<L&>()))>;

/// A torch::data loader.
template <class L>
    struct IsTorchLoader : std::bool_constant < requires(L& loader) {
  typename L::BatchRequestType;
  loader.options().enforce_ordering;
} > {};

/// A sampler that gives each rank its own samples, as DistributedRandomSampler does.
template <class S>
concept DistributedSampler = requires(S& sampler) {
  sampler.set_epoch(size_t{});
};

/// A torch dataset that decides itself what comes next, such as a ChunkDataset, as it is or within others.
template <class D>
struct SplitsChunks : std::false_type {};
template <class D>
requires DistributedSampler<typename D::ChunkSamplerType>
struct SplitsChunks<D> : std::true_type {
};
// A ChunkDataset has template arguments with defaults, and may look like either of these.
template <class D>
concept HasChunkSampler = requires {
  typename D::ChunkSamplerType;
};
template <template <class> class Shared, class D>
requires(!HasChunkSampler<Shared<D>>) struct SplitsChunks<Shared<D>> : SplitsChunks<D> {
};
template <template <class, class> class Map, class D, class T>
requires(!HasChunkSampler<Map<D, T>>) struct SplitsChunks<Map<D, T>> : SplitsChunks<D> {
};

/// A torch::data loader whose sampler, or the chunk sampler of whose dataset, gives each rank its own samples.
template <class L>
struct HasDistributedSampler : std::false_type {};
template <template <class, class> class Loader, class D, class S>
requires DistributedSampler<S>
struct HasDistributedSampler<Loader<D, S>> : std::true_type {
};
template <template <class> class Loader, class D>
requires(D::is_stateful) struct HasDistributedSampler<Loader<D>> : SplitsChunks<D> {
};

/// Whether a torch::data loader goes over a dataset that decides itself what comes next.
template <class L>
struct IsStatefulLoader : std::false_type {};
template <template <class> class Loader, class D>
requires(D::is_stateful) struct IsStatefulLoader<Loader<D>> : std::true_type {
};

/// What setup_dataloaders takes as it is.
enum class KeptLoader { range, torch, stateful_torch };
template <class L>
constexpr KeptLoader kept_loader() {
  if (IsStatefulLoader<Pointee<L>>::value) return KeptLoader::stateful_torch;
  return IsTorchLoader<Pointee<L>>::value ? KeptLoader::torch : KeptLoader::range;
}

template <class L>
constexpr bool kSplitsOverRanks = HasDistributedSampler<Pointee<L>>::value;

}  // namespace detail

/// A loader whose batches arrive on this rank's device. A handle: copies share the loader underneath.
/// Every pass over it is the next epoch of a Levin loader.
template <class L>
class FabricLoader {
 public:
  using Range = std::remove_reference_t<decltype(detail::loader_range(std::declval<L&>()))>;
  using Inner = decltype(std::declval<Range&>().begin());
  using Sentinel = decltype(std::declval<Range&>().end());
  using Value = std::remove_cvref_t<decltype(*std::declval<Inner&>())>;
  static_assert(TensorNest<Value>,
                "levin: cannot see the tensors in this loader's batches; make the batch a plain struct or give it "
                "each_tensor(F&&)");

  /// Batches are moved to the device; the CPU means that they stay where they are.
  FabricLoader(std::shared_ptr<L> loader, c10::Device device, detail::LoaderNote note = {})
      : loader_(std::move(loader)), device_(device), note_(std::move(note)) {}

  class iterator {
   public:
    using value_type = Value;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    iterator(Inner it, Sentinel end, c10::Device device, detail::LoaderNote note = {},
             std::optional<int64_t> batches = {})
        : it_(std::move(it)), end_(std::move(end)), device_(device), note_(std::move(note)), batches_(batches) {
      fetch();
    }
    Value& operator*() const {
      if constexpr (kByReference)
        if (device_.is_cpu()) return *it_;
      return *batch_;
    }
    iterator& operator++() {
      ++it_;
      ++count_;
      fetch();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return done_; }

   private:
    static constexpr bool kByReference = std::is_same_v<decltype(*std::declval<Inner&>()), Value&>;

    void fetch() {
      done_ = it_ == end_;
      if (done_) return note_.ended(count_);
      note_.at(count_, batches_);
      if constexpr (kByReference)
        if (device_.is_cpu()) return;
      batch_.emplace(*it_);
      if (device_.is_cpu()) return;
      each_tensor(*batch_, [&](Tensor& t) {
        if (t.defined()) t = t.to(device_, /*non_blocking=*/true);
      });
    }

    mutable Inner it_;
    Sentinel end_;
    c10::Device device_;
    mutable std::optional<Value> batch_;
    bool done_ = false;
    detail::LoaderNote note_;
    std::optional<int64_t> batches_;
    int64_t count_ = 0;
  };

  iterator begin() {
    std::optional<int64_t> batches;
    if constexpr (requires(Range & r) { static_cast<int64_t>(r.size()); })
      batches = static_cast<int64_t>(range().size());
    return iterator(range().begin(), range().end(), device_, note_, batches);
  }
  std::default_sentinel_t end() const { return {}; }
  /// Number of batches of one pass on this rank, where the loader knows it.
  auto size() const requires requires(Range& r) { r.size(); }
  { return range().size(); }
  /// The loader underneath.
  Range& loader() const { return range(); }

  auto state_dict() const requires requires(Range& r) { r.state_dict(); }
  { return range().state_dict(); }
  template <class S>
  void load_state_dict(const S& state) const requires requires(Range& r) {
    r.load_state_dict(state);
  }
  { range().load_state_dict(state); }

 private:
  Range& range() const { return detail::loader_range(*loader_); }

  std::shared_ptr<L> loader_;
  c10::Device device_;
  detail::LoaderNote note_;
};

}  // namespace levin
