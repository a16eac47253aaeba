#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "levin/core/each_tensor.h"
#include "levin/core/error.h"
#include "levin/core/random.h"
#include "levin/core/trace_span.h"
#include "levin/data/batch_memory.h"
#include "levin/data/dataset.h"
#include "levin/data/decode_gpu/jpeg_decoder.h"
#include "levin/data/loader_engine.h"
#include "levin/data/loader_options.h"
#include "levin/data/sample_random.h"

namespace levin {

/// What a loader has done so far.
struct LoaderStats {
  /// Seconds that the caller had to wait for batches; next to nothing when the loader keeps up.
  double waited = 0;
  /// Samples that could not be made and were left out (bad_samples = "skip").
  int64_t skipped = 0;
  /// Threads that make batches.
  int workers = 0;
  /// Images that the GPU has decoded (LoaderOptions::decode).
  int64_t decoded_on_gpu = 0;
};

namespace detail {

/// Which batch: for its random numbers and for messages.
struct BatchId {
  uint64_t seed = 0;
  int64_t epoch = 0;
  /// Of the epoch; over all ranks, so that no two ranks draw the same numbers.
  int64_t batch = 0;
  int64_t shown = 0;  // of this rank
};

/// Samples that failed, of one loader.
struct BadSamples {
  bool skip = false;
  /// A batch of which no sample is good is left out as well.
  bool drop_batches = false;
  std::atomic<int64_t> count = 0;
};

/// Copies tensors to a device on a stream of its own, ahead of their use.
class DeviceCopy {
 public:
  explicit DeviceCopy(c10::Device device);
  /// Runs f, which copies and computes, on the side stream; `arrived` is when all of that is done.
  void run(const std::function<void()>& f, std::optional<c10::Event>& arrived);
  /// Lets what is given to the current stream from now on wait for that.
  void wait(c10::Event& arrived) const;
  /// The program is through with these tensors, as far as it has given work to the current stream: the side stream uses
  /// their memory again after that work. Those that somebody still holds are left to torch, which costs a question to
  /// the device in every allocation until they are gone; so it is the exception.
  void retire(std::vector<Tensor> tensors);
  c10::Device device() const { return device_; }

 private:
  struct Retired {
    c10::Event used;
    std::vector<Tensor> tensors;
  };
  c10::Device device_;
  c10::Stream stream_;
  std::mutex mutex_;
  std::vector<Retired> retired_;
};

/// What happens to a batch once it is together: it goes to a device, and through transforms of whole batches.
template <class B>
struct Delivery {
  std::shared_ptr<DeviceCopy> copy;
  std::vector<std::function<void(B&, Random&)>> transforms;
};

/// The part of making a batch that does not depend on its type.
class SampleWork : public BatchWork {
 public:
  SampleWork(BatchId id, int64_t samples, std::shared_ptr<BadSamples> bad_samples)
      : id_(id), samples_(samples), bad_(static_cast<size_t>(samples), 0), bad_samples_(std::move(bad_samples)) {}

  int64_t samples() const final { return samples_; }
  void make(int64_t sample) noexcept final;
  std::string name() const final;

 protected:
  virtual void make_sample(int64_t sample) = 0;
  /// For errors: "sample 17".
  virtual std::string sample_name(int64_t sample) const = 0;
  /// Puts another sample in the place of the first one; for batches that have no good one.
  virtual void replace_first(int64_t /*index*/) {}
  /// Throws the error of the first sample that failed, unless bad ones are skipped and some are good. False when there
  /// is no batch, since all of its samples are skipped.
  bool check();

  BatchId id_;
  int64_t samples_;
  std::vector<char> bad_;
  std::shared_ptr<BadSamples> bad_samples_;

 public:
  /// Samples to take, one after the other, when all of this batch are bad; none: there are no others.
  std::function<std::optional<int64_t>(int64_t attempt)> spare;

 private:
  std::mutex mutex_;
  int64_t first_bad_ = -1;
  std::exception_ptr error_;
};

template <class B>
class BatchOfWork : public SampleWork {
 public:
  using SampleWork::SampleWork;

  void finish() final {
    prepare();
    if (!check()) return;
    B made = collate();
    Random random(id_.seed ^ kBatchSeed, static_cast<uint64_t>(id_.epoch), static_cast<uint64_t>(id_.batch));
    const auto transform = [&] {
      const SampleRandomScope scope(random);
      for (const auto& f : delivery->transforms) f(made, random);
    };
    if (delivery && delivery->copy) {
      delivery->copy->run(
          [&] {
            each_tensor(made, [&](Tensor& tensor) {
              if (tensor.defined()) tensor = tensor.to(delivery->copy->device(), /*non_blocking=*/true);
            });
            transform();
          },
          arrived_);
    } else if (delivery && !delivery->transforms.empty()) {
      transform();
    }
    batch_.emplace(std::move(made));
  }
  /// On the thread that uses it. Nothing when all samples were skipped.
  std::optional<B> take() {
    if (arrived_) delivery->copy->wait(*arrived_);
    return std::move(batch_);
  }

