#include "levin/program/recipes/text_tokens.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/text/train_bpe.h"
#include "levin/text/unicode/characters.h"
#include "levin/text/unicode/unicode.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;
constexpr const char* kEndOfText = "<|endoftext|>";

fs::path cache_folder(const fs::path& asked) {
  if (!asked.empty()) return asked;
  if (const char* data = std::getenv("LEVIN_DATA"); data != nullptr && *data != '\0') return fs::path(data) / "tokens";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return fs::path(home) / ".cache/levin/tokens";
  return fs::temp_directory_path() / "levin_tokens";
}

/// Of the files that say how a folder's tokenizer works.
std::string tokenizer_checksum(const fs::path& folder) {
  uint32_t sum = 0;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt",
                           "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"})
    if (fs::is_regular_file(folder / name)) sum = crc32c(read_file(folder / name), crc32c(name, sum));
  return fmt::format("{:08x}", sum);
}

/// Tokens to a file as they come: little-endian numbers of two or four bytes.
class TokenWriter {
 public:
  TokenWriter(const fs::path& path, bool wide) : writer_(path), wide_(wide) {}

  void add(std::span<const int64_t> tokens) {
    bytes_.clear();
    for (const auto token : tokens)
      for (int i = 0; i < (wide_ ? 4 : 2); ++i) bytes_.push_back(static_cast<std::byte>(token >> (8 * i)));
    writer_.write(bytes_);
    count_ += static_cast<int64_t>(tokens.size());
  }
  int64_t close() {
    writer_.close();
    return count_;
  }

 private:
  FileWriter writer_;
  std::vector<std::byte> bytes_;
  bool wide_;
  int64_t count_ = 0;
};

/// Where the training part of a text ends, found while its blocks go by.
class Split {
 public:
  Split(uint64_t bytes, double val_fraction)
      : train_bytes_(bytes - static_cast<uint64_t>(static_cast<double>(bytes) * val_fraction)) {}

  /// How much of the next block belongs to training, in whole characters.
  size_t train_part(std::string_view block) {
    const auto begin = at_;
    at_ += block.size();
    if (at_ <= train_bytes_) return block.size();
    if (begin >= train_bytes_) return 0;
    auto end = static_cast<size_t>(train_bytes_ - begin);
    while (end < block.size() && (static_cast<uint8_t>(block[end]) & 0xc0) == 0x80) ++end;
    return end;
  }

 private:
  uint64_t train_bytes_, at_ = 0;
};

std::string trained_bpe(const Texts& texts, const TextScan& scanned, const TextTokensOptions& options) {
  LEVIN_CHECK(options.vocab_size >= 257, "[gpt_text] data.vocab_size ", options.vocab_size,
              " must be 257 or more: the bytes and the end of a text");
  Split split(scanned.bytes, options.val_fraction);
  Texts::Blocks blocks(texts);
  std::string_view rest;
  const auto next_line = [&](std::string_view& line) {
    while (rest.empty()) {
      if (!blocks.next()) return false;
      rest = blocks.text().substr(0, split.train_part(blocks.text()));
    }
    const auto end = std::min(rest.find('\n'), rest.size() - 1) + 1;
    line = rest.substr(0, end);
    rest.remove_prefix(end);
    return true;
  };
  return text::train_bpe(next_line, static_cast<size_t>(options.vocab_size), {.special_tokens = {kEndOfText}});
}

