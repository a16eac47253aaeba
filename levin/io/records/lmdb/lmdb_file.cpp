#include "levin/io/records/lmdb/lmdb_file.h"

#include <lmdb.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace fs = std::filesystem;

void CloseLmdb::operator()(MDB_env* env) const {
  ::mdb_env_close(env);
}

void AbortLmdb::operator()(MDB_txn* txn) const {
  ::mdb_txn_abort(txn);
}

void check_lmdb(int result, const fs::path& path, const char* what) {
  LEVIN_CHECK(result == MDB_SUCCESS, "[records] cannot ", what, " \"", path.string(), "\": ", ::mdb_strerror(result));
}

LmdbEnvironment open_lmdb_environment(const fs::path& path, unsigned flags, size_t map_bytes, const LmdbOpening& how) {
  MDB_env* raw = nullptr;
  check_lmdb(::mdb_env_create(&raw), path, "open");
  LmdbEnvironment env(raw);
  if (map_bytes > 0) check_lmdb(::mdb_env_set_mapsize(raw, map_bytes), path, "open");
  if (how.databases > 0) check_lmdb(::mdb_env_set_maxdbs(raw, how.databases), path, "open");
  check_lmdb(::mdb_env_open(raw, (how.opened.empty() ? path : how.opened).c_str(), flags, 0666), path, "open");
  return env;
}

LmdbTransaction begin_lmdb(MDB_env* env, unsigned flags, const fs::path& path) {
  MDB_txn* raw = nullptr;
  check_lmdb(::mdb_txn_begin(env, nullptr, flags, &raw), path, "read");
  return LmdbTransaction(raw);
}

}  // namespace levin::detail
