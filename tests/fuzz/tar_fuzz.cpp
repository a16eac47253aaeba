// fuzz-sources: levin/io/records/tar/tar_format.cpp levin/core/error.cpp
// fuzz-seeds: tests/io/fixtures/records/*.tar
// fuzz-libraries: -lz

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "levin/core/error.h"
#include "levin/io/records/tar/tar_format.h"

// Whatever the bytes are, members lie within them, or there is one Error of one line.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    levin::detail::scan_tar(
        [&](uint64_t offset, std::span<std::byte> into) {
          if (offset > size || into.size() > size - offset) throw levin::Error("ends too early");
          if (!into.empty()) std::memcpy(into.data(), data + offset, into.size());
        },
        size, "fuzz.tar",
        [&](levin::detail::TarMember&& member) {
          if (member.offset > size || member.size > size - member.offset) std::abort();
          levin::detail::split_tar_name(member.name);
        });
  } catch (const levin::Error& error) {
    if (std::strchr(error.what(), '\n') != nullptr) std::abort();
  }
  return 0;
}
