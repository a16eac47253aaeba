#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

struct MDB_env;
struct MDB_txn;

namespace levin::detail {

struct CloseLmdb {
  void operator()(MDB_env* env) const;
};
using LmdbEnvironment = std::unique_ptr<MDB_env, CloseLmdb>;

struct AbortLmdb {
  void operator()(MDB_txn* txn) const;
};
/// Aborted when it goes: nothing else is needed by readers.
using LmdbTransaction = std::unique_ptr<MDB_txn, AbortLmdb>;

/// An Error with the library's reason unless `result` is success.
void check_lmdb(int result, const std::filesystem::path& path, const char* what);
/// A map of 0 bytes is as large as the database says. `databases`: how many named ones may be open.
LmdbEnvironment open_lmdb_environment(const std::filesystem::path& path, unsigned flags, size_t map_bytes,
                                      unsigned databases = 0);
LmdbTransaction begin_lmdb(MDB_env* env, unsigned flags, const std::filesystem::path& path);

}  // namespace levin::detail
