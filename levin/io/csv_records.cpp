#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/csv_rows.h"
#include "levin/io/plain_fields.h"
#include "levin/io/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

enum class CsvKind { kInteger, kFloat, kText, kClass, kImage, kDropped };

struct CsvColumn {
  std::string name;
  CsvKind kind = CsvKind::kText;
  // What all cells so far agree with.
  bool integers = true, numbers = true, images = true, any = false, holes = false;

  void see(const std::string& cell) {
    if (cell.empty()) {
      holes = true;
      images = false;
      return;
    }
    any = true;
    integers = integers && csv_integer(cell);
    numbers = numbers && (integers || csv_number(cell));
    images = images && is_image_name(cell);
  }
  void decide() {
    if (any && numbers) kind = integers && !holes ? CsvKind::kInteger : CsvKind::kFloat;
  }
};

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

class CsvRecords final : public RecordReader {
 public:
  explicit CsvRecords(const fs::path& path)
      : file_(path), separator_(lower_case(path.extension().string()) == ".tsv" ? '\t' : ',') {
    CsvRows rows(file_);
    LEVIN_CHECK(rows.next(), "[csv] \"", path.string(), "\" has no rows");
    auto cells = parse_csv_row(rows.row(), separator_, place(rows.number()));
    // A first row of numbers alone is no header.
    const bool has_header = !std::all_of(cells.begin(), cells.end(), [](const auto& cell) { return csv_number(cell); });
    for (size_t i = 0; i < cells.size(); ++i) {
      auto name = has_header && !cells[i].empty() ? cells[i] : fmt::format("column_{}", i);
      LEVIN_CHECK(!find(name), "[csv] \"", path.string(), "\" has two columns of the name \"", name, "\"");
      columns_.emplace_back().name = std::move(name);
    }
    first_row_ = has_header ? 2 : 1;
    const CsvColumn* named = find_named({"label"}) ? find_named({"label"}) : find_named({"class"});
    const CsvColumn* classes = find_named({"class"});
    std::set<std::string> distinct;
    for (bool more = has_header ? rows.next() : true; more; more = rows.next()) {
      cells = parse_csv_row(rows.row(), separator_, place(rows.number()));
      LEVIN_CHECK(cells.size() == columns_.size(), "[csv] ", place(rows.number()), " has ", cells.size(),
                  " cells, the first row has ", columns_.size());
      for (size_t i = 0; i < cells.size(); ++i) {
        columns_[i].see(cells[i]);
        if (&columns_[i] == named && !columns_[i].numbers) distinct.insert(cells[i]);
      }
      if (classes && classes != named) pair_class(cells, *named, *classes);
      starts_.push_back(rows.begin());
      ends_.push_back(rows.begin() + rows.row().size());
    }
    for (auto& column : columns_) column.decide();
    // Texts that came before the first one that is no number are known only now.
    if (named && named->kind == CsvKind::kText) number_classes(*named, std::move(distinct));
    name_fields(named, classes);
  }

  std::string_view format() const override { return "csv"; }
  int64_t size() const override { return static_cast<int64_t>(starts_.size()); }
  std::vector<std::string> classes() const override { return classes_; }
  std::string where(int64_t index) const override { return place(index + first_row_); }

  Record read(int64_t index) const override {
    check_index(index, size(), "csv", file_.path());
    const auto cells = cells_of(index);
    LEVIN_CHECK(cells.size() == columns_.size(), "[csv] ", where(index), " has changed since the file was opened");
    Record record;
    record.key = row_key(index);
    for (size_t i = 0; i < columns_.size(); ++i) set_field(record, columns_[i], cells[i], index);
    return record;
  }

 private:
  std::string place(int64_t row) const { return fmt::format("{}: row {}", file_.path().string(), row); }

  std::vector<std::string> cells_of(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    std::string row(ends_[i] - starts_[i], '\0');
    file_.read(starts_[i], std::as_writable_bytes(std::span(row)));
    return parse_csv_row(row, separator_, where(index));
  }

