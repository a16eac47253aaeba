#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "levin/core/batch.h"
#include "levin/core/each_tensor.h"
#include "levin/core/random.h"

namespace levin {

/// What a loader reads from: `size()` and `get(index)`, which returns a sample (a Batch or any type that each_tensor
/// can walk). One that draws random numbers has `get(index, random)` instead; they belong to the sample and the epoch,
/// so that it does not matter which thread asks, or when. Both are called from several threads at once. A dataset that
/// can fetch many at once may add `get_batch(indices)`.
template <class D>
concept Dataset = requires(const D& dataset, int64_t index, Random& random) {
  { dataset.size() } -> std::convertible_to<int64_t>;
  requires requires {
    dataset.get(index);
  } || requires {
    dataset.get(index, random);
  };
};

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

namespace detail {

Tensor stack_samples(const std::vector<Tensor>& tensors);

/// One sample whose tensors are those of all samples, stacked.
template <class S>
S collate(std::vector<S> samples) {
  if constexpr (std::is_aggregate_v<S> && !requires(S & s, void (*f)(Tensor&)) { s.each_tensor(f); })
    each_field(samples.front(), [](auto& field) {
      static_assert(!Leaf<std::remove_cvref_t<decltype(field)>>,
                    "levin: a number or text in a sample cannot be stacked into a batch; make the field a Tensor, or "
                    "give the dataset get_batch(indices)");
    });
  std::vector<std::vector<Tensor>> columns;
  for (auto& sample : samples) {
    size_t column = 0;
    each_tensor(sample, [&](Tensor& tensor) {
      if (columns.size() == column) columns.emplace_back();
      columns[column++].push_back(tensor);
    });
  }
  size_t column = 0;
  each_tensor(samples.front(), [&](Tensor& tensor) { tensor = stack_samples(columns[column++]); });
  return std::move(samples.front());
}

template <Dataset D>
auto fetch(const D& dataset, std::span<const int64_t> indices) {
  if constexpr (requires { dataset.get_batch(indices); }) {
    return dataset.get_batch(indices);
  } else {
    std::vector<std::remove_cvref_t<decltype(dataset.get(0))>> samples;
    samples.reserve(indices.size());
    for (const int64_t index : indices) samples.push_back(dataset.get(index));
    return collate(std::move(samples));
  }
}

}  // namespace detail

}  // namespace levin
