#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// String to string, as a safetensors header carries it.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// One tensor of a file, as its header declares it. Offsets count from the first byte after the header.
struct SafetensorsEntry {
  std::string name;
  /// "F32", "BF16", "F8_E4M3", ...
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

namespace detail {

struct SafetensorsHeader {
  SafetensorsMetadata metadata;
  std::vector<SafetensorsEntry> entries;  // sorted by offset
};

/// A type of the format, and the bits of one element.
struct SafetensorsBits {
  std::string_view name;
  uint64_t bits = 0;
};

/// Parses and checks a header; `data_bytes` is what the file holds after it, `types` are those that there are. `where`
/// stands in the errors.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes, const std::string& where,
                                           std::span<const SafetensorsBits> types);

}  // namespace detail
}  // namespace levin
