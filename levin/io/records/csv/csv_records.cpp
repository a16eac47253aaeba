#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/records/csv/csv_rows.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"

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
    // Digits beyond int64 stay text: a double would change them.
    numbers = numbers && (integers || (csv_number(cell) && (csv_integer(cell) || !csv_digits(cell))));
    images = images && image_codec_by_path(cell);
  }
  void decide() {
    if (any && numbers) kind = integers && !holes ? CsvKind::kInteger : CsvKind::kFloat;
  }
};

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_tab_separated(const fs::path& path) {
  const auto name = lower_case(path.filename().string());
  return name.ends_with(".tsv") || name.ends_with(".tsv.gz");
}

class CsvRecords final : public RecordReader {
 public:
  explicit CsvRecords(const Paths& paths) : separator_(is_tab_separated(paths.front()) ? '\t' : ',') {
    for (const auto& path : paths) files_.emplace_back(path);
    for (uint32_t file = 0; file < files_.size(); ++file) index(file);
    LEVIN_CHECK(!other_separators_ || separator_hint().empty(), "[csv] \"", files_.front().path().string(),
                "\" has one column, \"", shown(columns_[0].name), "\"", separator_hint());
    for (auto& column : columns_) column.decide();
    if (label_ && label_->kind == CsvKind::kText) number_classes();
    name_fields();
  }

  std::string_view format() const override { return "csv"; }
  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  std::vector<std::string> classes() const override { return classes_; }
  std::string where(int64_t index) const override {
    check_index(index, size(), "csv", files_.front().path());
    const auto& row = rows_[static_cast<size_t>(index)];
    return place(row.file, row.number);
  }

  Record read(int64_t index) const override {
    check_index(index, size(), "csv", files_.front().path());
    const auto cells = cells_of(index);
    LEVIN_CHECK(cells.size() == columns_.size(), "[csv] ", where(index), " has changed since the file was opened");
    Record record;
    record.key = numbered_key(index);
    for (size_t i = 0; i < columns_.size(); ++i) set_field(record, columns_[i], cells[i], index);
    return record;
  }

 private:
  struct Row {
    uint64_t begin;
    uint32_t bytes;
    uint32_t file;
    int64_t number;
  };

  std::string place(uint32_t file, int64_t row) const {
    return fmt::format("{}: row {}", files_[file].path().string(), row);
  }

  /// Goes through a file once: where its rows are, and what all cells of a column agree with.
  void index(uint32_t file) {
    const auto& path = files_[file].path();
    CsvRows rows(files_[file]);
    LEVIN_CHECK(rows.next(), "[csv] \"", path.string(), "\" has no rows");
    auto cells = parse_csv_row(rows.row(), separator_, place(file, 1));
    // A first row of numbers alone is no header.
    const bool has_header = !std::all_of(cells.begin(), cells.end(), [](const auto& cell) { return csv_number(cell); });
    for (size_t i = 0; i < cells.size(); ++i)
      if (!has_header || cells[i].empty()) cells[i] = fmt::format("column_{}", i);
    if (file == 0) add_columns(cells);
    for (size_t i = 0; i < std::max(cells.size(), columns_.size()); ++i)
      LEVIN_CHECK(i < cells.size() && i < columns_.size() && cells[i] == columns_[i].name, "[csv] \"", path.string(),
                  "\" has other columns than \"", files_.front().path().string(), "\"");
    for (bool more = has_header ? rows.next() : true; more; more = rows.next()) {
      cells = parse_csv_row(rows.row(), separator_, place(file, rows.number()));
      LEVIN_CHECK(cells.size() == columns_.size(), "[csv] ", place(file, rows.number()), " has ", cells.size(),
                  " cells, the first row has ", columns_.size(), separator_hint());
      other_separators_ =
          other_separators_ && cells.size() == 1 && count_other(cells[0]) == count_other(columns_[0].name);
      for (size_t i = 0; i < cells.size(); ++i) columns_[i].see(cells[i]);
      if (label_ && !label_->numbers) distinct_.insert(cells[column_number(*label_)]);
      if (classes_column_ && classes_column_ != label_) pair_class(cells);
      rows_.push_back({rows.begin(), static_cast<uint32_t>(rows.row().size()), file, rows.number()});
    }
  }

  static int64_t count_other(std::string_view cell) {
    return std::count(cell.begin(), cell.end(), ';') + std::count(cell.begin(), cell.end(), '\t');
  }

  /// What is wrong where the only column has other separators in its name.
  std::string separator_hint() const {
    if (columns_.size() != 1 || count_other(columns_[0].name) == 0) return {};
    const bool tab = columns_[0].name.find('\t') != std::string::npos;
    return tab ? "; cells are separated by tabs in a file whose name ends with .tsv"
               : "; cells are separated by \",\", and the first row has \";\"";
  }

