#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/core/error.h"
#include "levin/data/loader.h"

namespace levin {

namespace detail {

/// A dataset of torch::data, mapped and collated as it may be.
template <class D>
concept TorchDataset = requires(D& dataset, typename D::BatchRequestType request) {
  { dataset.get_batch(std::move(request)) } -> std::same_as<typename D::BatchType>;
  { D::is_stateful } -> std::convertible_to<bool>;
  dataset.size();
};

/// Batches of a torch dataset. Its methods may change it, and torch gives each worker a copy: so does this.
template <class D>
class TorchMaker final : public BatchMaker<typename D::BatchType> {
 public:
  using B = typename D::BatchType;

  explicit TorchMaker(D dataset) {
    const std::optional<size_t> size = dataset.size();
    LEVIN_CHECK(size, "[data] this torch dataset does not know its size(): override it");
    size_ = static_cast<int64_t>(*size);
    idle_.push_back(std::make_unique<D>(std::move(dataset)));
    fetch_ = [this](std::span<const int64_t> indices) {
      auto mine = take();
      const std::vector<size_t> request(indices.begin(), indices.end());
      auto batch = mine->get_batch(request);
      const std::lock_guard lock(mutex_);
      idle_.push_back(std::move(mine));
      return batch;
    };
  }
  int64_t size() const override { return size_; }
  bool whole() const override { return false; }
  std::shared_ptr<BatchOfWork<B>> start(BatchId id, std::vector<int64_t> indices,
                                        const BatchPipe<B>& pipe) const override {
    return std::make_shared<WholeWork<B>>(id, std::move(indices), pipe.bad_samples, fetch_);
  }

 private:
  /// The last idle one is never given away: others are copied from it.
  std::unique_ptr<D> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.size() == 1) return std::make_unique<D>(*idle_.front());
    auto mine = std::move(idle_.back());
    idle_.pop_back();
    return mine;
  }

  int64_t size_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<D>> idle_;
  typename WholeWork<B>::Fetch fetch_;
};

}  // namespace detail

/// A loader of a dataset of torch::data, whose batches are those of torch::data::make_data_loader: `Example<>` where
/// the dataset is mapped by `Stack<>`, else a vector of examples. Unlike torch's it knows of ranks, and can resume.
///
///     auto data = torch::data::datasets::MNIST("mnist").map(torch::data::transforms::Stack<>());
///     auto loader = fabric.setup_dataloaders(levin::make_loader(data, {.batch_size = 64, .shuffle = true}));
///     for (auto& batch : loader) train(batch.data, batch.target);
template <detail::TorchDataset D>
auto make_loader(D dataset, LoaderOptions options = {}) {
  static_assert(!D::is_stateful,
                "levin: a stateful torch dataset (a ChunkDataset) decides itself what comes next, and make_loader can "
                "neither split it over ranks nor resume in it: keep torch::data::make_data_loader, and give the "
                "ChunkDataset a torch::data::samplers::DistributedRandomSampler(chunks, fabric.world_size(), "
                "fabric.global_rank()) as its chunk sampler");
  static_assert(D::is_stateful || std::convertible_to<const std::vector<size_t>&, typename D::BatchRequestType>,
                "levin: make_loader asks a torch dataset for batches by their indices");
  if constexpr (!D::is_stateful)
    return DataLoader<typename D::BatchType>(std::make_shared<detail::TorchMaker<D>>(std::move(dataset)),
                                             std::move(options));
}

}  // namespace levin
