// clang-format off
// fuzz-sources: levin/io/weights/weight_index.cpp levin/core/error.cpp levin/core/words.cpp levin/core/files.cpp levin/core/staging.cpp levin/core/host.cpp levin/core/checksum.cpp
// fuzz-seeds: tests/io/fixtures/sharded/*.index.json tests/fuzz/corpus/weight_index/*
// clang-format on
//
// Any bytes given as the index of a model make names of files beside it, each tensor once, or a one-line Error.
#include <string>
#include <string_view>

#include "fuzz.h"
#include "levin/io/weights/weight_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  levin::fuzz::taken([&] {
    const std::string* before = nullptr;
    const auto places = levin::detail::parse_weight_index("weights", json, "fuzz");
    if (places.empty()) levin::fuzz::complain("an index of nothing");
    for (const auto& [name, file] : places) {
      if (before && *before >= name) levin::fuzz::complain("a name that is not after the one before");
      if (file.empty() || file == "." || file == ".." || file.find('/') != file.npos || file.find('\0') != file.npos)
        levin::fuzz::complain("a file elsewhere");
      before = &name;
    }
  });
  return 0;
}
