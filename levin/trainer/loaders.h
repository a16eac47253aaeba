#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ranges>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/core/state_dict.h"
#include "levin/data/loader.h"
#include "levin/trainer/step.h"

namespace levin {

namespace detail {

/// A loader of which only the trainer's needs are left: batch after batch, and where it stands.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Starts the pass of an epoch; after load_state_dict or skip_to it resumes there instead.
  virtual void start(int64_t epoch) = 0;
  /// For a source without a state: goes to a batch of an epoch by fetching those before it.
  void skip_to(int64_t epoch, int64_t batch) {
    start(epoch);
    while (batch-- > 0 && !next().empty()) {
    }
    resumed_ = true;
  }
  /// The next batch, valid until the next call; empty at the end of the pass.
  virtual AnyBatch next() = 0;
  /// Batches of a pass; nothing when that is not known.
  virtual std::optional<int64_t> size() const = 0;
  /// Whether the batch that next() gave is the last; for sources that do not know their size.
  virtual bool is_last() = 0;
  /// Drops the batch and the iterator of a pass.
  virtual void finish() = 0;

  /// Makes state_dict say that this batch of this epoch comes next; for sources with a state.
  virtual void seek(int64_t /*epoch*/, int64_t /*batch*/) {}
  /// Whether state_dict knows the position.
  virtual bool has_state() const { return false; }
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}

  /// The same data, changed; null when this source cannot.
  virtual std::shared_ptr<BatchSource> distributed(int /*rank*/, int /*world*/, bool /*repeat*/) const {
    return nullptr;
  }
  virtual std::shared_ptr<BatchSource> sequential() const { return nullptr; }
  virtual std::shared_ptr<BatchSource> placed(const LoaderPlacement& /*placement*/) const { return nullptr; }
  virtual bool shuffles() const { return false; }
  virtual std::shared_ptr<BatchSource> with_batch_size(int64_t /*batch_size*/) const { return nullptr; }
  virtual std::optional<int64_t> batch_size() const { return {}; }
  /// What says in which order samples come on all ranks; none where each has its own.
  virtual std::optional<SharedOrder> shared_order() const { return {}; }
  /// Batches of the pass that were given out, as state_dict has it; nothing when this source does not say.
  virtual std::optional<int64_t> batch() const { return {}; }

 protected:
  bool resumed_ = false;
};

template <class L>
using BatchOf = std::remove_cvref_t<decltype(*std::declval<L&>().begin())>;

/// A loader of batches of type B: anything with begin() and end().
template <class L, class B>
concept LoaderOf = requires(L& loader) {
  loader.begin();
  loader.end();
}
&&std::same_as<BatchOf<L>, B>;

template <class L, class B>
class SourceOf final : public BatchSource {
 public:
  explicit SourceOf(L loader) : loader_(std::move(loader)) {}

  void start(int64_t epoch) override {
    if (std::exchange(resumed_, false)) return;
    iterator_.reset();
    if constexpr (requires { loader_.set_epoch(epoch); })
      if (!loaded_) loader_.set_epoch(epoch);
    loaded_ = false;
    advanced_ = false;
  }
  AnyBatch next() override {
    if (!iterator_)
      iterator_.emplace(loader_.begin());
    else if (!std::exchange(advanced_, false))
      ++*iterator_;
    if (*iterator_ == loader_.end()) return {};
    if constexpr (kOwnsBatches) {
      B& batch = **iterator_;
      return AnyBatch(batch);
    } else {
      return AnyBatch(batch_.emplace(**iterator_));
    }
  }
  bool is_last() override {
    if constexpr (!kOwnsBatches) {
      // The batch is a copy, so the iterator may advance; where it stood before is what a checkpoint must know.
      if (!advanced_) {
        if constexpr (kHasState) before_ = loader_.state_dict();
        before_batch_ = batch();
        ++*iterator_;
        advanced_ = true;
      }
      return *iterator_ == loader_.end();
    } else {
      return false;
    }
  }
  void finish() override {
    iterator_.reset();  // advanced_ stays: a checkpoint may still ask where the pass stood
    if constexpr (!kOwnsBatches) batch_.reset();
  }
  std::optional<int64_t> size() const override {
    if constexpr (requires { std::as_const(loader_).size(); })
      return static_cast<int64_t>(loader_.size());
    else
      return {};
  }
  void seek(int64_t epoch, int64_t batch) override {
    if constexpr (requires { loader_.seek(epoch, batch); }) {
      iterator_.reset();
      advanced_ = false;
      loader_.seek(epoch, batch);
    }
  }
  bool has_state() const override { return kHasState; }
  StateDict state_dict() const override {
    if constexpr (kHasState)
      return advanced_ ? before_ : loader_.state_dict();
    else
      return {};
  }
  void load_state_dict(const StateDict& state) override {
    if constexpr (kHasState) loader_.load_state_dict(state);
    loaded_ = true;
  }
  std::shared_ptr<BatchSource> distributed(int rank, int world, bool repeat) const override {
    if constexpr (requires { loader_.distributed(rank, world, repeat); })
      return std::make_shared<SourceOf>(loader_.distributed(rank, world, repeat));
    else if constexpr (requires { loader_.distributed(rank, world); })
      return std::make_shared<SourceOf>(loader_.distributed(rank, world));
    else
      return nullptr;
  }
  std::shared_ptr<BatchSource> sequential() const override {
    if constexpr (requires { loader_.sequential(); })
      return std::make_shared<SourceOf>(loader_.sequential());
    else
      return nullptr;
  }
  std::shared_ptr<BatchSource> placed(const LoaderPlacement& placement) const override {
    if constexpr (requires { loader_.placed(placement); })
      return std::make_shared<SourceOf>(loader_.placed(placement));
    else
      return nullptr;
  }
  bool shuffles() const override {
    if constexpr (requires { loader_.shuffles(); })
      return loader_.shuffles();
    else
      return false;
  }
  std::shared_ptr<BatchSource> with_batch_size(int64_t size) const override {
    if constexpr (requires { loader_.with_batch_size(size); })
      return std::make_shared<SourceOf>(loader_.with_batch_size(size));
    else
      return nullptr;
  }
  std::optional<int64_t> batch_size() const override {
    if constexpr (requires { loader_.batch_size(); })
      return loader_.batch_size();
    else
      return {};
  }
  std::optional<SharedOrder> shared_order() const override {
    if constexpr (requires { loader_.shared_order(); })
      return loader_.shared_order();
    else
      return {};
  }
  std::optional<int64_t> batch() const override {
    if constexpr (kHasState && kCountsBatches)
      return advanced_ ? before_batch_ : std::optional<int64_t>(loader_.batch());
    else
      return {};
  }

