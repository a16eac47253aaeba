#include "levin/io/records/cifar/cifar.h"

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

/// One of the layouts in which the data sets are handed out.
struct CifarLayout {
  int kind;  // 10 or 100
  bool pickled;
  const char* folder;  // what the archive unpacks to
  const char* train;   // {}: 1, 2, and so on
  const char* test;
  const char* names;
};

constexpr std::array kCifarLayouts{
    CifarLayout{10, false, "cifar-10-batches-bin", "data_batch_{}.bin", "test_batch.bin", "batches.meta.txt"},
    CifarLayout{10, true, "cifar-10-batches-py", "data_batch_{}", "test_batch", "batches.meta"},
    CifarLayout{100, false, "cifar-100-binary", "train.bin", "test.bin", "fine_label_names.txt"},
    CifarLayout{100, true, "cifar-100-python", "train", "test", "meta"},
};

std::vector<fs::path> files_of(const CifarLayout& layout, const fs::path& folder, const std::string& split) {
  const char* pattern = split == "test" ? layout.test : layout.train;
  const bool numbered = std::string_view(pattern).find('{') != std::string_view::npos;
  std::vector<fs::path> files;
  std::error_code error;
  for (int i = 1; numbered || i == 1; ++i) {
    auto path = folder / fmt::format(fmt::runtime(pattern), i);
    if (!fs::is_regular_file(path, error)) break;
    files.push_back(std::move(path));
  }
  return files;
}

/// The layout in this folder or in the folder that the archive made below it.
std::optional<std::pair<CifarLayout, fs::path>> find_layout(const fs::path& folder, int kind) {
  std::error_code error;
  for (const auto& layout : kCifarLayouts)
    for (const auto& place : {folder, folder / layout.folder}) {
      if (kind != 0 && layout.kind != kind) continue;
      auto files = files_of(layout, place, "train");
      if (files.empty()) files = files_of(layout, place, "test");
      if (files.empty()) continue;
      // "train" and "train.bin" could be anything: without the names beside them, and unasked, the size has to fit.
      const bool is_told = layout.kind == 10 || kind == 100 || fs::exists(place / layout.names, error);
      if (is_told || (!layout.pickled && FileReader(files.front()).size() % (2 + kCifarBytes) == 0))
        return std::pair(layout, place);
    }
  return std::nullopt;
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::exists(path, error)) return names;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  return names;
}

class Cifar final : public RecordReader {
 public:
  Cifar(int kind, bool pickled, const std::vector<fs::path>& files, std::vector<std::string> classes)
      : kind_(kind), classes_(std::move(classes)) {
    const int64_t labels = kind_ == 10 ? 1 : 2;
    for (const auto& path : files) {
      Part& part = parts_.emplace_back();
      part.path = path;
      part.first = size_;
      if (pickled) {
        part.batch = read_cifar_pickle(path);
        LEVIN_CHECK(kind_ == 10 || part.batch.coarse_labels.size() == part.batch.labels.size(), "[cifar100] \"",
                    path.string(), "\" has ", part.batch.labels.size(), " fine and ", part.batch.coarse_labels.size(),
                    " coarse labels");
        size_ += part.batch.pixels.size(0);
      } else {
        const auto stride = static_cast<uint64_t>(labels + kCifarBytes);
        part.file.emplace(path);
        LEVIN_CHECK(part.file->size() % stride == 0, "[", format(), "] \"", path.string(), "\" has ", part.file->size(),
                    " bytes, which is no multiple of ", stride, ", the size of a record");
        size_ += static_cast<int64_t>(part.file->size() / stride);
      }
    }
  }

  std::string_view format() const override { return kind_ == 10 ? "cifar10" : "cifar100"; }
  int64_t size() const override { return size_; }
  std::vector<std::string> classes() const override { return classes_; }
  std::string where(int64_t index) const override {
    const Part& part = part_of(index);
    return fmt::format("{}: record {}", part.path.string(), index - part.first);
  }

  Record read(int64_t index) const override {
    const Part& part = part_of(index);
    Record record;
    record.key = numbered_key(index);
    const auto labels = static_cast<size_t>(kind_ == 10 ? 1 : 2);
    std::array<uint8_t, 2 + kCifarBytes> bytes{};
    const uint8_t* planes = bytes.data() + labels;
    int64_t label = 0, coarse = 0;
    if (part.file) {
      const auto whole = std::as_writable_bytes(std::span(bytes).first(labels + kCifarBytes));
      part.file->read(static_cast<uint64_t>(index - part.first) * whole.size(), whole);
      label = bytes[labels - 1];
      coarse = bytes[0];
    } else {
      const auto row = index - part.first;
      planes = part.batch.pixels.const_data_ptr<uint8_t>() + row * kCifarBytes;
      label = part.batch.labels[static_cast<size_t>(row)];
      if (kind_ == 100) coarse = part.batch.coarse_labels[static_cast<size_t>(row)];
    }
    LEVIN_CHECK(label >= 0 && label < kind_, "[", format(), "] ", where(index), " has the label ", label, " (0 to ",
                kind_ - 1, " are allowed)");
    record.set("image", interleaved(planes));
    record.set("label", std::vector<int64_t>{label});
    if (kind_ == 100) record.set("coarse_label", std::vector<int64_t>{coarse});
    return record;
  }

