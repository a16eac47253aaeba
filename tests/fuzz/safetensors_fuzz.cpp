// fuzz-sources: levin/io/weights/safetensors_header.cpp levin/core/error.cpp levin/core/words.cpp
// fuzz-seeds: tests/fuzz/corpus/safetensors/*
//
// Any bytes given as the header of a safetensors file make tensors that lie side by side from the first byte to the
// last, of as many bytes as their shapes need, or a one-line Error. The first two bytes are the size of the data.
#include <set>
#include <string>
#include <string_view>

#include "fuzz.h"
#include "levin/io/weights/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint64_t bytes = data[0] + 256 * data[1];
  const std::string_view json(reinterpret_cast<const char*>(data) + 2, size - 2);
  constexpr levin::detail::SafetensorsBits kTypes[] = {{"F32", 32}, {"BF16", 16}, {"U8", 8}, {"F4", 4}, {"F6_E2M3", 6}};
  levin::fuzz::taken([&] {
    const auto header = levin::detail::parse_safetensors_header(json, bytes, "fuzz", kTypes);
    uint64_t reached = 0;
    std::set<std::string> names;
    for (const auto& entry : header.entries) {
      if (entry.begin != reached) levin::fuzz::complain("tensors that do not lie side by side");
      if (!names.insert(entry.name).second) levin::fuzz::complain("a name twice");
      uint64_t bits = 0;
      for (const auto& type : kTypes)
        if (type.name == entry.dtype) bits = type.bits;
      for (const auto each : entry.shape) {
        if (each < 0) levin::fuzz::complain("a negative size");
        bits *= static_cast<uint64_t>(each);
      }
      if (bits != 8 * entry.bytes()) levin::fuzz::complain("bytes that are not those of the shape");
      reached = entry.end;
    }
    if (reached != bytes) levin::fuzz::complain("not to the last byte");
  });
  return 0;
}
