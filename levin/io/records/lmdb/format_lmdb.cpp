#include "levin/io/records/record_formats.h"

namespace levin::detail {

RecordFormat lmdb_format() {
  return {.name = "lmdb",
          .ends = {".lmdb", ".mdb"},
          // The first page of a database: a head of 16 bytes, then the magic number.
          .matches = [](std::string_view head) { return head.size() > 20 && head.substr(16, 4) == "\xde\xc0\xef\xbe"; },
          .matches_folder =
              [](const std::filesystem::path& folder) {
                std::error_code error;
                return std::filesystem::exists(folder / "data.mdb", error);
              },
          .open = open_lmdb,
          .create = create_lmdb,
          .available = has_lmdb};
}

}  // namespace levin::detail
