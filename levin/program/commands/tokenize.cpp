#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/program/command.h"
#include "levin/text/tokenizer.h"
#include "levin/text/train_bpe.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

struct TokenizeFlags {
  std::vector<std::string> files;
  bool decode = false, json = false, keep_special = false, no_special = false;

  void describe(Flags& flags) {
    flags.flag("decode", decode, "read ids, one text a line, and print the texts");
    flags.flag("json", json, "print a JSON object a line: ids, tokens and offsets (characters)");
    flags.flag("keep-special", keep_special, "with --decode: print special tokens too");
    flags.flag("no-special", no_special, "do not add the tokens of the post-processor (bos, [CLS])");
    flags.set_rest("TOKENIZER [FILE]", files);
    flags.set_epilog(
        "TOKENIZER is a folder with tokenizer.json, vocab.json and merges.txt, vocab.txt or tokenizer.model, or such a "
        "file.\n"
        "Every line of FILE, or of the standard input, is a text; its ids are printed.\n"
        "`levin tokenize train` trains a byte-level BPE: see `levin tokenize train --help`.\n");
  }
};

// The lines of a file, or of the standard input, without their newlines.
template <class Each>
void each_line(const std::string& file, Each&& each) {
  if (file.empty() || file == "-") {
    int64_t number = 0;
    for (std::string line; std::getline(std::cin, line);) each(line, fmt::format("[levin tokenize] -:{}", ++number));
    return;
  }
  const auto text = read_file(file, uint64_t{4} << 30);
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    auto end = text.find('\n', at);
    if (end == text.npos) end = text.size();
    each(text.substr(at, end - at), fmt::format("[levin tokenize] {}:{}", file, ++number));
    at = end + 1;
  }
}

std::vector<int64_t> ids_of(const std::string& line) {
  std::vector<int64_t> ids;
  const char* at = line.c_str();
  for (;;) {
    while (*at == ' ' || *at == ',' || *at == '[' || *at == ']' || *at == '\t' || *at == '\r') ++at;
    if (*at == '\0') return ids;
    char* end = nullptr;
    ids.push_back(std::strtoll(at, &end, 10));
    LEVIN_CHECK(end != at, "[levin tokenize] \"", shown(line), "\" is not a list of ids");
    at = end;
  }
}

int run_tokenize(const std::vector<std::string>& words) {
  TokenizeFlags values;
  Flags flags("levin tokenize", "print the tokens of texts");
  values.describe(flags);
  if (!flags.parse(words)) return 0;
  LEVIN_CHECK(!values.files.empty(), "[levin tokenize] TOKENIZER is missing: a folder or a file");
  // Flags may also follow the names.
  std::vector<std::string> names;
  for (const auto& word : values.files) {
    const auto set = [&](const char* name, bool& flag) { return word == name && (flag = true); };
    if (set("--decode", values.decode) || set("--json", values.json) || set("--keep-special", values.keep_special) ||
        set("--no-special", values.no_special))
      continue;
    LEVIN_CHECK(word == "-" || !word.starts_with("-"), "[levin tokenize] the flag \"", shown(word), "\" is not known");
    names.push_back(word);
  }
  LEVIN_CHECK(!names.empty() && names.size() <= 2, "[levin tokenize] takes a tokenizer and at most one file");
  const fs::path path = names[0];
  const auto tokenizer = fs::is_directory(path) ? text::Tokenizer::from_folder(path) : text::Tokenizer::from_file(path);
  each_line(names.size() > 1 ? names[1] : "", [&](const std::string& line, const std::string& where) {
    if (values.decode) {
      const auto text = tokenizer.decode(ids_of(line), !values.keep_special);
      std::puts(values.json ? nlohmann::json(text).dump().c_str() : text.c_str());
      return;
    }
    check_utf8_line(line, where);
    const auto encoding = tokenizer.encode(
        line, {.add_special_tokens = !values.no_special, .tokens = values.json, .offsets = values.json});
    if (values.json) {
      nlohmann::ordered_json json{{"ids", encoding.ids}, {"tokens", encoding.tokens}};
      auto& offsets = json["offsets"] = nlohmann::ordered_json::array();
      for (const auto& [begin, end] : encoding.offsets) offsets.push_back({begin, end});
      std::puts(json.dump().c_str());
      return;
    }
    std::string out;
    for (const auto id : encoding.ids) out += (out.empty() ? "" : " ") + std::to_string(id);
    std::puts(out.c_str());
  });
  return 0;
}

struct TrainTokenizer {
  int64_t vocab_size = 32'000, min_frequency = 2;
  std::string output = "tokenizer.json", pattern;
  std::vector<std::string> special, files;
  bool add_prefix_space = false, overwrite = false;

  void describe(Flags& flags) {
    flags.flag("vocab-size", vocab_size, "number of tokens");
    flags.flag("min-frequency", min_frequency, "pairs that are seen less often are not merged");
    flags.repeated("special", special, "a special token; repeatable [<|endoftext|>]", "TOKEN");
    flags.flag("pattern", pattern, "the regular expression that cuts texts into words [GPT-2's]", "REGEX");
    flags.flag("add-prefix-space", add_prefix_space, "put a blank before every text");
    flags.flag("output", output, "the file that is written", "FILE");
    flags.flag("overwrite", overwrite, "replace the file");
    flags.set_rest("FILE...", files);
    flags.set_epilog("Every line of the files is a text.\n");
  }
};

int run_train(const std::vector<std::string>& words) {
  TrainTokenizer values;
  Flags flags("levin tokenize train", "train a byte-level BPE on text files");
  values.describe(flags);
  if (!flags.parse(words)) return 0;
  LEVIN_CHECK(!values.files.empty(), "[levin tokenize train] FILE is missing");
  LEVIN_CHECK(values.vocab_size > 0 && values.min_frequency >= 0,
              "[levin tokenize train] --vocab-size and --min-frequency must not be negative");
  check_destination("levin tokenize train", values.output, OutputKind::kFile, values.overwrite, "--overwrite");
  text::TrainBpeOptions options{.min_frequency = static_cast<uint64_t>(values.min_frequency),
                                .add_prefix_space = values.add_prefix_space,
                                .pattern = values.pattern};
  if (!values.special.empty()) options.special_tokens = values.special;
  const std::vector<fs::path> files(values.files.begin(), values.files.end());
  write_file(values.output, text::train_bpe(files, static_cast<size_t>(values.vocab_size), options));
  const auto size = text::Tokenizer::from_file(values.output).vocab_size();
  std::printf("%s: %lld tokens\n", printable(values.output).c_str(), static_cast<long long>(size));
  return 0;
}

}  // namespace

Command tokenize_command() {
  Command command{.name = "tokenize", .summary = "print the tokens of texts, or train a tokenizer"};
  command.run = [](const std::vector<std::string>& words, const Args&) {
    if (!words.empty() && words[0] == "train") return run_train({words.begin() + 1, words.end()});
    return run_tokenize(words);
  };
  command.flags = [] {
    static TokenizeFlags values;  // the fields point into it
    Flags flags("levin tokenize", "print the tokens of texts");
    values.describe(flags);
    return flags;
  };
  return command;
}

}  // namespace levin::cli