void write_tokenizer(const fs::path& folder, const std::string& json, bool has_end) {
  write_file(folder / "tokenizer.json", json);
  nlohmann::ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                {"clean_up_tokenization_spaces", false}};
  if (has_end) config["bos_token"] = config["eos_token"] = kEndOfText;
  write_file(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

using Encode = std::function<std::vector<std::vector<int64_t>>(const std::vector<std::string>&)>;

/// A table in place of the tokenizer: the same ids, many times faster.
Encode encode_characters(const std::vector<char32_t>& characters) {
  std::vector<int64_t> ids(characters.empty() ? 0 : characters.back() + 1, -1);
  for (size_t i = 0; i < characters.size(); ++i) ids[characters[i]] = static_cast<int64_t>(i);
  return [ids = std::move(ids)](const std::vector<std::string>& texts) {
    std::vector<std::vector<int64_t>> all;
    for (const auto& one : texts) {
      std::vector<int64_t> tokens;
      for (size_t at = 0; at < one.size();) {
        const auto [point, bytes] = text::decode_utf8(one, at);
        tokens.push_back(ids[point]);
        at += bytes;
      }
      all.push_back(std::move(tokens));
    }
    return all;
  };
}

Encode encode_with(const text::Tokenizer& tokenizer) {
  return [tokenizer](const std::vector<std::string>& texts) {
    auto encoded = tokenizer.encode_batch(
        texts, {.add_special_tokens = false, .special_tokens_in_text = false, .tokens = false, .offsets = false});
    std::vector<std::vector<int64_t>> all;
    for (auto& one : encoded) all.push_back(std::move(one.ids));
    return all;
  };
}

/// The id that stands between two texts; none where there is one text, or no such token.
std::optional<int64_t> separator(const text::Tokenizer& tokenizer, const Texts& texts) {
  if (texts.count() == 1) return {};
  return tokenizer.token_to_id(tokenizer.config().eos_token.value_or(kEndOfText));
}

struct Counts {
  int64_t train_tokens = 0, val_tokens = 0, val_characters = 0;
};

Counts write_tokens(const fs::path& folder, const Texts& texts, uint64_t bytes, double val_fraction,
                    const Encode& encode, std::optional<int64_t> between, bool wide) {
  TokenWriter train(folder / "train.bin", wide), val(folder / "val.bin", wide);
  Counts counts;
  struct Piece {
    bool is_val, ends_text;
  };
  std::vector<std::string> waiting;
  std::vector<Piece> pieces;
  const auto flush = [&] {
    const auto encoded = encode(waiting);
    for (size_t i = 0; i < encoded.size(); ++i) {
      auto& into = pieces[i].is_val ? val : train;
      into.add(encoded[i]);
      if (pieces[i].ends_text && between) into.add(std::vector{*between});
    }
    waiting.clear(), pieces.clear();
  };
  Split split(bytes, val_fraction);
  for (Texts::Blocks blocks(texts); blocks.next();) {
    const auto block = blocks.text();
    const auto end = split.train_part(block);
    const auto add = [&](std::string_view part, bool is_val, bool last) {
      if (part.empty()) return;
      if (is_val) counts.val_characters += static_cast<int64_t>(text::count_points(part));
      waiting.emplace_back(part);
      pieces.push_back({is_val, last && blocks.ends_text()});
    };
    add(block.substr(0, end), false, end == block.size());
    add(block.substr(end), true, true);
    if (waiting.size() >= 64) flush();
  }
  flush();
  counts.train_tokens = train.close();
  counts.val_tokens = val.close();
  return counts;
}

/// The tokens of an earlier run; none when they are not there, or not what they say.
std::optional<TextTokens> cached(const fs::path& folder, const fs::path& tokenizer_folder) {
  if (!fs::is_regular_file(folder / "tokens.json")) return {};
  const auto json = nlohmann::json::parse(read_file(folder / "tokens.json", 1 << 16), nullptr, false);
  if (!json.is_object() || json.value("format", 0) != kFormat) return {};
  TextTokens found{.folder = folder,
                   .dtype = json.value("dtype", ""),
                   .train_tokens = json.value("train_tokens", int64_t{0}),
                   .val_tokens = json.value("val_tokens", int64_t{0}),
                   .val_characters = json.value("val_characters", int64_t{0}),
                   .tokenizer_folder = tokenizer_folder.empty() ? folder : tokenizer_folder,
                   .tokenizer = text::Tokenizer(nullptr),
                   .fingerprint = json.value("fingerprint", "")};
  const auto has = [&](const char* name, int64_t tokens) {
    std::error_code none;
    return fs::file_size(folder / name, none) == static_cast<uint64_t>(tokens) * (found.dtype == "uint32" ? 4 : 2);
  };
  if (!has("train.bin", found.train_tokens) || !has("val.bin", found.val_tokens)) return {};
  if (tokenizer_checksum(found.tokenizer_folder) != found.fingerprint) return {};
  found.tokenizer = text::Tokenizer::from_folder(found.tokenizer_folder);
  return found;
}

}  // namespace

TextTokens prepare_tokens(const Texts& texts, const TextTokensOptions& options) {
  LEVIN_CHECK(options.val_fraction >= 0 && options.val_fraction < 1, "[gpt_text] data.val_fraction ",
              options.val_fraction, " must be 0 or more, and less than 1");
  const bool chars = options.tokenizer == "chars", bpe = options.tokenizer == "bpe";
  const fs::path given = chars || bpe ? fs::path() : fs::path(options.tokenizer);
  LEVIN_CHECK(chars || bpe || fs::is_directory(given), "[gpt_text] data.tokenizer \"", options.tokenizer,
              "\" is not known (chars, bpe, or a folder with a tokenizer)");
  const auto scanned = scan(texts);
  const auto kind = chars ? std::string("chars")
                    : bpe ? fmt::format("bpe{}", options.vocab_size)
                          : "folder_" + tokenizer_checksum(given);
  // What decides the tokens is in the name.
  const auto folder =
      cache_folder(options.cache) / fmt::format("{:08x}_{}_{}_{}_val{}_v{}", scanned.checksum, scanned.bytes,
                                                texts.count(), kind, options.val_fraction, kFormat);
  if (auto found = cached(folder, given)) return *found;

  make_folder(folder.parent_path());
  AtomicFolder staged(folder);
  if (chars) write_tokenizer(staged.path(), text::character_tokenizer(scanned.characters), false);
  if (bpe) {
    log_info(fmt::format("[gpt_text] training a BPE of {} tokens on {}", options.vocab_size, printable(texts.name())));
    write_tokenizer(staged.path(), trained_bpe(texts, scanned, options), true);
  }
  const auto tokenizer = text::Tokenizer::from_folder(given.empty() ? staged.path() : given);
  const bool wide = tokenizer.id_end() > 65536;
  const auto counts = write_tokens(staged.path(), texts, scanned.bytes, options.val_fraction,
                                   chars ? encode_characters(scanned.characters) : encode_with(tokenizer),
                                   separator(tokenizer, texts), wide);
  const nlohmann::ordered_json about{{"format", kFormat},
                                     {"text", printable(texts.name())},
                                     {"dtype", wide ? "uint32" : "uint16"},
                                     {"train_tokens", counts.train_tokens},
                                     {"val_tokens", counts.val_tokens},
                                     {"val_characters", counts.val_characters},
                                     {"fingerprint", tokenizer_checksum(given.empty() ? staged.path() : given)}};
  write_file(staged.path() / "tokens.json", about.dump(2) + "\n");
  staged.commit();
  const auto made = cached(folder, given);
  LEVIN_CHECK(made, "[gpt_text] the tokens in \"", folder.string(), "\" changed while they were written");
  return *made;
}

}  // namespace levin::cli
