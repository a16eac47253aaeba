#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include <lmdb.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/regular_file.h"
#include "levin/core/words.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/records/lmdb/lmdb_file.h"
#include "levin/io/records/record_fields.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"
#include "levin/io/records/tar/tar_format.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

std::string_view lmdb_text(const MDB_val& value) {
  return {static_cast<const char*>(value.mv_data), value.mv_size};
}

/// Python's pickles (protocol 2 and later) begin with 0x80 and end with a full stop.
bool is_pickle(std::string_view bytes) {
  return bytes.size() > 3 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5 && bytes.back() == '.';
}

/// Samples are found by a walk over the keys; then every read is one search in the tree and one copy.
///
///   "000042.png", "000042.cls"    members of a sample, as in a tar
///   "cat/001.jpg"                 an image; its folder is its class when nothing else says so
///   "000042"                      a value of its own: an image by its bytes, else "data"
class LmdbReader : public RecordReader {
 public:
  LmdbReader(const fs::path& path, const std::string& database) : path_(path), database_(database) {
    std::error_code error;
    const bool folder = fs::is_directory(path, error);
    const auto file = folder ? path / "data.mdb" : path;
    const PinnedFile pinned(file);
    check_file(pinned.name(), file.string());
    // Threads share the environment, and no lock file is made beside data that others own.
    env_ = open_lmdb_environment(path, MDB_RDONLY | MDB_NOLOCK | MDB_NORDAHEAD | MDB_NOTLS | MDB_NOSUBDIR, 0,
                                 {.databases = 1, .opened = pinned.name()});
    check_size(file);
    auto txn = begin_lmdb(env_.get(), MDB_RDONLY, path_);
    check_lmdb(::mdb_dbi_open(txn.get(), nullptr, 0, &dbi_), path_, "read");
    choose_database(txn.get());
    index(txn.get());
    // A handle opened in a transaction that is aborted would be closed with it.
    check_lmdb(::mdb_txn_commit(txn.release()), path_, "read");
  }

  std::string_view format() const override { return "lmdb"; }
  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  std::vector<std::string> classes() const override { return classes_; }
  std::string where(int64_t index) const override {
    return path_.filename().string() + ": " + shown(key_of(at(index)));
  }

  Record read(int64_t index) const override {
    const auto& sample = at(index);
    const auto txn = begin_lmdb(env_.get(), MDB_RDONLY, path_);
    Record record;
    record.key = key_of(sample);
    record.fields.reserve(sample.members + 1);
    std::string name(record.key);
    for (uint64_t i = 0; i < sample.members; ++i) {
      const auto& [spelled, type] = extensions_[members_[sample.first_member + i]];
      name.resize(record.key.size());
      if (!spelled.empty()) name.append(1, '.').append(spelled);
      const auto value = get(txn.get(), name, index);
      LEVIN_CHECK(!is_pickle(value), "[records] \"", path_.string(), "\": ", shown(name),
                  " is a pickle of Python, which is not read; write the image and the label under keys of their own "
                  "(\"000042.png\", \"000042.cls\")");
      if (spelled.empty())
        record.fields.emplace_back(image_extension(value).empty() ? "data" : "image", std::string(value));
      else
        add_member(record, type, std::string(value), *this, index);
    }
    if (by_folder_)
      record.set("label", std::vector<int64_t>{static_cast<int64_t>(sample.label)});
    else
      find_label(record, classes_);
    return record;
  }

 private:
  struct Sample {
    uint64_t key, first_member;
    uint32_t key_size, members, label;
  };

  struct Extension {
    std::string spelled;  // as it stands in the keys; empty for keys without one
    MemberType type;
  };

  const Sample& at(int64_t index) const {
    LEVIN_CHECK(index >= 0 && index < size(), "[records] record ", index, " was asked for, there are ", size());
    return samples_[static_cast<size_t>(index)];
  }
  std::string_view key_of(const Sample& sample) const {
    return std::string_view(keys_).substr(sample.key, sample.key_size);
  }

