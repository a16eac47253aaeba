#include <optional>

#include <fmt/format.h>
#include <lmdb.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/records/lmdb/lmdb_file.h"
#include "levin/io/records/record_fields.h"
#include "levin/io/records/record_files.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

constexpr size_t kFirstMapBytes = size_t{16} << 20;
/// What is gathered before it is written in one transaction.
constexpr size_t kLmdbBatchBytes = size_t{8} << 20;
constexpr size_t kMostLmdbKey = 511;

/// Members as in a tar, "000042.png" and "000042.cls", with "__len__" and "__classes__" beside them. A path that ends
/// in .mdb is the database itself, any other a folder with data.mdb in it.
class LmdbWriter : public RecordWriter {
 public:
  LmdbWriter(const fs::path& path, const RecordWriterOptions& options)
      : path_(path), classes_(join_classes(options.classes)) {
    const bool single = path.extension() == ".mdb";
    check_destination(path, single ? OutputKind::kFile : OutputKind::kFolder, options);
    if (single)
      place_ = file_.add(path);
    else
      place_ = folder_.emplace(path).path();
    // The temporary name is ours alone, and one sync at the end is enough.
    env_ = open_lmdb_environment(place_, MDB_NOLOCK | MDB_NOSYNC | MDB_NOTLS | (single ? MDB_NOSUBDIR : 0),
                                 kFirstMapBytes);
  }

  void write(const Record& record) override {
    LEVIN_CHECK(env_, "[records] \"", path_.string(), "\" was closed, nothing can be written to it");
    const auto key = member_key(record, count_);
    for (auto& [extension, content] : members_of(record)) {
      auto name = key + "." + extension;
      LEVIN_CHECK(name.size() <= kMostLmdbKey, "[records] the key \"", shown(name), "\" has ", name.size(),
                  " bytes; LMDB takes ", kMostLmdbKey);
      gathered_ += name.size() + content.size();
      batch_.emplace_back(std::move(name), std::move(content));
    }
    ++count_;
    if (gathered_ >= kLmdbBatchBytes) flush();
  }

  void close() override {
    if (!env_) return;
    batch_.emplace_back("__len__", fmt::format("{}", count_));
    if (!classes_.empty()) batch_.emplace_back("__classes__", classes_);
    flush();
    check_lmdb(::mdb_env_sync(env_.get(), 1), path_, "write");
    env_.reset();
    if (folder_)
      folder_->commit();
    else
      file_.commit();
  }

 private:
  /// One transaction; a map that is full is doubled, and the transaction made again.
  void flush() {
    while (!put_batch()) {
      MDB_envinfo info{};
      check_lmdb(::mdb_env_info(env_.get(), &info), path_, "write");
      check_lmdb(::mdb_env_set_mapsize(env_.get(), info.me_mapsize * 2), path_, "write");
    }
    batch_.clear();
    gathered_ = 0;
  }

  bool put_batch() {
    auto txn = begin_lmdb(env_.get(), 0, path_);
    MDB_dbi dbi = 0;
    check_lmdb(::mdb_dbi_open(txn.get(), nullptr, 0, &dbi), path_, "write");
    for (auto& [name, content] : batch_) {
      MDB_val key{name.size(), name.data()}, value{content.size(), content.data()};
      const int result = ::mdb_put(txn.get(), dbi, &key, &value, MDB_NOOVERWRITE);
      if (result == MDB_MAP_FULL) return false;
      LEVIN_CHECK(result != MDB_KEYEXIST, "[records] \"", path_.string(), "\" has the key \"", shown(name),
                  "\" already");
      check_lmdb(result, path_, "write");
    }
    const int result = ::mdb_txn_commit(txn.release());
    if (result == MDB_MAP_FULL) return false;
    check_lmdb(result, path_, "write");
    return true;
  }

  fs::path path_, place_;
  std::string classes_;
  std::optional<AtomicFolder> folder_;
  StagedFiles file_;
  LmdbEnvironment env_;  // closed before what it lies in goes
  std::vector<std::pair<std::string, std::string>> batch_;
  size_t gathered_ = 0;
  int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<RecordWriter> create_lmdb(const fs::path& path, const RecordWriterOptions& options) {
  return std::make_unique<LmdbWriter>(path, options);
}

}  // namespace levin::detail