  std::shared_ptr<const Delivery<B>> delivery;

 protected:
  /// All samples are made, and some may be bad: what is done for the whole batch. More may be bad afterwards.
  virtual void prepare() {}
  virtual B collate() = 0;

 private:
  static constexpr uint64_t kBatchSeed = 0x6261746368657321;  // batches draw other numbers than their samples
  std::optional<B> batch_;
  std::optional<c10::Event> arrived_;
};

/// One sample of all samples: their tensors go into rows of one memory as they are made.
template <class S>
class RowsWork final : public BatchOfWork<S> {
 public:
  /// Makes the sample of a row; what it draws belongs to its index.
  using Make = std::function<S(int64_t row, int64_t index, Random&, SamplePlace&)>;
  RowsWork(BatchId id, std::vector<int64_t> indices, std::shared_ptr<BadSamples> bad,
           std::shared_ptr<BatchMemory> memory, Make make)
      : BatchOfWork<S>(id, static_cast<int64_t>(indices.size()), std::move(bad)),
        indices_(std::move(indices)),
        memory_(std::move(memory)),
        make_(std::move(make)),
        columns_(*memory_, this->samples_) {
    check_stackable<S>();
  }

 protected:
  void make_sample(int64_t row) override {
    const int64_t index = indices_[static_cast<size_t>(row)];
    Random random(this->id_.seed, static_cast<uint64_t>(this->id_.epoch), static_cast<uint64_t>(index));
    const SampleRandomScope scope(random);
    SamplePlace place(columns_, row);
    S sample = make_(row, index, random, place);
    columns_.place(row, sample_fields(sample));
    const std::lock_guard lock(mutex_);
    // The first sample says in which order the fields come, whichever thread makes it, and when.
    if (first_ && first_row_ < row) return;
    first_.emplace(std::move(sample));
    first_row_ = row;
  }
  void replace_first(int64_t index) override { indices_[0] = index; }
  std::string sample_name(int64_t row) const override {
    return "sample " + std::to_string(indices_[static_cast<size_t>(row)]);
  }
  S collate() override {
    auto stacked = columns_.finish(this->bad_, [this](int64_t row) { return sample_name(row); });
    for (auto& field : sample_fields(*first_)) {
      const auto column =
          std::find_if(stacked.begin(), stacked.end(), [&](const auto& one) { return one.first == field.name; });
      *field.tensor = column->second;
    }
    return std::move(*first_);
  }

 private:
  std::vector<int64_t> indices_;
  std::shared_ptr<BatchMemory> memory_;
  Make make_;
  SampleColumns columns_;
  std::mutex mutex_;
  std::optional<S> first_;
  int64_t first_row_ = 0;
};

/// What a function of the program's that makes batches has thrown, with the samples it was given.
[[noreturn]] void fail_collate(const std::exception& error, const std::string& batch, std::span<const int64_t> indices);

/// Samples that a function of the program's makes a batch of.
template <class S, class B>
class CollateWork final : public BatchOfWork<B> {
 public:
  using Make = std::function<S(int64_t index, Random&, SamplePlace&)>;
  using Collate = std::function<B(std::vector<S>)>;
  CollateWork(BatchId id, std::vector<int64_t> indices, std::shared_ptr<BadSamples> bad, Make make, Collate collate)
      : BatchOfWork<B>(id, static_cast<int64_t>(indices.size()), std::move(bad)),
        indices_(std::move(indices)),
        made_(indices_.size()),
        make_(std::move(make)),
        collate_(std::move(collate)) {}

 protected:
  void make_sample(int64_t i) override {
    const auto at = static_cast<size_t>(i);
    Random random(this->id_.seed, static_cast<uint64_t>(this->id_.epoch), static_cast<uint64_t>(indices_[at]));
    const SampleRandomScope scope(random);
    SamplePlace nowhere;
    made_[at].emplace(make_(indices_[at], random, nowhere));
  }
  void replace_first(int64_t index) override { indices_[0] = index; }
  std::string sample_name(int64_t i) const override {
    return "sample " + std::to_string(indices_[static_cast<size_t>(i)]);
  }
  B collate() override {
    std::vector<S> samples;
    samples.reserve(made_.size());
    for (auto& sample : made_)
      if (sample) samples.push_back(std::move(*sample));
    try {
      return collate_(std::move(samples));
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception& error) {
      fail_collate(error, this->name(), indices_);
    }
  }