  std::string_view get(MDB_txn* txn, const std::string& name, int64_t index) const {
    MDB_val key{name.size(), const_cast<char*>(name.data())}, value{};
    const int result = ::mdb_get(txn, dbi_, &key, &value);
    LEVIN_CHECK(result == MDB_SUCCESS, "[records] cannot read ", where(index), ": ", ::mdb_strerror(result));
    return lmdb_text(value);
  }

  static void check_file(const std::string& name, const std::string& file) {
    const FileReader reader(name);
    std::array<char, 20> head{};
    LEVIN_CHECK(reader.size() >= head.size(), "[records] \"", file, "\" is no LMDB database: it has ", reader.size(),
                " bytes");
    reader.read(0, std::as_writable_bytes(std::span(head)));
    LEVIN_CHECK(std::string_view(head.data() + 16, 4) == "\xde\xc0\xef\xbe", "[records] \"", file,
                "\" is no LMDB database, or of a machine of other byte order");
  }

  /// The library maps the file: a page that is not there would end the process.
  void check_size(const fs::path& file) {
    MDB_envinfo info{};
    MDB_stat stat{};
    check_lmdb(::mdb_env_info(env_.get(), &info), path_, "read");
    check_lmdb(::mdb_env_stat(env_.get(), &stat), path_, "read");
    const uint64_t have = fs::file_size(file), pages = info.me_last_pgno + 1;
    pages_ = pages;
    LEVIN_CHECK(pages <= have / stat.ms_psize, "[records] \"", file.string(), "\" is truncated: it declares ", pages,
                " pages of ", stat.ms_psize, " bytes, there are ", have / stat.ms_psize);
  }

  /// Whether a value can be what LMDB keeps of a database: padding, flags, depth, three numbers of pages, entries,
  /// root.
  bool may_be_database(std::string_view value) const {
    struct Entry {
      uint32_t padding;
      uint16_t flags, depth;
      uint64_t branches, leaves, overflows, entries, root;
    } entry{};
    if (value.size() != sizeof(entry)) return false;
    std::memcpy(&entry, value.data(), sizeof(entry));
    const auto fits = [&](uint64_t pages) { return pages <= pages_; };
    return entry.depth <= 64 && fits(entry.branches) && fits(entry.leaves) && fits(entry.overflows) &&
           (fits(entry.root) || entry.root == ~uint64_t{0});
  }

  /// Names of the databases within this one: the main database has an entry for each, of which the library can tell
  /// whether it is one.
  std::vector<std::string> databases(MDB_txn* txn) const {
    MDB_cursor* raw = nullptr;
    check_lmdb(::mdb_cursor_open(txn, dbi_, &raw), path_, "read");
    const std::unique_ptr<MDB_cursor, void (*)(MDB_cursor*)> cursor(raw, ::mdb_cursor_close);
    MDB_val key{}, value{};
    std::vector<std::string> names;
    for (int result = ::mdb_cursor_get(raw, &key, &value, MDB_FIRST); result == MDB_SUCCESS;
         result = ::mdb_cursor_get(raw, &key, &value, MDB_NEXT)) {
      const std::string name(lmdb_text(key));
      if (name.empty() || name.find('\0') != std::string::npos || !may_be_database(lmdb_text(value))) continue;
      // In a transaction of its own, which closes the handle when it is aborted. Plain data answer MDB_INCOMPATIBLE.
      const auto probe = begin_lmdb(env_.get(), MDB_RDONLY, path_);
      MDB_dbi handle = 0;
      if (::mdb_dbi_open(probe.get(), name.c_str(), 0, &handle) == MDB_SUCCESS) names.push_back(name);
    }
    return names;
  }

  /// The database that was asked for. One that holds others has nothing that could be read as records.
  void choose_database(MDB_txn* txn) {
    const auto names = databases(txn);
    if (database_.empty()) {
      LEVIN_CHECK(names.empty(), "[records] \"", path_.string(), "\" holds named databases (", shown(join(names)),
                  "); say which one is read: database = \"", shown(names.front()), "\"");
      return;
    }
    if (std::find(names.begin(), names.end(), database_) == names.end())
      fail_unknown("records", concat("database of \"", path_.string(), "\""), database_, names);
    check_lmdb(::mdb_dbi_open(txn, database_.c_str(), 0, &dbi_), path_, "read");
    unsigned flags = 0;
    check_lmdb(::mdb_dbi_flags(txn, dbi_, &flags), path_, "read");
    LEVIN_CHECK((flags & MDB_DUPSORT) == 0, "[records] \"", path_.string(), "\": the database \"", shown(database_),
                "\" keeps several values under one key (DUPSORT), which is not read");
  }

