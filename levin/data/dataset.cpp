#include "levin/data/dataset.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include "levin/core/error.h"

namespace levin {

TensorDataset::TensorDataset(Batch tensors) : tensors_(std::move(tensors)) {
  LEVIN_CHECK(!tensors_.empty(), "[data] a TensorDataset needs at least one tensor");
  bool first = true;
  for (const auto& [name, tensor] : tensors_) {
    LEVIN_CHECK(tensor.defined() && tensor.dim() > 0, "[data] tensor \"", name,
                "\" is empty or has no dimension for the samples");
    if (first) size_ = tensor.size(0);
    LEVIN_CHECK(tensor.size(0) == size_, "[data] tensor \"", name, "\" has ", tensor.size(0), " samples, \"",
                tensors_.begin()->first, "\" has ", size_);
    first = false;
  }
}

Batch TensorDataset::get(int64_t index) const {
  Batch sample;
  for (const auto& [name, tensor] : tensors_) sample.set(name, tensor[index]);
  return sample;
}

Batch TensorDataset::get_batch(std::span<const int64_t> indices) const {
  const auto index =
      at::from_blob(const_cast<int64_t*>(indices.data()), {static_cast<int64_t>(indices.size())}, at::kLong);
  Batch batch;
  for (const auto& [name, tensor] : tensors_)
    batch.set(name, tensor.index_select(0, tensor.is_cpu() ? index : index.to(tensor.device())));
  return batch;
}

}  // namespace levin
