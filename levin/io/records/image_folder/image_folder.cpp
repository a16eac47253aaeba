#include "levin/io/records/image_folder/image_folder.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <sstream>
#include <unordered_map>

#include <dirent.h>
#include <sys/stat.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/records/plain_fields.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

struct FolderListing {
  std::vector<std::string> folders;
  std::vector<std::string> files;
};

/// One pass; only links and file systems without d_type cost a stat per name.
FolderListing list_folder(const fs::path& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), [](DIR* d) { return ::closedir(d); });
  if (!dir) fail_file("open folder", path, errno);
  FolderListing listing;
  for (errno = 0; const dirent* entry = ::readdir(dir.get()); errno = 0) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    bool is_folder = entry->d_type == DT_DIR;
    if (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN) {
      struct stat status {};
      is_folder = ::stat((path / name).c_str(), &status) == 0 && S_ISDIR(status.st_mode);
    }
    (is_folder ? listing.folders : listing.files).emplace_back(name);
  }
  if (errno != 0) fail_file("read folder", path, errno);
  std::sort(listing.folders.begin(), listing.folders.end());
  std::sort(listing.files.begin(), listing.files.end());
  return listing;
}

bool is_image_name(const std::string& name) {
  return image_codec_by_path(name) != nullptr;
}

class ImageFolder final : public RecordReader {
 public:
  ImageFolder(fs::path root, const std::string& split) : root_(std::move(root)) {
    auto top = list_folder(root_);
    if (enter_split(top, split)) top = list_folder(root_);
    add_classes(top.folders);
    if (classes_.empty()) add_files("", -1, top.files);
    LEVIN_CHECK(size() > 0, "[folder] \"", root_.string(), "\" holds neither folders, one for each class, nor images (",
                image_extensions(), ")");
    if (others_ > 0)
      log_warning(concat(others_, " files of \"", root_.string(), "\" are left out, \"", other_, "\" for one: only ",
                         image_titles(), " are read"));
  }

  std::string_view format() const override { return "folder"; }
  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  std::vector<std::string> classes() const override { return classes_; }
  std::string where(int64_t index) const override {
    check_index(index, size(), "folder", root_);
    return path_of(files_[static_cast<size_t>(index)]).string();
  }

  Record read(int64_t index) const override {
    check_index(index, size(), "folder", root_);
    const auto& file = files_[static_cast<size_t>(index)];
    const auto& folder = folders_[file.folder];
    std::string_view name = name_of(file);
    if (!file.keeps_extension) name = name.substr(0, name.rfind('.'));
    Record record;
    if (!folder.path.empty()) record.key.append(folder.path).push_back('/');
    record.key.append(name);
    record.set("image", read_file(path_of(file)));
    if (folder.label >= 0) record.set("label", std::vector<int64_t>{folder.label});
    return record;
  }

 private:
  struct Folder {
    std::string path;  // below the root
    int64_t label;
  };
  struct File {
    uint64_t name;  // where it begins in names_
    uint32_t folder;
    bool keeps_extension;  // 1.jpg beside 1.png: the key tells them apart
  };
  using Identity = std::pair<dev_t, ino_t>;

  /// By strings: a path takes its parts apart each time that one is added.
  fs::path path_of(const File& file) const {
    std::string path = root_.native();
    for (const std::string_view part : {std::string_view(folders_[file.folder].path), name_of(file)}) {
      if (part.empty()) continue;
      if (!path.empty() && !path.ends_with('/')) path.push_back('/');
      path.append(part);
    }
    return path;
  }
  std::string_view name_of(const File& file) const { return names_.data() + file.name; }

  /// Data sets often come as train/ and test/ (or val/), each with the classes.
  bool enter_split(const FolderListing& top, const std::string& split) {
    static const std::set<std::string> kParts{"train", "test", "val", "valid", "validation"};
    const auto is_part = [](const std::string& name) { return kParts.contains(name); };
    const bool has_parts = std::find(top.folders.begin(), top.folders.end(), "train") != top.folders.end() &&
                           std::all_of(top.folders.begin(), top.folders.end(), is_part) &&
                           !list_folder(root_ / "train").folders.empty();
    std::vector<std::string> wanted{split};
    if (split == "test") wanted = {"test", "val", "valid", "validation"};
    for (const auto& name : wanted)
      if (has_parts && std::find(top.folders.begin(), top.folders.end(), name) != top.folders.end()) {
        root_ /= name;
        return true;
      }
    LEVIN_CHECK(split == "train" && !has_parts, "[folder] \"", root_.string(), "\" has no folder \"", split, "\"",
                has_parts ? concat(" (there are ", join(top.folders), ")")
                          : concat("; name the folder of the part itself, as train"));
    return false;
  }