  uint32_t extension_id(std::string_view extension) {
    const auto [found, added] = ids_.try_emplace(std::string(extension), static_cast<uint32_t>(extensions_.size()));
    if (added) {
      std::string lower(extension);
      for (char& c : lower)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      extensions_.push_back({std::string(extension), member_type(lower)});
    }
    return found->second;
  }

  void index(MDB_txn* txn) {
    MDB_cursor* raw = nullptr;
    check_lmdb(::mdb_cursor_open(txn, dbi_, &raw), path_, "read");
    const std::unique_ptr<MDB_cursor, void (*)(MDB_cursor*)> cursor(raw, ::mdb_cursor_close);
    MDB_val key{}, value{};
    bool labelled = false, all_in_folders = true;
    std::optional<std::string_view> open;
    int result = ::mdb_cursor_get(raw, &key, &value, MDB_FIRST);
    for (; result == MDB_SUCCESS; result = ::mdb_cursor_get(raw, &key, &value, MDB_NEXT)) {
      const auto name = lmdb_text(key);
      if (name.size() >= 4 && name.starts_with("__") && name.ends_with("__")) {
        if (name == "__classes__") classes_ = split_classes(lmdb_text(value));
        continue;
      }
      const auto parts = split_tar_name(name);
      const auto stem = parts ? parts->key : name;
      const uint32_t id = extension_id(parts ? parts->extension : "");
      if (!parts || open != stem) {
        samples_.push_back({keys_.size(), members_.size(), static_cast<uint32_t>(stem.size()), 0, 0});
        keys_ += stem;
        all_in_folders = all_in_folders && stem.find('/') != std::string_view::npos;
      }
      open = parts ? std::optional(stem) : std::nullopt;
      ++samples_.back().members;
      members_.push_back(id);
      const auto& field = extensions_[id].type.field;
      labelled = labelled || field == "label" || field == "json";
    }
    LEVIN_CHECK(result == MDB_NOTFOUND, "[records] cannot read \"", path_.string(), "\": ", ::mdb_strerror(result));
    if (!labelled && all_in_folders && !samples_.empty()) label_by_folder();
  }

  void label_by_folder() {
    auto folder = [&](const Sample& sample) {
      auto key = key_of(sample);
      key = key.substr(0, key.rfind('/'));
      return key.substr(key.rfind('/') + 1);
    };
    std::set<std::string_view> names;
    for (const auto& sample : samples_) names.insert(folder(sample));
    std::vector<std::string> sorted(names.begin(), names.end());
    if (classes_.empty()) classes_ = sorted;
    for (auto& sample : samples_) {
      const auto found = std::find(classes_.begin(), classes_.end(), folder(sample));
      if (found == classes_.end()) {
        classes_ = sorted;  // those that were written are of something else
        return label_by_folder();
      }
      sample.label = static_cast<uint32_t>(found - classes_.begin());
    }
    by_folder_ = true;
  }

  fs::path path_;
  std::string database_;
  LmdbEnvironment env_;
  MDB_dbi dbi_ = 0;
  uint64_t pages_ = 0;
  std::string keys_;  // one after the other
  std::vector<Sample> samples_;
  std::vector<uint32_t> members_;  // ids of extensions
  std::vector<Extension> extensions_;
  std::map<std::string, uint32_t> ids_;
  std::vector<std::string> classes_;
  bool by_folder_ = false;
};

}  // namespace

bool has_lmdb() {
  return true;
}

std::unique_ptr<RecordReader> open_lmdb(const Paths& paths, const RecordOptions& options) {
  return std::make_unique<LmdbReader>(paths.front(), options.database);
}

}  // namespace levin::detail
