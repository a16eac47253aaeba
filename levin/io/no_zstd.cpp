#include "levin/core/error.h"
#include "levin/io/decompress.h"

namespace levin::detail {

bool has_zstd() {
  return false;
}

void decompress_zstd(const FileReader& file, const EachBlock&) {
  fail(concat("[records] \"", file.path().string(),
              "\" is compressed with zstd, and this build has no libzstd: install libzstd-dev and build again"));
}

}  // namespace levin::detail
