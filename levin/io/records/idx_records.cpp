#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/records/idx.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

/// MNIST calls its test files after the ten thousand images in them.
std::vector<std::string> idx_stems(const std::string& split) {
  if (split == "train") return {"train"};
  if (split == "test") return {"t10k", "test"};
  const std::vector<std::string> known{"train", "test"};
  fail_unknown("idx", "split", split, known);
}

fs::path find_idx(const fs::path& folder, const std::string& split, const std::string& what,
                  std::initializer_list<int> dimensions) {
  std::error_code error;
  for (const auto& stem : idx_stems(split))
    for (const int dimension : dimensions)
      for (const char* mark : {"-", "."})
        for (const char* end : {"", ".gz"}) {
          auto path = folder / fmt::format("{}-{}{}idx{}-ubyte{}", stem, what, mark, dimension, end);
          if (fs::is_regular_file(path, error)) return path;
        }
  return {};
}

/// Beside "train-images-idx3-ubyte": "train-labels-idx1-ubyte"; empty when there is none.
fs::path labels_beside(const fs::path& images) {
  const auto name = images.filename().string();
  const auto at = name.find("images");
  if (at == std::string::npos) return {};
  auto rest = name.substr(at + 6);
  for (const char* dimensions : {"idx3", "idx4"})
    if (const auto found = rest.find(dimensions); found != std::string::npos) rest.replace(found, 4, "idx1");
  if (rest.ends_with(".gz")) rest.resize(rest.size() - 3);
  std::error_code error;
  for (const char* end : {"", ".gz"})
    if (auto path = images.parent_path() / concat(name.substr(0, at), "labels", rest, end);
        fs::is_regular_file(path, error))
      return path;
  return {};
}

class IdxRecords final : public RecordReader {
 public:
  IdxRecords(fs::path images, const fs::path& labels) : path_(std::move(images)), images_(read_idx(path_)) {
    LEVIN_CHECK(images_.scalar_type() == at::kByte && (images_.dim() == 3 || images_.dim() == 4), "[idx] \"",
                path_.string(), "\" holds ", images_.scalar_type(), " ", images_.sizes(),
                "; images are uint8 [N, H, W] or [N, H, W, C]");
    if (images_.dim() == 3) images_ = images_.unsqueeze(3);
    if (labels.empty()) return;
    labels_ = read_idx(labels).to(at::kLong);
    LEVIN_CHECK(labels_.dim() == 1 && labels_.size(0) == images_.size(0), "[idx] \"", labels.string(), "\" holds ",
                labels_.sizes(), " labels, \"", path_.string(), "\" ", images_.size(0), " images");
  }

  std::string_view format() const override { return "idx"; }
  int64_t size() const override { return images_.size(0); }
  std::string where(int64_t index) const override { return fmt::format("{}: image {}", path_.string(), index); }
  Record read(int64_t index) const override {
    check_index(index, size(), "idx", path_);
    Record record;
    record.key = numbered_key(index);
    record.set("image", images_[index].clone());  // what is handed out may be changed
    if (labels_.defined()) record.set("label", std::vector<int64_t>{labels_.const_data_ptr<int64_t>()[index]});
    return record;
  }

 private:
  fs::path path_;
  Tensor images_;
  Tensor labels_;
};

std::string big_endian(uint64_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift & 0xff));
  return bytes;
}

class IdxWriter final : public RecordWriter {
 public:
  IdxWriter(const fs::path& path, const RecordWriterOptions& options) : split_(options.split) {
    idx_stems(split_);  // known?
    std::error_code error;
    LEVIN_CHECK(!fs::exists(path, error) || fs::is_directory(path, error), "[idx] \"", path.string(),
                "\" is a file; IDX files are written into a folder");
    for (const auto& old : {find_idx(path, split_, "images", {3, 4}), find_idx(path, split_, "labels", {1})}) {
      if (old.empty()) continue;
      levin::check_destination("idx", old, OutputKind::kFile, options.overwrite);
      old_.push_back(old);
    }
    staged_.emplace(fs::absolute(path));  // "." too
  }

