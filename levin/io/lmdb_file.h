#pragma once

#include <filesystem>
#include <memory>

#include <lmdb.h>

#include "levin/core/error.h"

namespace levin::detail {

struct CloseLmdb {
  void operator()(MDB_env* env) const { ::mdb_env_close(env); }
};
using LmdbEnvironment = std::unique_ptr<MDB_env, CloseLmdb>;

struct AbortLmdb {
  void operator()(MDB_txn* txn) const { ::mdb_txn_abort(txn); }
};
/// Aborted when it goes: nothing else is needed by readers.
using LmdbTransaction = std::unique_ptr<MDB_txn, AbortLmdb>;

inline void check_lmdb(int result, const std::filesystem::path& path, const char* what) {
  LEVIN_CHECK(result == MDB_SUCCESS, "[records] cannot ", what, " \"", path.string(), "\": ", ::mdb_strerror(result));
}

inline LmdbEnvironment open_lmdb_environment(const std::filesystem::path& path, unsigned flags, size_t map_bytes) {
  MDB_env* raw = nullptr;
  check_lmdb(::mdb_env_create(&raw), path, "open");
  LmdbEnvironment env(raw);
  if (map_bytes > 0) check_lmdb(::mdb_env_set_mapsize(raw, map_bytes), path, "open");
  check_lmdb(::mdb_env_open(raw, path.c_str(), flags, 0666), path, "open");
  return env;
}

inline LmdbTransaction begin_lmdb(MDB_env* env, unsigned flags, const std::filesystem::path& path) {
  MDB_txn* raw = nullptr;
  check_lmdb(::mdb_txn_begin(env, nullptr, flags, &raw), path, "read");
  return LmdbTransaction(raw);
}

}  // namespace levin::detail
