#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/data/sample_fields.h"

namespace levin {

using at::Tensor;

namespace detail {

/// Name, shape, type and memory order of one tensor of a sample.
struct ColumnLayout {
  std::string name;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // dense: some order of the dimensions without holes
  c10::ScalarType dtype = c10::kByte;
  int64_t bytes = 0;

  static ColumnLayout of(std::string name, const Tensor& sample, c10::ScalarType dtype);
  bool fits(const Tensor& sample) const;
};

/// A tensor of the CPU whose bytes can be copied as they are.
bool is_plain(const Tensor& tensor);

using NamedRows = std::vector<std::pair<std::string, Tensor>>;
/// For errors: "sample 17" of a row.
using RowName = std::function<std::string(int64_t row)>;

/// Memory of batches, used again. A block comes back only when nobody holds a tensor of it any more: one that somebody
/// keeps stays theirs. Pinned memory is torch's to recycle, which also waits for copies to the device that are under
/// way.
class BatchMemory {
 public:
  explicit BatchMemory(bool pinned, size_t blocks) : pinned_(pinned), most_(blocks) {}

  /// Empty memory of the same kind, for a child after fork(): a thread of the parent may have locked this one.
  std::shared_ptr<BatchMemory> renewed() const { return std::make_shared<BatchMemory>(pinned_, most_); }

  /// A tensor [rows, ...] of that layout.
  Tensor take(const ColumnLayout& layout, int64_t rows);

  /// What the samples of the last batch looked like, so that the next ones can be written in place.
  std::vector<ColumnLayout> layouts() const;
  void remember(std::vector<ColumnLayout> layouts);

 private:
  bool pinned_;
  size_t most_;
  mutable std::mutex mutex_;
  std::vector<Tensor> blocks_;
  std::vector<ColumnLayout> layouts_;
};

/// Puts samples of a batch together by the names of their fields, in the order of the first: stacked, in torch's common
/// type of all. `rows` are the numbers of the samples. An Error names the sample and the field that another sample has
/// not, or has in another shape.
NamedRows stack_samples(BatchMemory& memory, const std::vector<NamedRows>& samples, std::span<const int64_t> rows,
                        const RowName& row_name);

/// The tensors of a batch while threads put samples into their rows.
class SampleColumns {
 public:
  SampleColumns(BatchMemory& memory, int64_t rows);

  /// Copies the tensors of a sample into its row. Different rows may be written at the same time.
  void place(int64_t row, std::vector<SampleField> sample);
  /// The memory of that row for an image, uint8 [channels, height, width] with the channels last in memory, when the
  /// batch is known to have such images; else a new tensor. What is decoded there need not be copied.
  /// `taken` has a bit for each column that was handed out for this row already.
  Tensor image(int64_t row, int64_t channels, int64_t height, int64_t width, uint64_t& taken);
  /// The tensors of the batch by name, without the rows that are bad (see stack_samples for those that differ).
  NamedRows finish(std::span<const char> bad, const RowName& row_name);

 private:
  struct Column {
    ColumnLayout layout;
    Tensor batch;
    char* data = nullptr;
  };
  void allocate(std::vector<ColumnLayout> layouts);

  BatchMemory& memory_;
  int64_t rows_;
  std::mutex mutex_;
  std::atomic<bool> ready_ = false;
  std::vector<Column> columns_;
  std::vector<std::pair<int64_t, NamedRows>> others_;  // samples that do not fit the columns
};

}  // namespace detail

/// Where a dataset may put a sample: `get(index, random, place)`. Using it is never needed; it saves a copy.
class SamplePlace {
 public:
  SamplePlace() = default;
  SamplePlace(detail::SampleColumns& columns, int64_t row) : columns_(&columns), row_(row) {}
  /// A tensor for an image, uint8 [channels, height, width], channels last in memory: in the batch itself when it fits.
  Tensor image(int64_t channels, int64_t height, int64_t width);

 private:
  detail::SampleColumns* columns_ = nullptr;
  int64_t row_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace levin
