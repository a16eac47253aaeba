// How many bytes a second a tokenizer encodes and decodes, beside the Python package `tokenizers` (peers/tokenizer.py),
// which is written in Rust: the same tokenizer.json, the same text, ids with tokens and offsets as the peer makes them.
//   tokenizer [--folder DIR]
// DIR holds tokenizer.json and text.txt. Without them it trains a tokenizer of 8000 tokens on the repository's own
// pages.
#include "levin/text/tokenizer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "levin/core/files.h"
#include "levin/core/main.h"
#include "levin/text/train_bpe.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void report(const char* name, double value) {
  std::printf("{\"case\": \"%s\", \"value\": %.4g, \"unit\": \"MB/s\", \"better\": \"higher\", \"limit\": 1.0}\n", name,
              value);
  std::fflush(stdout);
}

template <class Work>
double best_rate(size_t bytes, Work&& work) {
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    work();
    best =
        std::max(best, static_cast<double>(bytes) / 1e6 / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

// Pages of this repository, over and over: words repeat as in every text.
void prepare(const fs::path& folder) {
  if (fs::exists(folder / "tokenizer.json") && fs::exists(folder / "text.txt")) return;
  fs::create_directories(folder);
  std::string text;
  for (const auto& entry : fs::recursive_directory_iterator("docs")) {
    if (entry.path().extension() == ".md") text += levin::read_file(entry.path());
  }
  while (text.size() < (size_t{4} << 20)) text += text;
  levin::write_file(folder / "text.txt", text);
  const fs::path files[] = {folder / "text.txt"};
  levin::write_file(folder / "tokenizer.json", levin::text::train_bpe(files, 8000));
}

void bench(levin::Args& args) {
  const fs::path folder = args.get("folder", "build/bench_text");
  args.check_all_used();
  prepare(folder);
  const auto tokenizer = levin::text::Tokenizer::from_folder(folder);
  const auto text = levin::read_file(folder / "text.txt");
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {  // documents of some kilobytes
    auto end = text.find('\n', std::min(text.size(), at + 4000));
    if (end == text.npos) end = text.size() - 1;
    lines.push_back(text.substr(at, end + 1 - at));
    at = end + 1;
  }
  report("encode, one text", best_rate(text.size(), [&] { tokenizer.encode(text); }));
  report("encode batch, one core", best_rate(text.size(), [&] { tokenizer.encode_batch(lines, {}, 1); }));
  report("encode batch, two cores", best_rate(text.size(), [&] { tokenizer.encode_batch(lines, {}, 2); }));
  const auto ids = tokenizer.encode(text).ids;
  report("decode", best_rate(text.size(), [&] { tokenizer.decode(ids); }));
  const auto plain = best_rate(text.size(), [&] { tokenizer.encode(text, {.tokens = false, .offsets = false}); });
  std::printf("ids alone: %.4g MB/s\n", plain);
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, bench);
}
