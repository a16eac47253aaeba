#include "levin/io/records/record_formats.h"

namespace levin::detail {

RecordFormat hdf5_format() {
  return {.name = "hdf5",
          .ends = {".h5", ".hdf5", ".hdf", ".he5"},
          .matches = [](std::string_view head) { return head.starts_with("\x89HDF\r\n\x1a\n"); },
          .open = open_hdf5,
          .create = create_hdf5,
          .prefers_raw = true,
          .available = has_hdf5};
}

}  // namespace levin::detail
