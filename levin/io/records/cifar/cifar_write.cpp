#include <optional>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/io/records/cifar/cifar.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kCifarPerFile = 10000;

/// The binary version. A folder gets the files of one split; a name that ends with .bin is one file.
class CifarWriter final : public RecordWriter {
 public:
  CifarWriter(const fs::path& path, const RecordWriterOptions& options)
      : kind_(options.format == "cifar100" ? 100 : 10), classes_(options.classes), split_(options.split) {
    const std::vector<std::string> known{"train", "test"};
    if (split_ != "train" && split_ != "test") fail_unknown("cifar", "split", split_, known);
    LEVIN_CHECK(classes_.size() <= static_cast<size_t>(kind_), "[cifar", kind_, "] there are ", classes_.size(),
                " classes, the format has ", kind_);
    if (path.extension() == ".bin") {
      check_destination(path, OutputKind::kFile, options);
      single_.emplace(path);
      return;
    }
    std::error_code error;
    LEVIN_CHECK(!fs::exists(path, error) || fs::is_directory(path, error), "[cifar] \"", path.string(),
                "\" is a file; name a folder, or a file that ends with .bin");
    levin::check_destination("cifar", path / file_name(), OutputKind::kFile, options.overwrite);
    staged_.emplace(fs::absolute(path));  // "." too
    folder_ = path;
  }

  void write(const Record& record) override {
    LEVIN_CHECK(single_ || staged_, "[cifar] the files were closed, nothing can be written to them");
    const Tensor pixels = pixels_of(record, "cifar", ImageMode::kRgb);
    LEVIN_CHECK(pixels.size(0) == kCifarSide && pixels.size(1) == kCifarSide, "[cifar", kind_, "] record \"",
                record.key, "\" is ", pixels.size(1), "x", pixels.size(0), " pixels; the format holds 32x32 alone");
    LEVIN_CHECK(pixels.size(2) == 3 || pixels.size(2) == 1, "[cifar", kind_, "] record \"", record.key, "\" has ",
                pixels.size(2), " channels; the format holds RGB alone");
    const auto label = label_of(record, "cifar");
    LEVIN_CHECK(label, "[cifar", kind_, "] record \"", record.key, "\" has no label");
    LEVIN_CHECK(*label >= 0 && *label < kind_, "[cifar", kind_, "] record \"", record.key, "\" has the label ", *label,
                " (0 to ", kind_ - 1, " are allowed)");
    std::string bytes;
    if (kind_ == 100) {
      const auto coarse = label_of(record, "cifar", "coarse_label");
      if (!coarse) warn_once("the records have no \"coarse_label\"; CIFAR-100 gets 0 in its place");
      LEVIN_CHECK(coarse.value_or(0) >= 0 && coarse.value_or(0) < 256, "[cifar100] record \"", record.key,
                  "\" has the coarse label ", *coarse);
      bytes.push_back(static_cast<char>(coarse.value_or(0)));
    }
    bytes.push_back(static_cast<char>(*label));
    const Tensor planes = pixels.permute({2, 0, 1}).expand({3, kCifarSide, kCifarSide}).contiguous();
    bytes.append(static_cast<const char*>(planes.const_data_ptr()), static_cast<size_t>(kCifarBytes));
    file().write(bytes);
    ++count_;
  }

  void close() override {
    if (single_) {
      single_->commit();
      single_.reset();
    }
    if (!staged_) return;
    if (file_) file_->close();
    file_.reset();
    std::string names;
    for (const auto& name : classes_) names += name + "\n";
    if (!names.empty())
      write_file(staged_->path() / (kind_ == 10 ? "batches.meta.txt" : "fine_label_names.txt"), names);
    // Readers take one batch after the other: one more of the old ones must not follow the new.
    std::error_code error;
    if (kind_ == 10 && split_ == "train")
      for (int64_t i = files_ + 1; fs::remove(folder_ / fmt::format("data_batch_{}.bin", i), error);) ++i;
    staged_->merge();
    staged_.reset();
  }

 private:
  std::string file_name() const {
    if (kind_ == 100) return split_ + ".bin";
    return split_ == "test" ? "test_batch.bin" : fmt::format("data_batch_{}.bin", files_ + 1);
  }

  FileWriter& file() {
    if (single_) return single_->writer();
    const bool full = file_ && kind_ == 10 && split_ == "train" && count_ % kCifarPerFile == 0;
    if (full) file_->close();
    if (full || !file_) {
      file_.reset();
      file_.emplace(staged_->path() / file_name());
      ++files_;
    }
    return *file_;
  }

  int kind_;
  std::vector<std::string> classes_;
  std::string split_;
  fs::path folder_;
  std::optional<AtomicFile> single_;
  std::optional<AtomicFolder> staged_;
  std::optional<FileWriter> file_;
  int64_t files_ = 0;
  int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<RecordWriter> create_cifar(const fs::path& path, const RecordWriterOptions& options) {
  return std::make_unique<CifarWriter>(path, options);
}

}  // namespace levin::detail
