#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/records/csv/csv_rows.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

/// A table; images become files in a folder beside it ("birds.csv", "birds_images/"), and the table names them.
class CsvWriter final : public RecordWriter {
 public:
  CsvWriter(const fs::path& path, const RecordWriterOptions& options)
      : path_(path), options_(options), separator_(path.extension() == ".tsv" ? '\t' : ',') {
    check_destination(path, OutputKind::kFile, options);
    check_destination(images_path(), OutputKind::kFolder, options);
    if (options.overwrite) check_only_images(images_path(), "csv");
    file_.emplace(path);
  }

  void write(const Record& record) override {
    LEVIN_CHECK(file_, "[csv] the file was closed, nothing can be written to it");
    if (names_.empty()) begin(record);
    LEVIN_CHECK(record.fields.size() == names_.size(), "[csv] record \"", record.key, "\" has ", record.fields.size(),
                " fields, the first one had ", names_.size());
    std::string row;
    for (const auto& name : names_) {
      const FieldValue* value = record.find(name);
      LEVIN_CHECK(value != nullptr, "[csv] record \"", record.key, "\" has no field \"", name, "\", the first one had");
      row += (&name == &names_.front() ? "" : std::string(1, separator_)) +
             (name == "image" ? image_cell(record) : cell(record, name, *value));
      if (name == "label" && !options_.classes.empty()) row += separator_ + class_cell(record);
    }
    // A line without anything would not be read as a row.
    file_->write(row.empty() ? "\"\"" : row);
    file_->write("\n");
    ++count_;
  }

  void close() override {
    if (!file_) return;
    if (images_) {
      sync_files(images_->path());
      images_->commit();
    }
    file_->commit();
    file_.reset();
  }

 private:
  fs::path images_path() const { return path_.parent_path() / (path_.stem().string() + "_images"); }

  void begin(const Record& record) {
    LEVIN_CHECK(!record.fields.empty(), "[csv] record \"", record.key, "\" has no fields");
    std::string row;
    for (const auto& field : record.fields) {
      names_.push_back(field.first);
      row += (row.empty() ? "" : std::string(1, separator_)) + csv_cell(field.first, separator_);
      if (field.first == "label" && !options_.classes.empty()) row += separator_ + std::string("class");
    }
    file_->write(row + "\n");
  }

  std::string image_cell(const Record& record) {
    if (!images_) images_.emplace(images_path());
    const auto bytes = encoded_of(record, "csv");
    const auto* codec = image_codec_of(bytes);
    LEVIN_CHECK(codec, "[csv] the image of record \"", record.key, "\" is neither ", image_titles(" nor "));
    const auto name = concat(numbered_key(count_), ".", codec->extensions.front());
    write_unsynced(images_->path() / name, bytes);
    return csv_cell((images_path().filename() / name).string(), separator_);
  }

  std::string class_cell(const Record& record) const {
    const auto label = label_of(record, "csv");
    LEVIN_CHECK(*label >= 0 && *label < static_cast<int64_t>(options_.classes.size()), "[csv] label ", *label,
                " of record \"", record.key, "\" is out of range: there are ", options_.classes.size(), " classes");
    return csv_cell(options_.classes[static_cast<size_t>(*label)], separator_);
  }

  std::string cell(const Record& record, const std::string& name, const FieldValue& value) const {
    if (const auto* text = std::get_if<std::string>(&value)) return csv_cell(*text, separator_);
    const auto* whole = std::get_if<std::vector<int64_t>>(&value);
    const auto* floats = std::get_if<std::vector<float>>(&value);
    const auto* doubles = std::get_if<std::vector<double>>(&value);
    LEVIN_CHECK((whole && whole->size() == 1) || (floats && floats->size() == 1) || (doubles && doubles->size() == 1),
                "[csv] field \"", name, "\" of record \"", record.key,
                "\" is not one number or text; a cell holds no more");
    if (whole) return std::to_string(whole->front());
    auto text = floats ? fmt::format("{}", floats->front()) : fmt::format("{}", doubles->front());
    // 2 would be read as a whole number.
    if (text.find_first_of(".einf") == std::string::npos) text += ".0";
    return text;
  }

  fs::path path_;
  RecordWriterOptions options_;
  char separator_;
  std::vector<std::string> names_;
  std::optional<AtomicFile> file_;
  std::optional<AtomicFolder> images_;
  int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<RecordWriter> create_csv(const fs::path& path, const RecordWriterOptions& options) {
  return std::make_unique<CsvWriter>(path, options);
}

}  // namespace levin::detail
