#include <algorithm>
#include <array>
#include <optional>

#include <hdf5.h>

#include "levin/core/regular_file.h"
#include "levin/core/words.h"
#include "levin/io/records/hdf5/hdf5_column.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

struct Hdf5Name {
  std::string_view dataset, field;
};
/// The names that people give; of several for one field the first is it.
constexpr std::array<Hdf5Name, 16> kHdf5Names{{{"images", "image"},
                                               {"image", "image"},
                                               {"data", "image"},
                                               {"x", "image"},
                                               {"X", "image"},
                                               {"labels", "label"},
                                               {"label", "label"},
                                               {"y", "label"},
                                               {"Y", "label"},
                                               {"targets", "label"},
                                               {"target", "label"},
                                               {"text", "text"},
                                               {"texts", "text"},
                                               {"keys", "key"},
                                               {"key", "key"},
                                               {"classes", "classes"}}};

class Hdf5Reader : public RecordReader {
 public:
  Hdf5Reader(const fs::path& path, const RecordOptions& options) : raw_(path) {
    const Hdf5Lock lock;
    const PinnedFile pinned(path);
    const auto name = pinned.name();
    file_ = Hdf5Id(check_hdf5(::H5Fopen(name.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), path, "open"), ::H5Fclose);
    // A file with parts has a group for each.
    const bool parts = kind_of(file_, options.split) == H5I_GROUP;
    const Hdf5Id group(check_hdf5(::H5Gopen2(file_, parts ? options.split.c_str() : "/", H5P_DEFAULT), path, "read"),
                       ::H5Gclose);
    try {
      open_columns(group);
    } catch (...) {
      columns_.clear();
      keys_.reset();
      throw;
    }
    // Nothing is asked of the library again, so nothing of it is kept.
    const bool needed = std::any_of(columns_.begin(), columns_.end(), [](auto& c) { return c->needs_library(); });
    if (!needed && !(keys_ && keys_->needs_library())) file_ = Hdf5Id();
  }

  ~Hdf5Reader() override {
    const Hdf5Lock lock;
    columns_.clear();
    keys_.reset();
    file_ = Hdf5Id();
  }

  std::string_view format() const override { return "hdf5"; }
  int64_t size() const override { return size_; }
  std::vector<std::string> classes() const override { return classes_; }
  std::string where(int64_t index) const override { return concat(raw_.path().filename().string(), ": row ", index); }

  Record read(int64_t index) const override {
    LEVIN_CHECK(index >= 0 && index < size_, "[records] record ", index, " was asked for, there are ", size_);
    Record record;
    record.key = keys_ ? std::get<std::string>(keys_->read(index)) : numbered_key(index);
    record.fields.reserve(columns_.size());
    for (const auto& column : columns_) record.fields.emplace_back(column->field(), column->read(index));
    return record;
  }

 private:
  /// What a link leads to; nothing when there is no such link. An Error when it leads out of this file, or to something
  /// that the library cannot open: what cannot be read must not vanish.
  std::optional<H5I_type_t> kind_of(hid_t group, const std::string& name) const {
    if (::H5Lexists(group, name.c_str(), H5P_DEFAULT) <= 0) return std::nullopt;
    const auto what = concat("[records] \"", raw_.path().string(), "\": \"", shown(name), "\"");
    H5L_info_t link{};
    LEVIN_CHECK(::H5Lget_info(group, name.c_str(), &link, H5P_DEFAULT) >= 0, what,
                " cannot be opened: ", hdf5_reason());
    LEVIN_CHECK(link.type == H5L_TYPE_HARD || link.type == H5L_TYPE_SOFT, what, " lies in another file");
    const Hdf5Id object(::H5Oopen(group, name.c_str(), H5P_DEFAULT), ::H5Oclose);
    LEVIN_CHECK(object.good(), what, " cannot be opened: ", hdf5_reason());
    // A soft link may continue over a link to another file.
    LEVIN_CHECK(link.type == H5L_TYPE_HARD || file_name(object) == file_name(group), what, " lies in another file");
    return ::H5Iget_type(object);
  }

  static std::string file_name(hid_t object) {
    std::string name(4096, '\0');
    const auto length = ::H5Fget_name(object, name.data(), name.size());
    name.resize(static_cast<size_t>(std::clamp<ssize_t>(length, 0, static_cast<ssize_t>(name.size()))));
    return name;
  }

