// Runs a target without a fuzzing engine: every seed, and then seeds that were changed by a fixed sequence of chances.
//
//     NAME_fuzz RUNS SEED_FILE...
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz.h"

namespace {

using Bytes = std::vector<uint8_t>;

Bytes read_seed(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "fuzz: cannot read %s\n", path);
    std::exit(1);
  }
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

// An exact allocation, so that a read beyond the end is one beyond the heap's block.
void run(const Bytes& input) {
  const Bytes exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void change(Bytes& bytes, const std::vector<Bytes>& seeds, std::mt19937& chance) {
  const auto draw = [&](size_t below) { return below == 0 ? 0 : chance() % below; };
  const auto at = draw(bytes.size());
  constexpr uint8_t kTelling[] = {0, 1, 0x7f, 0x80, 0xfe, 0xff};
  switch (draw(8)) {
    case 0:
      if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(bytes[at] ^ (1 << draw(8)));
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(chance());
      break;
    case 2:
      for (size_t i = at; i < std::min(bytes.size(), at + 1 + draw(4)); ++i) bytes[i] = kTelling[draw(6)];
      break;
    case 3:
      bytes.resize(at);
      break;
    case 4:
      bytes.erase(bytes.begin() + static_cast<long>(at),
                  bytes.begin() + static_cast<long>(std::min(bytes.size(), at + draw(32))));
      break;
    case 5: {
      const Bytes part(bytes.begin() + static_cast<long>(at),
                       bytes.begin() + static_cast<long>(std::min(bytes.size(), at + draw(64))));
      bytes.insert(bytes.begin() + static_cast<long>(draw(bytes.size())), part.begin(), part.end());
      break;
    }
    case 6: {
      const auto& other = seeds[draw(seeds.size())];
      const auto from = draw(other.size());
      const auto count = std::min({other.size() - from, bytes.size() - at, draw(128)});
      std::copy_n(other.begin() + static_cast<long>(from), count, bytes.begin() + static_cast<long>(at));
      break;
    }
    default:
      if (bytes.size() >= 2) std::swap(bytes[at], bytes[draw(bytes.size())]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s RUNS SEED_FILE...\n", argv[0]);
    return 2;
  }
  std::vector<Bytes> seeds;
  for (int i = 2; i < argc; ++i) seeds.push_back(read_seed(argv[i]));
  run({});
  for (const auto& seed : seeds) run(seed);
  std::mt19937 chance(1);
  const long runs = std::atol(argv[1]);
  for (long i = 0; i < runs; ++i) {
    auto bytes = seeds[chance() % seeds.size()];
    for (auto changes = 1 + chance() % 4; changes > 0; --changes) change(bytes, seeds, chance);
    run(bytes);
  }
  std::printf("%zu seeds, %ld changed ones: fine\n", seeds.size(), runs);
  return 0;
}