  CsvColumn* find(std::string_view name) {
    const auto found =
        std::find_if(columns_.begin(), columns_.end(), [&](const CsvColumn& column) { return column.name == name; });
    return found == columns_.end() ? nullptr : &*found;
  }
  CsvColumn* find_named(std::initializer_list<std::string_view> names) {
    for (const auto name : names)
      for (auto& column : columns_)
        if (lower_case(column.name) == name) return &column;
    return nullptr;
  }

  /// "label" with the number and "class" with its name, as create_csv writes them.
  void pair_class(const std::vector<std::string>& cells, const CsvColumn& label, const CsvColumn& name) {
    const auto number = csv_integer(cells[static_cast<size_t>(&label - columns_.data())]);
    const auto& text = cells[static_cast<size_t>(&name - columns_.data())];
    if (!number || *number < 0 || *number >= int64_t{1} << 20) return void(pairs_agree_ = false);
    pairs_agree_ = pairs_agree_ && pairs_.emplace(*number, text).first->second == text;
  }

  void number_classes(const CsvColumn& column, std::set<std::string> distinct) {
    const auto at = static_cast<size_t>(&column - columns_.data());
    for (int64_t i = 0; i < size(); ++i) {
      auto cell = std::move(cells_of(i)[at]);
      if (!csv_number(cell)) break;
      distinct.insert(std::move(cell));
    }
    classes_.assign(distinct.begin(), distinct.end());
    for (size_t i = 0; i < classes_.size(); ++i) class_numbers_[classes_[i]] = static_cast<int64_t>(i);
  }

  void name_fields(const CsvColumn* label, const CsvColumn* classes) {
    for (auto& column : columns_) {
      if (&column == label) {
        if (column.kind == CsvKind::kText) column.kind = CsvKind::kClass;
        column.name = "label";
      } else if (&column == classes && column.kind == CsvKind::kText && pairs_agree_ && !pairs_.empty()) {
        column.kind = CsvKind::kDropped;
        classes_.resize(static_cast<size_t>(pairs_.rbegin()->first) + 1);
        for (const auto& [number, name] : pairs_) classes_[static_cast<size_t>(number)] = name;
      }
    }
    for (const auto name : {"image", "path", "file", "filename"}) {
      CsvColumn* column = find_named({name});
      if (!column || column->kind != CsvKind::kText || !column->any || !column->images) continue;
      column->kind = CsvKind::kImage;
      column->name = "image";
      break;
    }
  }

  void set_field(Record& record, const CsvColumn& column, const std::string& cell, int64_t index) const {
    switch (column.kind) {
      case CsvKind::kInteger: {
        const auto value = csv_integer(cell);
        LEVIN_CHECK(value, "[csv] ", where(index), " has changed since the file was opened");
        return record.set(column.name, std::vector<int64_t>{*value});
      }
      case CsvKind::kFloat:
        return record.set(column.name, std::vector<float>{static_cast<float>(
                                           csv_number(cell).value_or(std::numeric_limits<double>::quiet_NaN()))});
      case CsvKind::kClass: {
        const auto number = class_numbers_.find(cell);
        LEVIN_CHECK(number != class_numbers_.end(), "[csv] ", where(index), " has changed since the file was opened");
        return record.set(column.name, std::vector<int64_t>{number->second});
      }
      case CsvKind::kImage:
        return record.set(column.name, read_file(file_.path().parent_path() / cell));
      case CsvKind::kText:
        return record.set(column.name, cell);
      case CsvKind::kDropped:
        return;
    }
  }

  FileReader file_;
  char separator_;
  std::vector<CsvColumn> columns_;
  std::vector<uint64_t> starts_, ends_;
  int64_t first_row_ = 2;
  std::vector<std::string> classes_;
  std::map<std::string, int64_t, std::less<>> class_numbers_;
  std::map<int64_t, std::string> pairs_;
  bool pairs_agree_ = true;
};

}  // namespace

std::unique_ptr<RecordReader> open_csv(const Paths& paths, const RecordOptions&) {
  LEVIN_CHECK(paths.size() == 1, "[csv] one file is read at a time, ", paths.size(), " were named");
  return std::make_unique<CsvRecords>(paths.front());
}

}  // namespace levin::detail