 private:
  struct Part {
    fs::path path;
    int64_t first = 0;
    std::optional<FileReader> file;
    CifarBatch batch;
  };

  const Part& part_of(int64_t index) const {
    check_index(index, size_, format(), parts_.front().path.parent_path());
    const auto after = std::upper_bound(parts_.begin(), parts_.end(), index,
                                        [](int64_t value, const Part& part) { return value < part.first; });
    return *std::prev(after);
  }

  static Tensor interleaved(const uint8_t* planes) {
    constexpr int64_t kPlane = kCifarSide * kCifarSide;
    Tensor image = at::empty({kCifarSide, kCifarSide, 3}, at::kByte);
    auto* to = image.mutable_data_ptr<uint8_t>();
    for (int64_t i = 0; i < kPlane; ++i)
      for (int64_t c = 0; c < 3; ++c) *to++ = planes[c * kPlane + i];
    return image;
  }

  int kind_;
  std::vector<std::string> classes_;
  std::vector<Part> parts_;
  int64_t size_ = 0;
};

int cifar_kind(const std::string& format) {
  return format == "cifar10" ? 10 : format == "cifar100" ? 100 : 0;
}

/// What single .bin files are: both kinds of records are plain bytes, their sizes tell them apart.
int kind_by_size(const Paths& paths) {
  const auto fits = [&](uint64_t stride) {
    return std::all_of(paths.begin(), paths.end(),
                       [&](const fs::path& path) { return FileReader(path).size() % stride == 0; });
  };
  return !fits(1 + kCifarBytes) && fits(2 + kCifarBytes) ? 100 : 10;
}

std::unique_ptr<RecordReader> open_cifar(const Paths& paths, const RecordOptions& options) {
  const int kind = cifar_kind(options.format);
  std::error_code error;
  LEVIN_CHECK(!paths.empty(), "[cifar] no file was named");
  if (!fs::is_directory(paths.front(), error)) {
    const bool pickled = paths.front().extension() != ".bin";
    const int found = kind != 0 ? kind : pickled ? 10 : kind_by_size(paths);
    auto names =
        pickled ? std::vector<std::string>{}
                : lines_of(paths.front().parent_path() / (found == 10 ? "batches.meta.txt" : "fine_label_names.txt"));
    return std::make_unique<Cifar>(found, pickled, paths, std::move(names));
  }
  LEVIN_CHECK(paths.size() == 1, "[cifar] one folder is read at a time, ", paths.size(), " were named");
  const auto layout = find_layout(paths.front(), kind);
  LEVIN_CHECK(layout, "[", kind == 0 ? "cifar" : options.format, "] \"", paths.front().string(),
              "\" has no CIFAR files (data_batch_1.bin, data_batch_1, train.bin or train, with their names)");
  const auto& [found, folder] = *layout;
  const auto files = files_of(found, folder, options.split);
  if (options.split != "train" && options.split != "test") {
    const std::vector<std::string> known{"train", "test"};
    fail_unknown("cifar", "split", options.split, known);
  }
  LEVIN_CHECK(!files.empty(), "[cifar", found.kind, "] \"", folder.string(), "\" lacks the files of split \"",
              options.split, "\": ", options.split == "test" ? found.test : fmt::format(fmt::runtime(found.train), 1));
  std::vector<std::string> names;
  if (!found.pickled)
    names = lines_of(folder / found.names);
  else if (fs::exists(folder / found.names, error))
    names = read_cifar_names(folder / found.names, found.kind == 10 ? "label_names" : "fine_label_names");
  return std::make_unique<Cifar>(found.kind, found.pickled, files, std::move(names));
}

RecordFormat format_of_cifar(std::string_view name, bool (*matches_folder)(const fs::path&)) {
  return {.name = name,
          .matches_folder = matches_folder,
          .open = open_cifar,
          .create = create_cifar,
          .only = "image",
          .holds_encoded = false,
          .mode = ImageMode::kRgb};
}

}  // namespace

std::string_view cifar_in(const fs::path& folder) {
  const auto layout = find_layout(folder, 0);
  return !layout ? "" : layout->first.kind == 10 ? "cifar10" : "cifar100";
}

RecordFormat cifar10_format() {
  return format_of_cifar("cifar10", [](const fs::path& folder) { return cifar_in(folder) == "cifar10"; });
}

RecordFormat cifar100_format() {
  return format_of_cifar("cifar100", [](const fs::path& folder) { return cifar_in(folder) == "cifar100"; });
}

}  // namespace levin::detail
