#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/core/each_tensor.h"
#include "levin/core/error.h"

namespace levin::detail {

/// "float32 [4, 8]"
std::string shape_text(const Tensor& tensor);

/// Rows of a batch: the first size of its first tensor that has one; 0 without.
template <class B>
int64_t rows_of_batch(const B& batch) {
  int64_t rows = 0;
  each_tensor(const_cast<B&>(batch), [&](const Tensor& tensor) {
    if (rows == 0 && tensor.defined() && tensor.dim() > 0) rows = tensor.size(0);
  });
  return rows;
}

/// Rows of `parts` parts; they differ by one at most.
std::vector<int64_t> rows_of_parts(int64_t rows, int parts);

/// A batch in parts along the first dimension; views, no copies. Tensors without a dimension are in every part. An
/// Error when a tensor has another number of rows than the first one.
template <class B>
std::vector<B> split_rows(const B& batch, const std::vector<int64_t>& rows) {
  int64_t all = 0;
  for (const auto count : rows) all += count;
  std::vector<B> parts;
  int64_t first = 0;
  for (const auto count : rows) {
    auto& part = parts.emplace_back(batch);
    each_tensor(part, [&](Tensor& tensor) {
      if (!tensor.defined() || tensor.dim() == 0) return;
      LEVIN_CHECK(tensor.size(0) == all, "[pipeline] a tensor of the batch is ", shape_text(tensor), ", and the first ",
                  "one has ", all, " rows; all must have as many to be computed in micro-batches");
      tensor = tensor.narrow(0, first, count);
    });
    first += count;
  }
  return parts;
}

/// What a part is like: shapes and dtypes of its tensors.
template <class B>
std::string shapes_of(const B& part) {
  std::string text;
  each_tensor(const_cast<B&>(part),
              [&](const Tensor& tensor) { text += tensor.defined() ? shape_text(tensor) + ";" : "-;"; });
  return text;
}

}  // namespace levin::detail
