#include <algorithm>

#include <ATen/ops/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/core/words.h"
#include "levin/data/batch_memory.h"

namespace levin::detail {
namespace {

std::string field_text(const std::string& name) {
  return name.empty() ? std::string("the tensor") : concat("field \"", name, "\"");
}

std::string names_of(const NamedRows& sample) {
  std::vector<std::string> names;
  for (const auto& field : sample) names.push_back(field.first.empty() ? "one tensor" : field.first);
  return names.empty() ? std::string("none") : join(names);
}

const Tensor* find_field(const NamedRows& sample, const std::string& name, size_t likely) {
  if (likely < sample.size() && sample[likely].first == name) return &sample[likely].second;
  for (const auto& [other, tensor] : sample)
    if (other == name) return &tensor;
  return nullptr;
}

/// The common type of all rows, as torch.stack has it: int64 with a float gives a float.
c10::ScalarType common_dtype(const std::vector<Tensor>& column, const std::string& field,
                             const std::function<std::string(size_t)>& name) {
  auto dtype = column[0].scalar_type();
  for (size_t i = 1; i < column.size(); ++i) {
    const auto other = column[i].scalar_type();
    if (other == dtype) continue;
    try {
      dtype = c10::promoteTypes(dtype, other);
    } catch (const c10::Error&) {
      fail(concat("[data] ", name(i), ": ", field_text(field), " is ", other, ", but ", dtype,
                  " in the samples before it, and torch has no common type of the two"));
    }
  }
  return dtype;
}

}  // namespace

NamedRows stack_samples(BatchMemory& memory, const std::vector<NamedRows>& samples, std::span<const int64_t> rows,
                        const RowName& row_name) {
  if (samples.empty()) return {};
  const auto& first = samples[0];
  const auto name = [&](size_t sample) { return row_name(rows[sample]); };
  for (size_t i = 1; i < samples.size(); ++i) {
    std::vector<std::string> missing, additional;
    for (size_t at = 0; at < first.size(); ++at)
      if (!find_field(samples[i], first[at].first, at))
        missing.push_back(concat("\"", first[at].first, "\" is missing"));
    for (size_t at = 0; at < samples[i].size(); ++at)
      if (!find_field(first, samples[i][at].first, at))
        additional.push_back(concat("\"", samples[i][at].first, "\" is additional"));
    missing.insert(missing.end(), additional.begin(), additional.end());
    LEVIN_CHECK(missing.empty(), "[data] ", name(i), " has the fields ", names_of(samples[i]), ", ", name(0),
                " of the same batch has ", names_of(first), " (", join(missing, ", "), ")");
  }
  NamedRows stacked;
  std::vector<ColumnLayout> layouts;
  for (size_t at = 0; at < first.size(); ++at) {
    const auto& field = first[at].first;
    std::vector<Tensor> column;
    for (const auto& sample : samples) column.push_back(*find_field(sample, field, at));
    const Tensor& top = column[0];
    for (size_t i = 1; i < column.size(); ++i) {
      LEVIN_CHECK(column[i].defined() == top.defined(), "[data] ", name(top.defined() ? i : 0), ": ", field_text(field),
                  " is an undefined tensor, that of ", name(top.defined() ? 0 : i), " is not");
      if (!top.defined()) continue;
      LEVIN_CHECK(column[i].sizes() == top.sizes(), "[data] samples of one batch differ in shape: ", top.sizes(),
                  " and ", column[i].sizes(), " (", field_text(field), " of ", name(0), " and of ", name(i),
                  "); bring them to one size in get(), pad them in a collate function, or use batch_size 1");
      LEVIN_CHECK(column[i].device() == top.device() && column[i].layout() == top.layout(), "[data] ", name(i), ": ",
                  field_text(field), " is ", column[i].layout(), " on ", column[i].device(), ", that of ", name(0), " ",
                  top.layout(), " on ", top.device());
    }
    if (!top.defined()) {
      stacked.emplace_back(field, Tensor());
      continue;
    }
    const auto dtype = common_dtype(column, field, name);
    if (is_plain(top)) {
      // at::stack makes a contiguous result; a batch of channels-last images stays one.
      auto layout = ColumnLayout::of(field, top, dtype);
      auto together = memory.take(layout, static_cast<int64_t>(column.size()));
      for (size_t i = 0; i < column.size(); ++i) together.select(0, static_cast<int64_t>(i)).copy_(column[i]);
      stacked.emplace_back(field, std::move(together));
      layouts.push_back(std::move(layout));
    } else {
      for (auto& tensor : column) tensor = tensor.to(dtype);
      try {
        stacked.emplace_back(field, at::stack(column));
      } catch (const c10::Error& error) {
        fail(concat("[data] the batch of ", name(0), ": ", field_text(field), " cannot be stacked: ", one_line(error)));
      }
    }
  }
  memory.remember(layouts.size() == stacked.size() ? std::move(layouts) : std::vector<ColumnLayout>{});
  return stacked;
}

}  // namespace levin::detail
