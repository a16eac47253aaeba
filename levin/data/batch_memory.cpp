#include "levin/data/batch_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "levin/core/error.h"

namespace levin {
namespace detail {
namespace {

Tensor empty_image(int64_t channels, int64_t height, int64_t width) {
  return at::empty_strided({channels, height, width}, {1, width * channels, channels}, at::kByte);
}

bool is_plain(const Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized();
}

}  // namespace

ColumnLayout ColumnLayout::of(const Tensor& sample) {
  ColumnLayout layout{
      .sizes = sample.sizes().vec(), .dtype = sample.scalar_type(), .bytes = static_cast<int64_t>(sample.nbytes())};
  if (sample.is_non_overlapping_and_dense()) {
    layout.strides = sample.strides().vec();
  } else {
    layout.strides.resize(layout.sizes.size());
    int64_t step = 1;
    for (size_t i = layout.sizes.size(); i-- > 0; step *= std::max<int64_t>(layout.sizes[i], 1))
      layout.strides[i] = step;
  }
  return layout;
}

bool ColumnLayout::fits(const Tensor& sample) const {
  return is_plain(sample) && sample.scalar_type() == dtype && sample.sizes() == at::IntArrayRef(sizes);
}

Tensor BatchMemory::take(const ColumnLayout& layout, int64_t rows) {
  std::vector<int64_t> sizes{rows}, strides{0};
  sizes.insert(sizes.end(), layout.sizes.begin(), layout.sizes.end());
  strides.insert(strides.end(), layout.strides.begin(), layout.strides.end());
  strides[0] = layout.bytes / static_cast<int64_t>(c10::elementSize(layout.dtype));
  const int64_t bytes = layout.bytes * rows;
  const auto options = at::TensorOptions().dtype(layout.dtype);
  if (pinned_ || bytes == 0) return at::empty_strided(sizes, strides, options.pinned_memory(pinned_ && bytes > 0));
  const std::lock_guard lock(mutex_);
  Tensor* block = nullptr;
  Tensor* held = nullptr;
  for (auto& candidate : blocks_) {
    if (static_cast<int64_t>(candidate.storage().nbytes()) < bytes) continue;
    // One owner: this list. Whoever let go of the memory before did so with release, the count is read with acquire.
    if (candidate.storage().use_count() == 1 && (!block || candidate.nbytes() < block->nbytes())) block = &candidate;
    if (candidate.storage().use_count() > 1) held = &candidate;
  }
  if (!block) {
    Tensor made = at::empty({bytes}, at::kByte);
    if (blocks_.size() < most_) {
      block = &blocks_.emplace_back(std::move(made));
    } else {
      // All are held, or too small: this one takes the place of one of those.
      block = held ? held : &blocks_.front();
      *block = std::move(made);
    }
  }
  return at::empty({0}, options).set_(block->storage(), 0, sizes, strides);
}

std::vector<ColumnLayout> BatchMemory::layouts() const {
  const std::lock_guard lock(mutex_);
  return layouts_;
}

void BatchMemory::remember(std::vector<ColumnLayout> layouts) {
  const std::lock_guard lock(mutex_);
  layouts_ = std::move(layouts);
}

SampleColumns::SampleColumns(BatchMemory& memory, int64_t rows) : memory_(memory), rows_(rows) {
  if (auto layouts = memory.layouts(); !layouts.empty()) allocate(std::move(layouts));
}

void SampleColumns::allocate(std::vector<ColumnLayout> layouts) {
  for (auto& layout : layouts) {
    Column column{.layout = std::move(layout)};
    column.batch = memory_.take(column.layout, rows_);
    column.data = static_cast<char*>(column.batch.mutable_data_ptr());
    columns_.push_back(std::move(column));
  }
  ready_.store(true, std::memory_order_release);
}

void SampleColumns::place(int64_t row, std::span<Tensor* const> sample) {
  if (!ready_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    if (!ready_.load(std::memory_order_relaxed) &&
        std::all_of(sample.begin(), sample.end(), [](const Tensor* tensor) { return is_plain(*tensor); })) {
      std::vector<ColumnLayout> layouts;
      for (const Tensor* tensor : sample) layouts.push_back(ColumnLayout::of(*tensor));
      allocate(std::move(layouts));
    }
  }
  bool fits = ready_.load(std::memory_order_acquire) && sample.size() == columns_.size();
  for (size_t i = 0; fits && i < sample.size(); ++i) fits = columns_[i].layout.fits(*sample[i]);
  if (!fits) {
    std::vector<Tensor> tensors;
    for (const Tensor* tensor : sample) tensors.push_back(*tensor);
    const std::lock_guard lock(mutex_);
    others_.emplace_back(row, std::move(tensors));
    return;
  }
  const auto memory_of = [&](const Column& column) { return column.data + row * column.layout.bytes; };
  // What was made in the row of another column (a sample may use its places in any order, and asks for the first one
  // perhaps before there are columns) must not be overwritten by that column before it is copied.
  std::vector<Tensor> rescued(sample.size());
  for (size_t i = 0; i < sample.size(); ++i)
    for (size_t j = 0; j < columns_.size(); ++j)
      if (i != j && sample[i]->nbytes() > 0 && sample[i]->const_data_ptr() == memory_of(columns_[j]))
        rescued[i] = sample[i]->clone();
  for (size_t i = 0; i < sample.size(); ++i) {
    const Column& column = columns_[i];
    const Tensor& from = rescued[i].defined() ? rescued[i] : *sample[i];
    char* to = memory_of(column);
    if (from.const_data_ptr() == to) continue;  // it was made there
    if (from.strides() == at::IntArrayRef(column.layout.strides))
      std::memcpy(to, from.const_data_ptr(), static_cast<size_t>(column.layout.bytes));
    else
      column.batch.select(0, row).copy_(from);
  }
}

Tensor SampleColumns::image(int64_t row, int64_t channels, int64_t height, int64_t width, uint64_t& taken) {
  if (ready_.load(std::memory_order_acquire))
    for (size_t i = 0; i < std::min<size_t>(columns_.size(), 64); ++i) {
      const auto& layout = columns_[i].layout;
      if ((taken >> i & 1) == 0 && layout.dtype == at::kByte &&
          at::IntArrayRef(layout.sizes) == at::IntArrayRef({channels, height, width}) &&
          at::IntArrayRef(layout.strides) == at::IntArrayRef({1, width * channels, channels})) {
        taken |= uint64_t{1} << i;
        return columns_[i].batch.select(0, row);
      }
    }
  return empty_image(channels, height, width);
}

std::vector<Tensor> SampleColumns::finish(std::span<const char> bad) {
  const auto skipped = std::count_if(bad.begin(), bad.end(), [](char flag) { return flag != 0; });
  std::vector<Tensor> tensors;
  if (others_.empty()) {
    std::vector<ColumnLayout> layouts;
    for (auto& column : columns_) {
      tensors.push_back(column.batch);
      layouts.push_back(column.layout);
    }
    memory_.remember(std::move(layouts));
    if (skipped > 0) {
      std::vector<int64_t> good;
      for (int64_t row = 0; row < rows_; ++row)
        if (!bad[static_cast<size_t>(row)]) good.push_back(row);
      for (auto& tensor : tensors) tensor = tensor.index_select(0, at::tensor(good));
    }
    return tensors;
  }
  // Some samples did not fit what the others, or those of the batch before, looked like: put them together anew.
  std::vector<std::vector<Tensor>> rows(static_cast<size_t>(rows_));
  for (auto& [row, sample] : others_) rows[static_cast<size_t>(row)] = std::move(sample);
  const std::vector<Tensor>* first = nullptr;
  for (int64_t row = 0; row < rows_; ++row) {
    auto& sample = rows[static_cast<size_t>(row)];
    if (bad[static_cast<size_t>(row)]) continue;
    if (sample.empty())
      for (auto& column : columns_) sample.push_back(column.batch.select(0, row));
    if (!first) first = &sample;
    LEVIN_CHECK(sample.size() == first->size(), "[data] a sample has ", sample.size(), " tensors, another one ",
                first->size());
  }
  if (!first) return {};
  std::vector<ColumnLayout> layouts;
  for (size_t i = 0; i < first->size(); ++i) {
    std::vector<Tensor> column;
    for (int64_t row = 0; row < rows_; ++row)
      if (!bad[static_cast<size_t>(row)]) column.push_back(rows[static_cast<size_t>(row)][i]);
    for (const auto& tensor : column) {
      LEVIN_CHECK(tensor.defined() == column[0].defined(), "[data] a sample lacks a tensor that another one has");
      LEVIN_CHECK(!tensor.defined() || tensor.sizes() == column[0].sizes(),
                  "[data] samples of one batch differ in shape: ", column[0].sizes(), " and ", tensor.sizes(),
                  "; bring them to one size in get(), or use batch_size 1");
    }
    // at::stack makes a contiguous result; a batch of channels-last images stays one.
    if (column[0].defined() && is_plain(column[0])) {
      const auto layout = ColumnLayout::of(column[0]);
      auto together = memory_.take(layout, static_cast<int64_t>(column.size()));
      for (size_t row = 0; row < column.size(); ++row) together.select(0, static_cast<int64_t>(row)).copy_(column[row]);
      tensors.push_back(std::move(together));
      layouts.push_back(layout);
    } else {
      tensors.push_back(column[0].defined() ? at::stack(column) : Tensor());
    }
  }
  memory_.remember(layouts.size() == tensors.size() ? std::move(layouts) : std::vector<ColumnLayout>{});
  return tensors;
}

}  // namespace detail

Tensor SamplePlace::image(int64_t channels, int64_t height, int64_t width) {
  return columns_ ? columns_->image(row_, channels, height, width, taken_)
                  : detail::empty_image(channels, height, width);
}

}  // namespace levin
