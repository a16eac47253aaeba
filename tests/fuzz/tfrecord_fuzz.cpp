// fuzz-sources: levin/io/records/tfrecord/[ef]*.cpp levin/core/error.cpp levin/core/checksum.cpp
// fuzz-seeds: tests/io/fixtures/records/*.tfrecord
// fuzz-libraries: -lz

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "levin/core/error.h"
#include "levin/io/records/tfrecord/example.h"
#include "levin/io/records/tfrecord/format.h"

namespace {

void parse(std::string_view example) {
  try {
    const auto features = levin::detail::parse_tf_example(example);
    // What was read can be written, and read again as the same.
    const auto again = levin::detail::write_tf_example(features);
    if (levin::detail::parse_tf_example(again).size() != features.size()) std::abort();
  } catch (const levin::Error& error) {
    if (std::strchr(error.what(), '\n') != nullptr) std::abort();
  }
}

}  // namespace

// The bytes as a file, and as the data of one record: checksums would keep most inputs out of the second.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse(bytes);
  std::string framed;
  levin::detail::append_tfrecord(framed, bytes);
  if (levin::detail::tfrecord_data(framed, true, "fuzz.tfrecord", 0) != bytes) std::abort();
  try {
    levin::detail::scan_tfrecord(
        [&](uint64_t offset, std::span<std::byte> into) {
          if (offset > size || into.size() > size - offset) throw levin::Error("ends too early");
          if (!into.empty()) std::memcpy(into.data(), data + offset, into.size());
        },
        size, "fuzz.tfrecord",
        [&](uint64_t offset, uint64_t count) {
          if (offset > size || count > size - offset) std::abort();
          const auto frame = bytes.substr(offset, count + levin::detail::kTfFrameBytes);
          try {
            parse(levin::detail::tfrecord_data(frame, true, "fuzz.tfrecord", offset));
          } catch (const levin::Error&) {
          }
        });
  } catch (const levin::Error& error) {
    if (std::strchr(error.what(), '\n') != nullptr) std::abort();
  }
  return 0;
}