 private:
  static constexpr bool kHasState = requires(const L& l, L& m, const StateDict& s) {
    { l.state_dict() } -> std::convertible_to<StateDict>;
    m.load_state_dict(s);
  };
  static constexpr bool kCountsBatches = requires(const L& l) {
    { l.batch() } -> std::convertible_to<int64_t>;
  };
  // Every batch of a Levin loader is a new one, so it may be changed in place. A range of the user's may hand out what
  // it keeps. One that does not know its size (a stream) has to be asked for the next batch to know which is the last.
  static constexpr bool kOwnsBatches = requires(const L& l) {
    l.distributed(0, 1);
    l.size();
  };
  using Iterator = decltype(std::declval<L&>().begin());

  L loader_;
  std::optional<Iterator> iterator_;
  std::optional<B> batch_;
  StateDict before_;
  std::optional<int64_t> before_batch_;
  bool advanced_ = false;
  bool loaded_ = false;
};

/// A reference to the user's own container, which must outlive the run.
template <class R>
class BorrowedRange {
 public:
  explicit BorrowedRange(R& range) : range_(&range) {}
  auto begin() { return range_->begin(); }
  auto end() { return range_->end(); }
  auto size() const requires requires(const R& r) { r.size(); }
  { return range_->size(); }

 private:
  R* range_;
};

}  // namespace detail

/// The loaders of a stage, of batches of type B: one, several, or none. Takes Levin's loaders, and any container or
/// range with begin() and end(); an lvalue that is not a Levin loader must outlive the run.
template <class B>
class Loaders {
 public:
  Loaders() = default;
  template <class L>
  requires detail::LoaderOf<std::remove_cvref_t<L>, B> Loaders(L&& loader) {
    using T = std::remove_cvref_t<L>;
    if constexpr (requires(const T& l) { l.distributed(0, 1); } || !std::is_lvalue_reference_v<L>)
      sources_.push_back(std::make_shared<detail::SourceOf<T, B>>(std::forward<L>(loader)));
    else
      sources_.push_back(std::make_shared<detail::SourceOf<detail::BorrowedRange<std::remove_reference_t<L>>, B>>(
          detail::BorrowedRange<std::remove_reference_t<L>>(loader)));
  }
  template <class L>
  requires detail::LoaderOf<L, B> Loaders(std::vector<L> loaders) {
    for (auto& loader : loaders) sources_.push_back(std::make_shared<detail::SourceOf<L, B>>(std::move(loader)));
  }
  Loaders(std::initializer_list<Loaders<B>> several) {
    for (const auto& one : several) sources_.insert(sources_.end(), one.sources_.begin(), one.sources_.end());
  }

  bool empty() const { return sources_.empty(); }
  size_t size() const { return sources_.size(); }
  const std::vector<std::shared_ptr<detail::BatchSource>>& sources() const { return sources_; }

 private:
  std::vector<std::shared_ptr<detail::BatchSource>> sources_;
};

namespace detail {
/// Loaders whose batch type was checked already.
using AnyLoaders = std::vector<std::shared_ptr<BatchSource>>;
}  // namespace detail

/// The loaders of a module or a data module, by stage: override those that the run needs.
template <class B>
class DataHooks {
 public:
  virtual ~DataHooks() = default;

  virtual Loaders<B> train_dataloader() { return {}; }
  virtual Loaders<B> val_dataloader() { return {}; }
  virtual Loaders<B> test_dataloader() { return {}; }
  virtual Loaders<B> predict_dataloader() { return {}; }

 protected:
  detail::AnyLoaders sources(Stage stage) {
    switch (stage) {
      case Stage::kTrain:
        return train_dataloader().sources();
      case Stage::kTest:
        return test_dataloader().sources();
      case Stage::kPredict:
        return predict_dataloader().sources();
      case Stage::kIdle:
      case Stage::kSanity:
      case Stage::kValidate:
        return val_dataloader().sources();
    }
    return {};
  }
};

}  // namespace levin
