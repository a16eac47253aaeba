#include "levin/data/batch_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "levin/core/error.h"

namespace levin {
namespace detail {
namespace {

Tensor empty_image(int64_t channels, int64_t height, int64_t width) {
  return at::empty_strided({channels, height, width}, {1, width * channels, channels}, at::kByte);
}

/// Puts the fields of a sample into the order of the columns; false when their names are not the same.
bool order_as(const std::vector<std::string_view>& names, std::vector<SampleField>& sample) {
  if (sample.size() != names.size()) return false;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto found = std::find_if(sample.begin() + static_cast<std::ptrdiff_t>(i), sample.end(),
                                    [&](const SampleField& field) { return field.name == names[i]; });
    if (found == sample.end()) return false;
    std::swap(*found, sample[i]);
  }
  return true;
}

}  // namespace

bool is_plain(const Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized();
}

ColumnLayout ColumnLayout::of(std::string name, const Tensor& sample, c10::ScalarType dtype) {
  ColumnLayout layout{.name = std::move(name),
                      .sizes = sample.sizes().vec(),
                      .dtype = dtype,
                      .bytes = sample.numel() * static_cast<int64_t>(c10::elementSize(dtype))};
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

void SampleColumns::place(int64_t row, std::vector<SampleField> sample) {
  if (!ready_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    if (!ready_.load(std::memory_order_relaxed) &&
        std::all_of(sample.begin(), sample.end(), [](const SampleField& field) { return is_plain(*field.tensor); })) {
      std::vector<ColumnLayout> layouts;
      for (const auto& field : sample)
        layouts.push_back(ColumnLayout::of(field.name, *field.tensor, field.tensor->scalar_type()));
      allocate(std::move(layouts));
    }
  }
  bool fits = ready_.load(std::memory_order_acquire);
  if (fits) {
    std::vector<std::string_view> names;
    for (const auto& column : columns_) names.push_back(column.layout.name);
    auto ordered = sample;
    fits = order_as(names, ordered);
    for (size_t i = 0; fits && i < ordered.size(); ++i) fits = columns_[i].layout.fits(*ordered[i].tensor);
    if (fits) sample = std::move(ordered);
  }
  if (!fits) {
    NamedRows tensors;
    for (auto& field : sample) tensors.emplace_back(std::move(field.name), *field.tensor);
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
      if (i != j && sample[i].tensor->nbytes() > 0 && sample[i].tensor->const_data_ptr() == memory_of(columns_[j]))
        rescued[i] = sample[i].tensor->clone();
  for (size_t i = 0; i < sample.size(); ++i) {
    const Column& column = columns_[i];
    const Tensor& from = rescued[i].defined() ? rescued[i] : *sample[i].tensor;
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

NamedRows SampleColumns::finish(std::span<const char> bad, const RowName& row_name) {
  std::vector<int64_t> good;
  for (int64_t row = 0; row < rows_; ++row)
    if (!bad[static_cast<size_t>(row)]) good.push_back(row);
  NamedRows tensors;
  if (others_.empty()) {
    std::vector<ColumnLayout> layouts;
    for (auto& column : columns_) {
      tensors.emplace_back(column.layout.name, column.batch);
      layouts.push_back(column.layout);
    }
    memory_.remember(std::move(layouts));
    if (static_cast<int64_t>(good.size()) < rows_)
      for (auto& [name, tensor] : tensors) tensor = tensor.index_select(0, at::tensor(good));
    return tensors;
  }
  // Some samples did not fit what the others, or those of the batch before, looked like: put them together again.
  std::vector<NamedRows> samples(good.size());
  std::vector<char> other(good.size(), 0);  // a sample without any field is one too, and has nothing in the columns
  for (auto& [row, sample] : others_)
    if (const auto at = std::lower_bound(good.begin(), good.end(), row); at != good.end() && *at == row) {
      samples[static_cast<size_t>(at - good.begin())] = std::move(sample);
      other[static_cast<size_t>(at - good.begin())] = 1;
    }
  for (size_t i = 0; i < good.size(); ++i)
    if (!other[i])
      for (auto& column : columns_) samples[i].emplace_back(column.layout.name, column.batch.select(0, good[i]));
  return stack_samples(memory_, samples, good, row_name);
}

}  // namespace detail

Tensor SamplePlace::image(int64_t channels, int64_t height, int64_t width) {
  return columns_ ? columns_->image(row_, channels, height, width, taken_)
                  : detail::empty_image(channels, height, width);
}

}  // namespace levin
