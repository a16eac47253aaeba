#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/data/batch_iterator.h"
#include "levin/data/combined_position.h"
#include "levin/data/loader.h"

namespace levin {

/// What a combined loader gives out: a batch of each loader, by name, in the order they were combined. One that has no
/// more batches has none here.
template <class B>
class CombinedBatch {
 public:
  using Item = std::pair<std::string, std::optional<B>>;

  CombinedBatch() = default;
  explicit CombinedBatch(std::vector<Item> items) : items_(std::move(items)) {}

  /// The batch of that loader; an Error when there is no such loader, or when it has no batch here.
  B& operator[](std::string_view name) { return const_cast<B&>(std::as_const(*this)[name]); }
  const B& operator[](std::string_view name) const {
    for (const auto& [key, batch] : items_)
      if (key == name) {
        if (!batch) detail::fail_no_batch(name);
        return *batch;
      }
    detail::fail_no_loader(name, names());
  }
  /// Whether the loader of that name has a batch here.
  bool contains(std::string_view name) const {
    return std::any_of(items_.begin(), items_.end(),
                       [&](const Item& item) { return item.first == name && item.second; });
  }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& item : items_) result.push_back(item.first);
    return result;
  }
  /// Number of loaders, with and without a batch.
  size_t size() const { return items_.size(); }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  template <class F>
  void each_tensor(F&& f) {
    for (auto& item : items_) levin::each_tensor(item.second, f);
  }
  template <class F>
  void each_tensor(F&& f) const {
    for (const auto& item : items_) levin::each_tensor(item.second, f);
  }

 private:
  std::vector<Item> items_;
};

/// Several loaders as one, whose batches are CombinedBatch. A handle: copies share, and the loaders that were combined
/// are moved along with it. Everything follows from the epoch and the batches given out, so that a run resumes anywhere
/// with the very same rest. A loader that is cycled has another order in every cycle of every epoch.
template <class B>
class CombinedLoader {
 public:
  using Members = std::vector<std::pair<std::string, DataLoader<B>>>;

  CombinedLoader() = default;
  explicit CombinedLoader(Members members, CombineOptions options = {})
      : impl_(std::make_shared<Impl>(std::move(members), std::move(options))) {}

 private:
  struct Impl;

 public:
  using iterator = detail::BatchIterator<CombinedBatch<B>, Impl>;
  /// Starts a pass and fetches its first batches.
  iterator begin() const {
    impl_->position->begin();
    impl_->place_members();
    impl_->advance();
    return iterator(impl_.get());
  }
  std::default_sentinel_t end() const { return {}; }

  /// Batches of a pass, on this rank.
  int64_t size() const { return impl_->position->size(); }
  std::vector<std::string> names() const { return impl_->names; }
  const std::string& mode() const { return impl_->options.mode; }
  /// Whether any of the loaders shuffles.
  bool shuffles() const {
    return std::any_of(impl_->loaders.begin(), impl_->loaders.end(),
                       [](const auto& loader) { return loader.shuffles(); });
  }

  /// The epoch of the pass under way, or of the next one.
  int64_t epoch() const { return impl_->position->epoch(); }
  /// The next pass is this epoch, of all loaders.
  void set_epoch(int64_t epoch) const {
    impl_->position->set_epoch(epoch);
    impl_->place_members();
  }
  /// The next pass is this epoch, without its first `batch` batches.
  void seek(int64_t epoch, int64_t batch) const {
    impl_->position->seek(epoch, batch);
    impl_->place_members();
  }
  /// Batches given out in the pass under way.
  int64_t batch() const { return impl_->position->batch(); }
  /// What all ranks must have alike; none where these loaders are of one rank.
  std::optional<detail::SharedOrder> shared_order() const {
    detail::SharedOrder all;
    for (const auto& loader : impl_->loaders) {
      const auto one = loader.shared_order();
      if (!one) return {};
      all.dataset_size += one->dataset_size;
      all.batch_size += one->batch_size;
      for (const uint64_t part : {one->seed, one->rest, static_cast<uint64_t>(one->dataset_size)})
        all.rest = (all.rest ^ part) * 0x9e3779b97f4a7c15;
    }
    return all;
  }

  /// The same with the part of one rank of each loader.
  CombinedLoader distributed(int rank, int world_size, bool repeat = true) const {
    return each([&](const DataLoader<B>& loader) { return loader.distributed(rank, world_size, repeat); });
  }
  /// This loader, whose batches arrive on a device; the loaders underneath stand where they stand.
  CombinedLoader placed(const LoaderPlacement& placement) const {
    auto other = each([&](const DataLoader<B>& loader) { return loader.placed(placement); });
    other.impl_->position = impl_->position;
    return other;
  }
  /// The same with every loader in the order of its dataset.
  CombinedLoader sequential() const {
    return each([](const DataLoader<B>& loader) { return loader.sequential(); });
  }

