// fuzz-sources: levin/io/weights/zip_parse.cpp levin/core/error.cpp levin/core/words.cpp
// fuzz-seeds: tests/io/fixtures/weights/*.pt
//
// Any bytes given to the zip reader make a list of entries that lie in the archive, apart from each other, or a
// one-line Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

#include "levin/core/error.h"
#include "levin/io/weights/zip_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read = [&](uint64_t offset, std::span<std::byte> into) {
    if (offset > size || into.size() > size - offset) std::abort();
    if (!into.empty()) std::memcpy(into.data(), data + offset, into.size());
  };
  try {
    uint64_t end = 0;
    for (const auto& entry : levin::detail::parse_zip(size, read, "fuzz")) {
      if (entry.offset < end || entry.bytes > size || entry.offset > size - entry.bytes) std::abort();
      end = entry.offset + entry.bytes;
    }
  } catch (const levin::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
