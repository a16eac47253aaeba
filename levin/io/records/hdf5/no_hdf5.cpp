#include "levin/core/error.h"
#include "levin/io/records/record_formats.h"

namespace levin::detail {

bool has_hdf5() {
  return false;
}

std::unique_ptr<RecordReader> open_hdf5(const Paths& paths, const RecordOptions&) {
  throw Error(concat("[records] \"", paths.front().string(),
                     "\" is of the format hdf5, and this build has no HDF5: install libhdf5-dev and build again"));
}

std::unique_ptr<RecordWriter> create_hdf5(const std::filesystem::path& path, const RecordWriterOptions&) {
  throw Error(
      concat("[records] \"", path.string(),
             "\" is to be of the format hdf5, and this build has no HDF5: install libhdf5-dev and build again"));
}

}  // namespace levin::detail