  void add_classes(const std::vector<std::string>& names) {
    std::vector<std::string> empty;
    std::vector<std::pair<std::string, std::vector<Found>>> found;
    for (const auto& name : names) {
      std::vector<Found> inside;
      std::vector<Identity> above;
      walk(name, above, inside);
      std::sort(inside.begin(), inside.end(), [](const Found& a, const Found& b) { return a.path < b.path; });
      const bool any = std::any_of(inside.begin(), inside.end(), [](const Found& f) { return f.has_image; });
      if (!any && name.starts_with('.')) continue;  // .git, .ipynb_checkpoints
      if (!any) empty.push_back(name);
      found.emplace_back(name, std::move(inside));
    }
    LEVIN_CHECK(empty.empty(), "[folder] \"", root_.string(), "\" has class folders without an image (",
                image_extensions(), "): ", join(empty));
    for (const auto& [name, inside] : found) classes_.push_back(name);
    if (!classes_.empty()) read_class_order();
    std::unordered_map<std::string_view, int64_t> labels;
    for (size_t i = 0; i < classes_.size(); ++i) labels[classes_[i]] = static_cast<int64_t>(i);
    for (const auto& [name, inside] : found)
      for (const auto& folder : inside) add_files(folder.path, labels.at(name), folder.files);
  }

  struct Found {
    std::string path;
    std::vector<std::string> files;
    bool has_image = false;
  };

  void walk(const std::string& path, std::vector<Identity>& above, std::vector<Found>& into) const {
    struct stat status {};
    if (::stat((root_ / path).c_str(), &status) != 0) fail_file("open folder", root_ / path, errno);
    const Identity self{status.st_dev, status.st_ino};
    if (std::find(above.begin(), above.end(), self) != above.end()) return;  // a link to a folder above
    auto listing = list_folder(root_ / path);
    const bool any = std::any_of(listing.files.begin(), listing.files.end(), is_image_name);
    into.push_back({path, std::move(listing.files), any});
    above.push_back(self);
    for (const auto& name : listing.folders) walk(concat(path, "/", name), above, into);
    above.pop_back();
  }

  /// Classes whose numbers are not their places in the alphabet; written by create_image_folder.
  void read_class_order() {
    const auto path = root_ / kClassOrderFile;
    std::error_code error;
    if (!fs::exists(path, error)) return;
    std::istringstream text(read_file(path));
    std::vector<std::string> order;
    for (std::string line; std::getline(text, line);) order.push_back(line);
    for (const auto& name : classes_)
      LEVIN_CHECK(std::count(order.begin(), order.end(), name) == 1, "[folder] \"", path.string(),
                  "\" does not name the class folder \"", name, "\" once; put it right or delete the file");
    classes_ = std::move(order);
  }

  void add_files(const std::string& path, int64_t label, const std::vector<std::string>& names) {
    const auto stem = [](const std::string& name) { return std::string_view(name).substr(0, name.rfind('.')); };
    std::unordered_map<std::string_view, int> stems;
    for (const auto& name : names)
      if (is_image_name(name)) ++stems[stem(name)];
    const auto folder = static_cast<uint32_t>(folders_.size());
    folders_.push_back({path, label});
    for (const auto& name : names) {
      if (is_image_name(name)) {
        files_.push_back({names_.size(), folder, stems[stem(name)] > 1});
        names_.append(name).push_back('\0');
      } else if (is_undecoded_image(name) && others_++ == 0) {
        other_ = (fs::path(path) / name).string();
      }
    }
  }

  fs::path root_;
  std::vector<std::string> classes_;
  std::vector<Folder> folders_;
  std::vector<File> files_;
  std::string names_;  // all of them in one piece: a million files are common
  int64_t others_ = 0;
  std::string other_;
};

std::unique_ptr<RecordReader> open_image_folder(const Paths& paths, const RecordOptions& options) {
  LEVIN_CHECK(paths.size() == 1, "[folder] one folder is read at a time, ", paths.size(), " were named");
  return std::make_unique<ImageFolder>(paths.front(), options.split);
}

}  // namespace

RecordFormat image_folder_format() {
  return {.name = "folder",
          .open = open_image_folder,
          .create = create_image_folder,
          .only = "image",
          .holds_raw = false,
          .replaces_folder = true};
}

}  // namespace levin::detail
