#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/records/image_folder/image_folder.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

class ImageFolderWriter final : public RecordWriter {
 public:
  ImageFolderWriter(const fs::path& path, const RecordWriterOptions& options) : classes_(options.classes) {
    check_destination(path, OutputKind::kFolder, options);
    if (options.overwrite) check_only_images(path, "folder");
    for (const auto& name : classes_) {
      LEVIN_CHECK(is_plain_name(name), "[folder] class \"", name, "\" cannot be the name of a folder");
      LEVIN_CHECK(std::count(classes_.begin(), classes_.end(), name) == 1, "[folder] two classes have the name \"",
                  name, "\"");
    }
    folder_.emplace(path);
  }

  void write(const Record& record) override {
    LEVIN_CHECK(folder_, "[folder] the folder was closed, nothing can be written to it");
    const auto label = label_of(record, "folder");
    if (!labelled_) labelled_ = label.has_value();
    LEVIN_CHECK(*labelled_ == label.has_value(), "[folder] record \"", record.key, "\" has ",
                label ? "a label, those before have none" : "no label, those before have one");
    const auto bytes = encoded_of(record, "folder");
    const auto* codec = image_codec_of(bytes);
    LEVIN_CHECK(codec, "[folder] the image of record \"", record.key, "\" is neither ", image_titles(" nor "));

    const auto folder = label ? class_name(*label) : std::string();
    const auto name = label ? below_class(record.key, folder) : flat(record.key);
    const auto extension = codec->extensions.front();
    auto path = folder_->path() / folder / concat(name, ".", extension);
    if (const auto parent = path.parent_path(); made_.insert(parent.string()).second) make_folder(parent);
    for (int i = 2; !write_unsynced(path, bytes); ++i)
      path = folder_->path() / folder / concat(name, "-", i, ".", extension);
  }

  void close() override {
    if (!folder_) return;
    if (classes_.empty()) number_evenly();
    write_class_order();
    sync_files(folder_->path());
    folder_->commit();
    folder_.reset();
  }

 private:
  std::string class_name(int64_t label) {
    LEVIN_CHECK(label >= 0 && (classes_.empty() || label < static_cast<int64_t>(classes_.size())), "[folder] label ",
                label, " is out of range: there are ", classes_.size(), " classes");
    const auto name = classes_.empty() ? std::to_string(label) : classes_[static_cast<size_t>(label)];
    used_.emplace(label, name);
    return name;
  }

  /// The key, without a first part that says the class once more; what would lead elsewhere is made harmless.
  static std::string below_class(std::string_view key, const std::string& folder) {
    if (key.starts_with(folder + "/")) key.remove_prefix(folder.size() + 1);
    std::string name;
    std::istringstream parts{std::string(key)};
    for (std::string part; std::getline(parts, part, '/');) {
      if (!is_plain_name(part)) part = "_";
      name += (name.empty() ? "" : "/") + part;
    }
    return name.empty() ? "_" : name;
  }

  /// A folder below would be taken for a class.
  static std::string flat(std::string key) {
    for (auto& c : key)
      if (c == '/' || c == '\0') c = '_';
    return is_plain_name(key) ? key : "_";
  }

  /// "2" would stand behind "10": all numbers get as many digits as the largest.
  void number_evenly() {
    if (used_.empty()) return;
    const auto width = std::to_string(used_.rbegin()->first).size();
    for (auto& [label, name] : used_) {
      const auto even = fmt::format("{:0{}}", label, width);
      if (even != name) fs::rename(folder_->path() / name, folder_->path() / even);
      name = even;
    }
    for (int64_t label = 0; label <= used_.rbegin()->first; ++label)
      classes_.push_back(fmt::format("{:0{}}", label, width));
  }

  /// Readers number the folders by their names; a list is needed only where that gives other labels.
  void write_class_order() const {
    std::vector<std::string> sorted;
    for (const auto& [label, name] : used_) sorted.push_back(name);
    std::sort(sorted.begin(), sorted.end());
    const bool agrees = std::all_of(used_.begin(), used_.end(), [&](const auto& one) {
      return one.first < static_cast<int64_t>(sorted.size()) && sorted[static_cast<size_t>(one.first)] == one.second;
    });
    if (agrees && (used_.empty() || sorted.size() == classes_.size())) return;
    std::string text;
    for (const auto& name : classes_) text += name + "\n";
    write_unsynced(folder_->path() / kClassOrderFile, text);
  }

  std::vector<std::string> classes_;
  std::optional<AtomicFolder> folder_;
  std::optional<bool> labelled_;
  std::map<int64_t, std::string> used_;
  std::set<std::string> made_;
};

}  // namespace

std::unique_ptr<RecordWriter> create_image_folder(const fs::path& path, const RecordWriterOptions& options) {
  return std::make_unique<ImageFolderWriter>(path, options);
}

}  // namespace levin::detail