 private:
  std::vector<int64_t> indices_;
  std::vector<std::optional<S>> made_;
  Make make_;
  Collate collate_;
};

/// A batch that the dataset hands out whole. When bad samples are skipped, one that fails is asked for sample by
/// sample.
template <class B>
class WholeWork final : public BatchOfWork<B> {
 public:
  using Fetch = std::function<B(std::span<const int64_t>)>;
  WholeWork(BatchId id, std::vector<int64_t> indices, std::shared_ptr<BadSamples> bad, const Fetch& fetch)
      : BatchOfWork<B>(id, 1, std::move(bad)), indices_(std::move(indices)), fetch_(fetch) {}

 protected:
  void make_sample(int64_t) override {
    Random random(this->id_.seed, static_cast<uint64_t>(this->id_.epoch), static_cast<uint64_t>(indices_[0]));
    const SampleRandomScope scope(random);
    try {
      made_.emplace(fetch_(indices_));
    } catch (const Interrupted&) {
      throw;
    } catch (...) {
      if (!this->bad_samples_->skip) throw;
      std::vector<int64_t> good;
      for (const int64_t index : indices_) try {
          fetch_(std::span(&index, 1));
          good.push_back(index);
        } catch (const std::exception&) {
        }
      if (good.size() == indices_.size()) throw;  // each is good alone: they do not go together
      // The one that make() counts, should all be bad, is this batch.
      const auto bad = static_cast<int64_t>(indices_.size() - good.size()) - (good.empty() ? 1 : 0);
      this->bad_samples_->count.fetch_add(bad, std::memory_order_relaxed);
      if (good.empty()) throw;
      made_.emplace(fetch_(good));
    }
  }
  void replace_first(int64_t index) override { indices_.assign(1, index); }
  std::string sample_name(int64_t) const override { return this->name(); }
  B collate() override { return std::move(*made_); }

 private:
  std::vector<int64_t> indices_;
  const Fetch& fetch_;  // of the maker, which the loader keeps
  std::optional<B> made_;
};

/// Lets go of a batch that the program is through with.
template <class B>
void let_go(std::optional<B>& batch, const Delivery<B>& delivery) {
  if (batch && delivery.copy) {
    std::vector<Tensor> tensors;
    each_tensor(*batch, [&](Tensor& tensor) {
      if (tensor.defined()) tensors.push_back(std::move(tensor));
    });
    delivery.copy->retire(std::move(tensors));
  }
  batch.reset();
}

/// How many threads and how many batches ahead, for samples that are made one by one (or batches that come whole).
EngineOptions engine_options(const LoaderOptions& options, bool whole, bool to_device, int local_ranks);
/// Checks what does not depend on the data.
void check_loader_options(const LoaderOptions& options);

/// Batches in order, made ahead by threads or on the spot.
template <class B>
class BatchPipe {
 public:
  using Next = std::function<std::shared_ptr<BatchOfWork<B>>()>;

  BatchPipe(const EngineOptions& engine, bool pinned, bool skip_bad, bool drop_batches)
      : options_(engine),
        memory(std::make_shared<BatchMemory>(pinned, static_cast<size_t>(engine.ahead + 3) * 8)),
        bad_samples(std::make_shared<BadSamples>()) {
    bad_samples->skip = skip_bad;
    bad_samples->drop_batches = drop_batches;
    if (engine.workers > 0) engine_ = std::make_unique<LoaderEngine>(engine);
  }

  void start(Next next) {
    if (engine_ && engine_->is_from_parent()) memory = memory->renewed();
    if (engine_)
      engine_->start([next = std::move(next)]() -> std::shared_ptr<BatchWork> { return next(); });
    else
      next_ = std::move(next);
  }
  /// False at the end of the pass. There is no batch where all samples of one were skipped.
  bool next(std::optional<B>& batch) {
    // The names that tools for traces of Python know.
    const TraceSpan span(engine_ ? "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
                                 : "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                         TraceKind::kOperator);
    std::shared_ptr<BatchOfWork<B>> work;
    if (engine_) {
      work = std::static_pointer_cast<BatchOfWork<B>>(engine_->next());
    } else if ((work = next_())) {
      for (int64_t i = 0; i < work->samples(); ++i) work->make(i);
      work->finish();
    }
    if (!work) return false;
    batch = work->take();
    return true;
  }
  /// The pass is over.
  void end() {
    if (engine_) engine_->end();
  }
  LoaderStats stats() const {
    return {engine_ ? engine_->waited() : 0, bad_samples->count.load(), engine_ ? options_.workers : 0,
            decoder ? decoder->decoded() : 0};
  }

 private:
  EngineOptions options_;
  Next next_;

 public:
  std::shared_ptr<BatchMemory> memory;
  std::shared_ptr<BadSamples> bad_samples;
  /// Null: the CPU decodes.
  std::shared_ptr<GpuJpegDecoder> decoder;
  /// The fraction that it decodes anyway.
  double decode_on_cpu = 0;

 private:
  std::unique_ptr<LoaderEngine> engine_;  // last: its threads end before what they use
};

}  // namespace detail

}  // namespace levin
