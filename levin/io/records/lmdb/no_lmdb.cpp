#include "levin/core/error.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {

bool has_lmdb() {
  return false;
}

std::unique_ptr<RecordReader> open_lmdb(const Paths& paths, const RecordOptions&) {
  throw Error(concat("[records] \"", paths.front().string(),
                     "\" is of the format lmdb, and this build has no LMDB: install liblmdb-dev and build again"));
}

std::unique_ptr<RecordWriter> create_lmdb(const std::filesystem::path& path, const RecordWriterOptions&) {
  throw Error(
      concat("[records] \"", path.string(),
             "\" is to be of the format lmdb, and this build has no LMDB: install liblmdb-dev and build again"));
}

}  // namespace levin::detail
