#include "levin/data/text_dataset.h"

#include <algorithm>

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

#include "levin/core/error.h"

namespace levin {
namespace {

const std::string& text_in(const Record& record, const RecordReader& records, int64_t index) {
  const FieldValue* value = record.find("text");
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  LEVIN_CHECK(text != nullptr, "[data] sample ", index, ", ", records.where(index), ": there is no field \"text\"");
  return *text;
}

}  // namespace

TextDataset::TextDataset(const std::string& path, TextDatasetOptions options)
    : TextDataset(open_records(path, {.format = options.format}), options) {}

TextDataset::TextDataset(std::shared_ptr<const RecordReader> records, TextDatasetOptions options)
    : records_(std::move(records)), options_(std::move(options)) {
  LEVIN_CHECK(records_ != nullptr, "[data] a TextDataset needs records");
  LEVIN_CHECK(options_.length >= 0, "[data] length ", options_.length, " is not allowed (0 or more)");
}

std::string TextDataset::text(int64_t index) const {
  return text_in(records_->read(index), *records_, index);
}

Batch TextDataset::get(int64_t index) const {
  const Record record = records_->read(index);
  const auto& text = text_in(record, *records_, index);
  std::vector<int64_t> numbers;
  if (options_.encode)
    numbers = options_.encode(text);
  else
    for (const char c : text) numbers.push_back(static_cast<uint8_t>(c));
  const auto whole = static_cast<int64_t>(numbers.size());
  const auto length = options_.length > 0 ? options_.length : whole;
  const auto kept = std::min(whole, length);
  Tensor input = at::full({length}, options_.pad, at::kLong);
  std::copy_n(numbers.begin(), kept, input.mutable_data_ptr<int64_t>());
  Batch sample{{"input", input}, {"length", at::scalar_tensor(kept, at::kLong)}};
  if (const FieldValue* label = record.find("label"))
    if (const auto* number = std::get_if<std::vector<int64_t>>(label); number && number->size() == 1)
      sample.set("label", at::scalar_tensor(number->front(), at::kLong));
  return sample;
}

}  // namespace levin