  /// The states of the loaders: on another number of ranks each resumes at its own sample.
  StateDict state_dict() const {
    StateDict members;
    for (size_t i = 0; i < impl_->loaders.size(); ++i) members[impl_->names[i]] = impl_->loaders[i].state_dict();
    return {{"mode", impl_->options.mode}, {"epoch", epoch()}, {"members", std::move(members)}};
  }
  void load_state_dict(const StateDict& state) const {
    const StateDict& members = detail::checked_members(state, impl_->options.mode, impl_->names);
    std::vector<detail::CombinedPosition::Standing> standing;
    for (size_t i = 0; i < impl_->loaders.size(); ++i) {
      const auto& loader = impl_->loaders[i];
      loader.load_state_dict(members.at(impl_->names[i]).to_dict());
      standing.push_back({{loader.epoch(), loader.batch()}, loader.size()});
    }
    impl_->position->resume(state.at("epoch").to_int(), std::move(standing));
    impl_->place_members();
  }

 private:
  struct Impl {
    CombineOptions options;
    std::vector<std::string> names;
    std::vector<DataLoader<B>> loaders;
    std::vector<std::optional<typename DataLoader<B>::iterator>> passes;
    std::shared_ptr<detail::CombinedPosition> position;
    std::optional<CombinedBatch<B>> current;

    Impl(Members members, CombineOptions asked)
        : options(std::move(asked)),
          names(firsts(members)),
          loaders(seconds(std::move(members))),
          passes(loaders.size()),
          position(std::make_shared<detail::CombinedPosition>(options, names, sizes(loaders))) {}

    static std::vector<std::string> firsts(const Members& members) {
      std::vector<std::string> result;
      for (const auto& member : members) result.push_back(member.first);
      return result;
    }
    static std::vector<DataLoader<B>> seconds(Members members) {
      std::vector<DataLoader<B>> result;
      for (auto& member : members) result.push_back(member.second.fixed_size());
      return result;
    }
    static std::vector<int64_t> sizes(const std::vector<DataLoader<B>>& loaders) {
      std::vector<int64_t> result;
      for (const auto& loader : loaders) result.push_back(loader.size());
      return result;
    }

    // Every loader where the position says it stands, also one whose turn has not come: its state is then right.
    void place_members() {
      for (size_t i = 0; i < loaders.size(); ++i) {
        const auto place = position->standing(i);
        passes[i].reset();
        if (position->is_whole()) loaders[i].set_epoch(place.epoch);
        loaders[i].seek(place.epoch, place.batch);
      }
    }
    void advance() {
      let_go();
      if (!position->next()) return place_members();
      try {
        current.emplace(fetch());
      } catch (...) {
        // A batch that cannot be made counts as not given out, for all loaders.
        position->back();
        place_members();
        throw;
      }
    }
    // The batches were moved out of their loaders, which have to hear that the program is through with them.
    void let_go() {
      size_t i = 0;
      if (current)
        for (auto& item : *current) loaders[i++].let_go(item.second);
      current.reset();
    }
    std::vector<typename CombinedBatch<B>::Item> fetch() {
      std::vector<typename CombinedBatch<B>::Item> items;
      for (size_t i = 0; i < loaders.size(); ++i) {
        items.emplace_back(names[i], std::nullopt);
        const auto place = position->giving(i);
        if (!place) continue;
        if (!passes[i] || place->batch == 0) {
          loaders[i].seek(place->epoch, place->batch);
          passes[i] = loaders[i].begin();
        } else {
          ++*passes[i];
        }
        items.back().second = std::move(**passes[i]);
      }
      return items;
    }
  };

  template <class F>
  CombinedLoader each(F&& f) const {
    Members members;
    for (size_t i = 0; i < impl_->loaders.size(); ++i) members.emplace_back(impl_->names[i], f(impl_->loaders[i]));
    return CombinedLoader(std::move(members), impl_->options);
  }

  std::shared_ptr<Impl> impl_;
};

/// Several loaders as one. A batch type other than Batch is named: `combine<Graph>({{"a", a}, {"b", b}})`.
///
///     auto both = levin::combine({{"a", loader_a}, {"b", loader_b}}, {.mode = "min_size"});
///     for (auto& batch : both) train(batch["a"]["image"], batch["b"]["image"]);
template <class B = Batch>
CombinedLoader<B> combine(std::vector<std::pair<std::string, DataLoader<B>>> members, CombineOptions options = {}) {
  return CombinedLoader<B>(std::move(members), std::move(options));
}

}  // namespace levin
