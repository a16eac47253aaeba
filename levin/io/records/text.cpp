#include <algorithm>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/plain_file.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

constexpr size_t kTextBlock = size_t{1} << 20;

/// A file of lines and where each begins; the end of a line is not part of it.
class TextFile {
 public:
  explicit TextFile(const fs::path& path) : file_(path) {
    find_lines('\n');
    // A file without any \n may have the line ends of an old Mac.
    if (starts_.size() == 1) find_lines('\r');
    // Behind the last end of line there is no further line.
    if (!starts_.empty() && starts_.back() == file_.size())
      ends_with_newline_ = true;
    else
      starts_.push_back(file_.size());
  }

  int64_t size() const { return starts_.empty() ? 0 : static_cast<int64_t>(starts_.size()) - 1; }
  const fs::path& path() const { return file_.path(); }

  std::string line(int64_t index) const {
    const auto i = static_cast<size_t>(index);
    const bool has_newline = i + 2 < starts_.size() || ends_with_newline_;
    std::string text(starts_[i + 1] - starts_[i] - (has_newline ? 1 : 0), '\0');
    file_.read(starts_[i], std::as_writable_bytes(std::span(text)));
    if (has_newline && text.ends_with('\r')) text.pop_back();
    return text;
  }

 private:
  void find_lines(char end_of_line) {
    starts_.clear();
    std::string block(kTextBlock, '\0');
    for (uint64_t at = 0; at < file_.size();) {
      const auto count = std::min<uint64_t>(block.size(), file_.size() - at);
      file_.read(at, std::as_writable_bytes(std::span(block).first(count)));
      if (at == 0) starts_.push_back(0);
      const char* end = block.data() + count;
      for (const char* c = block.data();
           (c = static_cast<const char*>(std::memchr(c, end_of_line, static_cast<size_t>(end - c)))) != nullptr; ++c)
        starts_.push_back(at + static_cast<uint64_t>(c - block.data()) + 1);
      at += count;
    }
  }

  PlainFile file_;
  std::vector<uint64_t> starts_;  // and the end of the last
  bool ends_with_newline_ = false;
};

class TextRecords final : public RecordReader {
 public:
  explicit TextRecords(const Paths& paths) {
    for (const auto& path : paths) {
      firsts_.push_back(size_);
      size_ += files_.emplace_back(path).size();
    }
  }

  std::string_view format() const override { return "text"; }
  int64_t size() const override { return size_; }
  std::string where(int64_t index) const override {
    const auto [file, line] = place(index);
    return fmt::format("{}:{}", files_[file].path().string(), line + 1);
  }
  Record read(int64_t index) const override {
    const auto [file, line] = place(index);
    Record record;
    record.key = numbered_key(index);
    record.set("text", files_[file].line(line));
    return record;
  }

 private:
  std::pair<size_t, int64_t> place(int64_t index) const {
    check_index(index, size_, "text", files_.front().path());
    const auto file =
        static_cast<size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), index) - firsts_.begin()) - 1;
    return {file, index - firsts_[file]};
  }

  std::vector<TextFile> files_;
  std::vector<int64_t> firsts_;
  int64_t size_ = 0;
};

class TextWriter final : public RecordWriter {
 public:
  TextWriter(const fs::path& path, const RecordWriterOptions& options) {
    check_destination(path, OutputKind::kFile, options);
    file_.emplace(path);
  }

  void write(const Record& record) override {
    LEVIN_CHECK(file_, "[text] the file was closed, nothing can be written to it");
    const FieldValue* value = record.find("text");
    const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
    LEVIN_CHECK(text != nullptr, "[text] record \"", record.key, "\" has no field \"text\"");
    for (const auto& [name, other] : record.fields)
      LEVIN_CHECK(name == "text", "[text] record \"", record.key, "\" has a field \"", name,
                  "\" beside its text; a line holds text alone");
    LEVIN_CHECK(text->find('\n') == std::string::npos && !text->ends_with('\r'), "[text] the text of record \"",
                record.key, "\" has an end of line in it; a record is one line");
    file_->write(*text);
    file_->write("\n");
  }

  void close() override {
    if (file_) file_->commit();
    file_.reset();
  }

 private:
  std::optional<AtomicFile> file_;
};

std::unique_ptr<RecordReader> open_text(const Paths& paths, const RecordOptions&) {
  LEVIN_CHECK(!paths.empty(), "[text] no file was named");
  return std::make_unique<TextRecords>(paths);
}

std::unique_ptr<RecordWriter> create_text(const fs::path& path, const RecordWriterOptions& options) {
  return std::make_unique<TextWriter>(path, options);
}

}  // namespace

RecordFormat text_format() {
  return {.name = "text",
          .ends = {".txt", ".text", ".txt.gz"},
          .open = open_text,
          .create = create_text,
          .many = true,
          .only = "text"};
}

}  // namespace levin::detail
