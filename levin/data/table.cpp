#include "levin/data/table.h"

#include <algorithm>

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/records.h"

namespace levin {
namespace {

struct TableColumn {
  std::string name;
  bool whole = true;
  std::vector<int64_t> integers;
  std::vector<float> floats;

  Tensor tensor() const { return whole ? at::tensor(integers) : at::tensor(floats); }
};

bool is_one_number(const FieldValue& value) {
  const auto* whole = std::get_if<std::vector<int64_t>>(&value);
  const auto* floats = std::get_if<std::vector<float>>(&value);
  return (whole && whole->size() == 1) || (floats && floats->size() == 1);
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
    column.whole = std::holds_alternative<std::vector<int64_t>>(*first.find(name));
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
      LEVIN_CHECK(value != nullptr && is_one_number(*value) &&
                      std::holds_alternative<std::vector<int64_t>>(*value) == column.whole,
                  "[load_table] ", records->where(i), ": \"", column.name,
                  "\" is not one number as in the rows before");
      if (column.whole)
        column.integers.push_back(std::get<std::vector<int64_t>>(*value).front());
      else
        column.floats.push_back(std::get<std::vector<float>>(*value).front());
    }
  }
  Batch tensors;
  std::vector<Tensor> stacked;
  for (const auto& column : columns)
    if (!options.stack.empty() && column.name != "label")
      stacked.push_back(column.tensor().to(at::kFloat));
    else
      tensors[column.name] = column.tensor();
  if (!options.stack.empty()) {
    LEVIN_CHECK(!stacked.empty() && !tensors.contains(options.stack), "[load_table] there is nothing to stack as \"",
                options.stack, "\" in \"", path, "\"");
    tensors[options.stack] = at::stack(stacked, 1);
  }
  return TensorDataset(std::move(tensors));
}

}  // namespace levin
