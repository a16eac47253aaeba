#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace levin::detail {

/// Appends a TFRecord: length, its checksum, the data, its checksum (CRC-32C, masked).
void append_record(std::string& out, std::string_view data);

/// How much of a file of records is whole and undamaged: a process that died while writing leaves the last one torn.
struct WholeRecords {
  size_t bytes = 0;
  int64_t count = 0;
};
WholeRecords whole_records(std::string_view file);

}  // namespace levin::detail