  void write(const Record& record) override {
    LEVIN_CHECK(staged_, "[idx] the files were closed, nothing can be written to them");
    const Tensor pixels = pixels_of(record, "idx").contiguous();
    if (count_ == 0) {
      shape_ = pixels.sizes().vec();
      const bool gray = shape_[2] == 1;
      file_.emplace(staged_->path() / name("images", gray ? 3 : 4));
      file_->write(std::string_view("\0\0\x08", 3));
      file_->write(std::string(1, gray ? '\3' : '\4'));
      file_->write(big_endian(0));  // how many: known at the end
      for (size_t i = 0; i < (gray ? 2 : 3); ++i) file_->write(big_endian(static_cast<uint64_t>(shape_[i])));
    }
    LEVIN_CHECK(pixels.sizes() == at::IntArrayRef(shape_), "[idx] record \"", record.key, "\" is ", pixels.sizes(),
                ", the first one was ", at::IntArrayRef(shape_), "; all images of a file have one shape");
    const auto label = label_of(record, "idx");
    LEVIN_CHECK(count_ == 0 || label.has_value() == !labels_.empty(), "[idx] record \"", record.key, "\" has ",
                label ? "a label, those before have none" : "no label, those before have one");
    LEVIN_CHECK(!label || (*label >= 0 && *label <= std::numeric_limits<int32_t>::max()), "[idx] record \"", record.key,
                "\" has the label ", *label, ", which does not fit");
    if (label) labels_.push_back(*label);
    file_->write(std::as_bytes(std::span(pixels.const_data_ptr<uint8_t>(), static_cast<size_t>(pixels.numel()))));
    ++count_;
  }

  void close() override {
    if (!staged_) return;
    LEVIN_CHECK(file_, "[idx] there is no record to write");
    LEVIN_CHECK(count_ <= std::numeric_limits<int32_t>::max(), "[idx] a file holds at most 2147483647 records");
    file_->close();
    write_count(file_->path());
    if (!labels_.empty()) write_file(staged_->path() / name("labels", 1), labels_file());
    for (const auto& old : old_) fs::remove(old);
    staged_->merge();
    staged_.reset();
  }

 private:
  std::string name(const char* what, int dimensions) const {
    return fmt::format("{}-{}-idx{}-ubyte", idx_stems(split_).front(), what, dimensions);
  }

  void write_count(const fs::path& path) const {
    const auto bytes = big_endian(static_cast<uint64_t>(count_));
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) fail_file("write", path, errno);
    const bool done = ::pwrite(fd, bytes.data(), bytes.size(), 4) == 4 && ::fsync(fd) == 0;
    const int error = errno;
    ::close(fd);
    if (!done) fail_file("write", path, error);
  }

  std::string labels_file() const {
    const bool small = *std::max_element(labels_.begin(), labels_.end()) <= 255;
    std::string bytes("\0\0", 2);
    bytes += small ? '\x08' : '\x0c';
    bytes += '\1';
    bytes += big_endian(static_cast<uint64_t>(count_));
    for (const auto label : labels_)
      if (small)
        bytes.push_back(static_cast<char>(label));
      else
        bytes += big_endian(static_cast<uint64_t>(label));
    return bytes;
  }

  std::string split_;
  std::vector<fs::path> old_;
  std::optional<AtomicFolder> staged_;
  std::optional<FileWriter> file_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> labels_;
  int64_t count_ = 0;
};

/// IDX files under the names of MNIST, or others that end so.
bool holds_idx(const fs::path& folder) {
  for (const auto* split : {"train", "test"})
    if (!find_idx(folder, split, "images", {3, 4}).empty()) return true;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (name.starts_with('.') || name.find("ubyte") == std::string::npos || entry->is_directory(error)) continue;
    const auto* format = record_format_by_end(name);
    if (format && format->name == "idx") return true;
  }
  return false;
}

bool is_idx_head(std::string_view head) {
  return head.size() > 8 && head.substr(0, 2) == std::string_view("\0\0", 2) && head[2] >= 8 && head[2] <= 14 &&
         head[3] >= 1 && head[3] <= 4;
}

std::unique_ptr<RecordReader> open_idx(const Paths& paths, const RecordOptions& options) {
  LEVIN_CHECK(paths.size() == 1, "[idx] one folder or file is read at a time, ", paths.size(), " were named");
  const auto& path = paths.front();
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::make_unique<IdxRecords>(path, labels_beside(path));
  const auto images = find_idx(path, options.split, "images", {3, 4});
  LEVIN_CHECK(!images.empty(), "[idx] \"", path.string(), "\" lacks the images of split \"", options.split,
              "\": ", idx_stems(options.split).front(), "-images-idx3-ubyte, plain or .gz");
  return std::make_unique<IdxRecords>(images, find_idx(path, options.split, "labels", {1}));
}

std::unique_ptr<RecordWriter> create_idx(const fs::path& path, const RecordWriterOptions& options) {
  return std::make_unique<IdxWriter>(path, options);
}

}  // namespace

RecordFormat idx_format() {
  return {.name = "idx",
          .ends = {"-ubyte", "-ubyte.gz", ".idx", ".idx.gz"},
          .matches = is_idx_head,
          .matches_folder = holds_idx,
          .open = open_idx,
          .create = create_idx,
          .only = "image",
          .holds_encoded = false};
}

}  // namespace levin::detail