  void add_columns(const std::vector<std::string>& names) {
    for (const auto& name : names) {
      LEVIN_CHECK(std::count(names.begin(), names.end(), name) == 1, "[csv] \"", files_.front().path().string(),
                  "\" has two columns of the name \"", name, "\"");
      columns_.emplace_back().name = name;
    }
    classes_column_ = find_named("class");
    label_ = find_named("label") ? find_named("label") : classes_column_;
  }

  std::vector<std::string> cells_of(int64_t index) const {
    const auto& at = rows_[static_cast<size_t>(index)];
    std::string row(at.bytes, '\0');
    files_[at.file].read(at.begin, std::as_writable_bytes(std::span(row)));
    return parse_csv_row(row, separator_, where(index));
  }

  size_t column_number(const CsvColumn& column) const { return static_cast<size_t>(&column - columns_.data()); }

  CsvColumn* find_named(std::string_view name) {
    for (auto& column : columns_)
      if (lower_case(column.name) == name) return &column;
    return nullptr;
  }

  /// "label" with the number and "class" with its name, as create_csv writes them.
  void pair_class(const std::vector<std::string>& cells) {
    const auto number = csv_integer(cells[column_number(*label_)]);
    const auto& text = cells[column_number(*classes_column_)];
    const bool fits = number && *number >= 0 && *number < int64_t{1} << 20;
    pairs_agree_ = pairs_agree_ && fits && pairs_.emplace(*number, text).first->second == text;
  }

  void number_classes() {
    // Cells before the first one that is no number are not among the distinct ones yet.
    for (int64_t i = 0; i < size(); ++i) {
      auto cell = std::move(cells_of(i)[column_number(*label_)]);
      if (!cell.empty() && !csv_number(cell)) break;
      distinct_.insert(std::move(cell));
    }
    classes_.assign(distinct_.begin(), distinct_.end());
    for (size_t i = 0; i < classes_.size(); ++i) class_numbers_[classes_[i]] = static_cast<int64_t>(i);
    label_->kind = CsvKind::kClass;
  }

  void name_fields() {
    if (classes_column_ && classes_column_ != label_ && classes_column_->kind == CsvKind::kText && pairs_agree_ &&
        !pairs_.empty()) {
      classes_column_->kind = CsvKind::kDropped;
      classes_.resize(static_cast<size_t>(pairs_.rbegin()->first) + 1);
      for (const auto& [number, name] : pairs_) classes_[static_cast<size_t>(number)] = name;
    }
    if (label_) label_->name = "label";
    for (const auto name : {"image", "path", "file", "filename"}) {
      CsvColumn* column = find_named(name);
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
        return record.set(column.name,
                          std::vector<double>{csv_number(cell).value_or(std::numeric_limits<double>::quiet_NaN())});
      case CsvKind::kClass: {
        const auto number = class_numbers_.find(cell);
        LEVIN_CHECK(number != class_numbers_.end(), "[csv] ", where(index), " has changed since the file was opened");
        return record.set(column.name, std::vector<int64_t>{number->second});
      }
      case CsvKind::kImage:
        return record.set(column.name,
                          read_file(files_[rows_[static_cast<size_t>(index)].file].path().parent_path() / cell));
      case CsvKind::kText:
        return record.set(column.name, cell);
      case CsvKind::kDropped:
        return;
    }
  }

  char separator_;
  /// Every row so far has one cell, with as many ";" or tabs as the first row.
  bool other_separators_ = true;
  std::vector<PlainFile> files_;
  std::vector<CsvColumn> columns_;
  CsvColumn* label_ = nullptr;
  CsvColumn* classes_column_ = nullptr;
  std::vector<Row> rows_;
  std::vector<std::string> classes_;
  std::set<std::string> distinct_;
  std::map<std::string, int64_t, std::less<>> class_numbers_;
  std::map<int64_t, std::string> pairs_;
  bool pairs_agree_ = true;
};

std::unique_ptr<RecordReader> open_csv(const Paths& paths, const RecordOptions&) {
  LEVIN_CHECK(!paths.empty(), "[csv] no file was named");
  return std::make_unique<CsvRecords>(paths);
}

}  // namespace

RecordFormat csv_format() {
  return {.name = "csv",
          .ends = {".csv", ".tsv", ".csv.gz", ".tsv.gz"},
          .open = open_csv,
          .create = create_csv,
          .many = true,
          .holds_raw = false};
}

}  // namespace levin::detail
