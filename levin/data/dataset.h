#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "levin/core/batch.h"
#include "levin/core/each_tensor.h"
#include "levin/core/random.h"

namespace levin {

class SamplePlace;

/// What a loader reads from: `size()` and `get(index)`, which returns a sample (a Batch or any type that each_tensor
/// can walk). One that draws random numbers has `get(index, random)` instead; they belong to the sample and the epoch,
/// so that it does not matter which thread asks, or when. One of images may take a place for them as well,
/// `get(index, random, place)`. All are called from several threads at once. A dataset that
/// can fetch many at once may add `get_batch(indices)`.
template <class D>
concept Dataset = requires(const D& dataset) {
  { dataset.size() } -> std::convertible_to<int64_t>;
}
&&(
    requires(const D& dataset, int64_t index) { dataset.get(index); } ||
    requires(const D& dataset, int64_t index, Random& random) { dataset.get(index, random); } ||
    requires(const D& dataset, int64_t index, Random& random, SamplePlace& place) {
      dataset.get(index, random, place);
    });

/// Named tensors with the samples along their first dimension. A batch is one index_select per tensor.
///
///     levin::TensorDataset data({{"image", images}, {"label", labels}});
class TensorDataset {
 public:
  TensorDataset() = default;
  /// Tensors of different lengths are an Error.
  explicit TensorDataset(Batch tensors);

  int64_t size() const { return size_; }
  Batch get(int64_t index) const;
  Batch get_batch(std::span<const int64_t> indices) const;
  const Batch& tensors() const { return tensors_; }

 private:
  Batch tensors_;
  int64_t size_ = 0;
};

}  // namespace levin
