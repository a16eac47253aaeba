#include "levin/data/table.h"

#include <algorithm>

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/records/records.h"

namespace levin {
namespace {

struct TableColumn {
  std::string name;
  FieldValue numbers;  // of all rows

  Tensor tensor() const {
    if (const auto* whole = std::get_if<std::vector<int64_t>>(&numbers)) return at::tensor(*whole);
    if (const auto* floats = std::get_if<std::vector<float>>(&numbers)) return at::tensor(*floats);
    return at::tensor(std::get<std::vector<double>>(numbers));
  }
};

/// Calls f with the list of numbers that a field is; false when it is none.
template <class V, class F>
bool with_numbers(V& value, F&& f) {
  return std::visit(
      [&](auto& list) {
        using T = std::remove_cvref_t<decltype(list)>;
        if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, Tensor>)
          return false;
        else
          return f(list);
      },
      value);
}

bool is_one_number(const FieldValue& value) {
  return with_numbers(value, [](const auto& list) { return list.size() == 1; });
}

std::vector<TableColumn> choose(const Record& first, const TableOptions& options, const std::string& path) {
  std::vector<std::string> known;
  for (const auto& [name, value] : first.fields)
    if (is_one_number(value)) known.push_back(name);
  for (const auto& name : options.columns)
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail_unknown("load_table", "column of numbers", name, known);
  LEVIN_CHECK(!known.empty(), "[load_table] \"", path, "\" has no column of numbers");
  std::vector<TableColumn> columns;
  for (const auto& name : options.columns.empty() ? known : options.columns) {
    auto& column = columns.emplace_back();
    column.name = name;
    column.numbers = *first.find(name);
    with_numbers(column.numbers, [](auto& list) {
      list.clear();
      return true;
    });
  }
  return columns;
}

}  // namespace

TensorDataset load_table(const std::string& path, const TableOptions& options) {
  const auto records = open_records(path, {.format = options.format});
  LEVIN_CHECK(records->size() > 0, "[load_table] \"", path, "\" has no rows");
  auto columns = choose(records->read(0), options, path);
  for (int64_t i = 0; i < records->size(); ++i) {
    const Record record = records->read(i);
    for (auto& column : columns) {
      const FieldValue* value = record.find(column.name);
      LEVIN_CHECK(value != nullptr && is_one_number(*value) && value->index() == column.numbers.index(),
                  "[load_table] ", records->where(i), ": \"", column.name,
                  "\" is not one number as in the rows before");
      with_numbers(column.numbers, [&](auto& list) {
        list.push_back(std::get<std::remove_cvref_t<decltype(list)>>(*value).front());
        return true;
      });
    }
  }
  Batch tensors;
  std::vector<Tensor> stacked;
  for (const auto& column : columns)
    if (!options.stack.empty() && column.name != "label")
      stacked.push_back(column.tensor().to(options.dtype));
    else
      tensors.set(column.name, column.tensor());
  if (!options.stack.empty()) {
    LEVIN_CHECK(!stacked.empty() && !tensors.contains(options.stack), "[load_table] there is nothing to stack as \"",
                options.stack, "\" in \"", path, "\"");
    tensors.set(options.stack, at::stack(stacked, 1));
  }
  return TensorDataset(std::move(tensors));
}

}  // namespace levin