  /// Rows that a dataset has; nothing for single values.
  std::optional<uint64_t> rows_of(hid_t group, const std::string& name) const {
    const auto check = [&](hid_t id) {
      LEVIN_CHECK(id >= 0, "[records] \"", raw_.path().string(), "\": the dataset \"", shown(name),
                  "\" cannot be opened: ", hdf5_reason());
      return id;
    };
    const Hdf5Id dataset(check(::H5Dopen2(group, name.c_str(), H5P_DEFAULT)), ::H5Dclose);
    const Hdf5Id space(check(::H5Dget_space(dataset)), ::H5Sclose);
    std::array<hsize_t, H5S_MAX_RANK> dims{};
    if (check(::H5Sget_simple_extent_ndims(space)) < 1) return std::nullopt;
    check(::H5Sget_simple_extent_dims(space, dims.data(), nullptr));
    return dims[0];
  }

  /// Datasets beside each other; groups go into groups_.
  std::vector<std::string> dataset_names(hid_t group) {
    constexpr hsize_t kMostLinks = 10'000;
    constexpr ssize_t kLongestName = 4096;
    H5G_info_t info{};
    check_hdf5(::H5Gget_info(group, &info), raw_.path(), "read");
    LEVIN_CHECK(info.nlinks <= kMostLinks, "[records] \"", raw_.path().string(), "\" has ", info.nlinks,
                " objects beside each other; at most ", kMostLinks, " are read");
    std::vector<std::string> names;
    groups_.clear();
    for (hsize_t i = 0; i < info.nlinks; ++i) {
      const auto name_at = [&](char* into, size_t size) {
        return ::H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, into, size, H5P_DEFAULT);
      };
      const auto length = check_hdf5(name_at(nullptr, 0), raw_.path(), "read");
      LEVIN_CHECK(length <= kLongestName, "[records] \"", raw_.path().string(), "\" has a name of ", length, " bytes");
      std::string name(static_cast<size_t>(length), '\0');
      check_hdf5(name_at(name.data(), name.size() + 1), raw_.path(), "read");
      const auto kind = kind_of(group, name);
      if (kind == H5I_DATASET) names.push_back(std::move(name));
      if (kind == H5I_GROUP) groups_.push_back(std::move(name));
    }
    return names;
  }

  void open_columns(hid_t group) {
    const auto names = dataset_names(group);
    auto has = [&](std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); };
    std::vector<std::pair<std::string, std::string>> wanted;  // dataset, field
    for (const auto& [dataset, field] : kHdf5Names) {
      const bool taken = std::any_of(wanted.begin(), wanted.end(), [&](auto& w) { return w.second == field; });
      if (has(dataset) && !taken) wanted.emplace_back(dataset, field);
    }
    for (const auto& name : names) {
      const bool taken =
          std::any_of(wanted.begin(), wanted.end(), [&](auto& w) { return w.first == name || w.second == name; });
      if (!taken) wanted.emplace_back(name, name);
    }
    std::optional<uint64_t> rows;
    std::string counted;
    for (const auto& [dataset, field] : wanted) {
      const auto own = rows_of(group, dataset);
      if (!own) continue;
      if (field == "classes") {
        read_classes(group, dataset);
        continue;
      }
      if (!rows) {
        rows = own;
        counted = dataset;
      }
      const bool known = field == "label" || field == "text" || field == "key";
      LEVIN_CHECK(!known || own == rows, "[records] \"", raw_.path().string(), "\": the dataset \"", shown(dataset),
                  "\" has ", *own, " rows, \"", shown(counted), "\" has ", *rows);
      if (own != rows) continue;  // of something else
      auto column = std::make_unique<Hdf5Column>(group, dataset, field, raw_, cache_);
      if (field == "key" && column->is_text())
        keys_ = std::move(column);
      else
        columns_.push_back(std::move(column));
    }
    LEVIN_CHECK(rows, "[records] \"", raw_.path().string(),
                "\" has no dataset of records (images and labels, data and label, x and y); it has ",
                names.empty() ? "none" : shown(join(names)),
                groups_.empty() ? std::string()
                                : concat(" and the groups ", shown(join(groups_)), ", of which the split names one"));
    size_ = static_cast<int64_t>(*rows);
  }

  void read_classes(hid_t group, const std::string& dataset) {
    const Hdf5Column column(group, dataset, "classes", raw_, cache_);
    constexpr int64_t kMostClasses = 1'000'000;
    if (!column.is_text() || column.rows() > kMostClasses) return;
    for (int64_t i = 0; i < column.rows(); ++i) classes_.push_back(std::get<std::string>(column.read(i)));
  }

  FileReader raw_;
  mutable ChunkCache cache_;
  Hdf5Id file_;
  std::vector<std::unique_ptr<Hdf5Column>> columns_;
  std::unique_ptr<Hdf5Column> keys_;
  std::vector<std::string> groups_;
  std::vector<std::string> classes_;
  int64_t size_ = 0;
};

}  // namespace

bool has_hdf5() {
  return true;
}

std::unique_ptr<RecordReader> open_hdf5(const Paths& paths, const RecordOptions& options) {
  return std::make_unique<Hdf5Reader>(paths.front(), options);
}

}  // namespace levin::detail
