#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "levin/core/error.h"

/// A target is a file NAME_fuzz.cpp with this function: any bytes must be taken, or refused by a levin::Error of one
/// line. It includes nothing of torch, so that it can be built whole with sanitizers (tools/fuzz). Three comments in it
/// say how:
///
///     // fuzz-sources: levin/io/images/png_*.cpp levin/core/error.cpp  (patterns allowed)
///     // fuzz-seeds: tests/io/fixtures/images/*.png             (valid inputs to start from)
///     // fuzz-libraries: -lz
///
/// `// fuzz-needs: LEVIN_WEBP` leaves a target out of builds without that library. `// fuzz-count: 1000` is how many
/// changed seeds a test runs, where they are slow.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace levin::fuzz {

[[noreturn]] inline void complain(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

/// Whether the call was taken; an Error that is not one readable line ends the program, and so does any other
/// exception.
template <class Call>
bool taken(Call&& call) {
  try {
    call();
    return true;
  } catch (const Error& error) {
    const std::string line = error.what();
    if (line.size() < 10 || line.size() > 400 || line[0] != '[') complain("a bad line: " + line);
    for (const unsigned char c : line) {
      if (c < ' ' || c == 0x7f) complain("a line with control characters: " + line);
    }
    return false;
  }
}

}  // namespace levin::fuzz
