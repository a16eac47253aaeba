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
struct LmdbOpening {
  /// How many named databases may be open.
  unsigned databases = 0;
  /// What the library opens, where that is not the path which errors name.
  std::filesystem::path opened = {};
};
/// A map of 0 bytes is as large as the database says.
LmdbEnvironment open_lmdb_environment(const std::filesystem::path& path, unsigned flags, size_t map_bytes,
                                      const LmdbOpening& how = {});
LmdbTransaction begin_lmdb(MDB_env* env, unsigned flags, const std::filesystem::path& path);

}  // namespace levin::detail
