#include "levin/text/train_bpe.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/text/model.h"
#include "levin/text/normalizers.h"
#include "levin/text/unicode/pattern.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text {
namespace {

using Pair = uint64_t;

Pair pair_of(uint32_t left, uint32_t right) {
  return static_cast<Pair>(left) << 32 | right;
}

// A pair and words that have it. A pair may have several entries, each with words of its own.
struct Candidate {
  int64_t count = 0;
  Pair pair = 0;
  std::vector<uint32_t> words;
};

struct LessFrequent {
  // Of equal counts the pair of the lower ids comes first.
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.count != b.count ? a.count < b.count : a.pair > b.pair;
  }
};

class BpeTraining {
 public:
  BpeTraining(size_t vocab_size, const TrainBpeOptions& options) : size_(vocab_size), options_(options) {
    LEVIN_CHECK(vocab_size < (size_t{1} << 28), "[train_bpe] a vocabulary of ", vocab_size, " tokens is too large");
    for (const auto& token : options.special_tokens) {
      LEVIN_CHECK(!token.empty() && valid_utf8(token), "[train_bpe] a special token is empty, or not UTF-8");
      add_token(token);
    }
    std::vector<char32_t> alphabet;
    for (unsigned byte = 0; byte < 256; ++byte) alphabet.push_back(byte_to_char(static_cast<unsigned char>(byte)));
    std::sort(alphabet.begin(), alphabet.end());
    for (const auto point : alphabet) add_token(to_utf8(point));
    for (unsigned byte = 0; byte < 256; ++byte)
      bytes_[byte] = ids_.at(to_utf8(byte_to_char(static_cast<unsigned char>(byte))));
    LEVIN_CHECK(tokens_.size() <= size_, "[train_bpe] a vocabulary of ", vocab_size,
                " tokens is too small; bytes and special tokens alone are ", tokens_.size());
    if (!options.pattern.empty()) pattern_ = Pattern::regex(options.pattern);
  }

  void count(std::string_view text) {
    LEVIN_CHECK(valid_utf8(text), "[train_bpe] a text is not UTF-8");
    LEVIN_CHECK(text.size() < (size_t{1} << 31), "[train_bpe] a line is too long");
    if (text.empty()) return;
    std::string with_space;
    const auto words = [&](std::string_view part) {
      if (options_.add_prefix_space && !part.starts_with(' ')) {
        with_space = " ";
        with_space += part;
        part = with_space;
      }
      add_words(part);
    };
    if (options_.pattern.empty()) {
      words(text);
      return;
    }
    parts_.clear();
    pattern_.parts(text, parts_);
    for (const auto& part : parts_) {
      const auto piece = text.substr(part.begin, part.end - part.begin);
      if (piece.empty()) continue;
      if (options_.add_prefix_space && !piece.starts_with(' '))
        ++counts_[" " + std::string(piece)];
      else
        add_word(piece);
    }
  }

  std::string run() {
    split_words();
    count_pairs();
    while (tokens_.size() < size_ && !queue_.empty()) {
      auto top = std::move(const_cast<Candidate&>(queue_.top()));  // it is popped at once
      queue_.pop();
      const auto now = pair_counts_.at(top.pair);
      if (top.count != now) {
        top.count = now;
        if (now > 0) queue_.push(std::move(top));
        continue;
      }
      if (top.count < 1 || static_cast<uint64_t>(top.count) < options_.min_frequency) break;
      merge(top);
    }
    return json();
  }

 private:
  void add_words(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      const auto end = scan_gpt2(text, at);
      add_word(text.substr(at, end - at));
      at = end;
    }
  }
  void add_word(std::string_view word) {
    const auto found = counts_.find(word);
    if (found != counts_.end())
      ++found->second;
    else
      counts_.emplace(std::string(word), 1);
  }

  uint32_t add_token(const std::string& token) {
    const auto [place, is_new] = ids_.try_emplace(token, static_cast<uint32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    return place->second;
  }

  void split_words() {
    for (const auto& [word, count] : counts_) {
      auto& symbols = words_.emplace_back();
      symbols.reserve(word.size());
      for (const char c : word) symbols.push_back(bytes_[static_cast<unsigned char>(c)]);
      word_counts_.push_back(static_cast<int64_t>(count));
    }
    counts_.clear();
  }

  void count_pairs() {
    std::unordered_map<Pair, std::vector<uint32_t>> where;
    for (uint32_t i = 0; i < words_.size(); ++i) {
      for (size_t k = 0; k + 1 < words_[i].size(); ++k) note(where, pair_of(words_[i][k], words_[i][k + 1]), i, 1);
    }
    enqueue(where);
  }

  void note(std::unordered_map<Pair, std::vector<uint32_t>>& where, Pair pair, uint32_t word, int64_t change) {
    pair_counts_[pair] += change * word_counts_[word];
    if (change < 0) return;
    auto& words = where[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void enqueue(std::unordered_map<Pair, std::vector<uint32_t>>& where) {
    for (auto& [pair, words] : where) {
      const auto count = pair_counts_[pair];
      if (count > 0) queue_.push({count, pair, std::move(words)});
    }
  }

  void merge(const Candidate& top) {
    const auto left = static_cast<uint32_t>(top.pair >> 32), right = static_cast<uint32_t>(top.pair);
    const auto id = add_token(tokens_[left] + tokens_[right]);
    merges_.push_back(top.pair);
    std::unordered_map<Pair, std::vector<uint32_t>> where;
    for (const auto word : top.words) {
      auto& symbols = words_[word];
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i] != left || symbols[i + 1] != right) continue;
        if (i > 0) {
          note(where, pair_of(symbols[i - 1], left), word, -1);
          note(where, pair_of(symbols[i - 1], id), word, 1);
        }
        symbols[i] = id;
        symbols.erase(symbols.begin() + static_cast<long>(i + 1));
        if (i + 1 < symbols.size()) {
          note(where, pair_of(right, symbols[i + 1]), word, -1);
          note(where, pair_of(id, symbols[i + 1]), word, 1);
        }
      }
    }
    enqueue(where);
  }

  std::string json() const {
    using Json = nlohmann::json;
    const auto quoted = [](const std::string& text) { return Json(text).dump(); };
    std::string out =
        "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
    for (size_t i = 0; i < options_.special_tokens.size(); ++i) {
      const auto& token = options_.special_tokens[i];
      out += i == 0 ? "\n" : ",\n";
      out +=
          "    {\"id\": " + std::to_string(ids_.at(token)) + ", \"content\": " + quoted(token) +
          ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}";
    }
    const std::string prefix = options_.add_prefix_space ? "true" : "false";
    const auto byte_level = [&](bool regex) {
      return "{\"type\": \"ByteLevel\", \"add_prefix_space\": " + prefix +
             ", \"trim_offsets\": true, \"use_regex\": " + (regex ? "true}" : "false}");
    };
    auto pre = byte_level(true);
    if (!options_.pattern.empty())
      pre = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": " +
            quoted(options_.pattern) + "}, \"behavior\": \"Isolated\", \"invert\": false}, " + byte_level(false) + "]}";
    out += "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": " + pre +
           ",\n  \"post_processor\": " + byte_level(true) + ",\n  \"decoder\": " + byte_level(true) +
           ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
           "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
           "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {";
    for (size_t i = 0; i < tokens_.size(); ++i)
      out += (i == 0 ? "\n      " : ",\n      ") + quoted(tokens_[i]) + ": " + std::to_string(i);
    out += "\n    },\n    \"merges\": [";
    // Of a pair that was merged twice the last rank counts.
    std::unordered_map<Pair, size_t> last;
    for (size_t i = 0; i < merges_.size(); ++i) last[merges_[i]] = i;
    bool first = true;
    for (size_t i = 0; i < merges_.size(); ++i) {
      if (last.at(merges_[i]) != i) continue;
      out += first ? "\n      [" : ",\n      [";
      first = false;
      out += quoted(tokens_[merges_[i] >> 32]) + ", " + quoted(tokens_[merges_[i] & 0xffffffff]) + "]";
    }
    return out + "\n    ]\n  }\n}\n";
  }

  size_t size_;
  TrainBpeOptions options_;
  Pattern pattern_ = Pattern::string("");
  std::vector<Part> parts_;
  std::unordered_map<std::string, uint64_t, StringHash, std::equal_to<>> counts_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, uint32_t> ids_;
  uint32_t bytes_[256] = {};
  std::vector<std::vector<uint32_t>> words_;
  std::vector<int64_t> word_counts_;
  std::unordered_map<Pair, int64_t> pair_counts_;
  std::priority_queue<Candidate, std::vector<Candidate>, LessFrequent> queue_;
  std::vector<Pair> merges_;
};

}  // namespace

std::string train_bpe(const std::function<bool(std::string_view&)>& next, size_t vocab_size,
                      const TrainBpeOptions& options) {
  BpeTraining training(vocab_size, options);
  for (std::string_view text; next(text);) training.count(text);
  return training.run();
}

std::string train_bpe(std::span<const std::filesystem::path> files, size_t vocab_size, const TrainBpeOptions& options) {
  LEVIN_CHECK(!files.empty(), "[train_bpe] there are no files");
  BpeTraining training(vocab_size, options);
  constexpr size_t kBlock = size_t{8} << 20;
  for (const auto& path : files) {
    const FileReader file(path);
    std::string block;
    for (uint64_t at = 0; at < file.size();) {
      const auto kept = block.size();
      const auto bytes = static_cast<size_t>(std::min<uint64_t>(kBlock, file.size() - at));
      block.resize(kept + bytes);
      file.read(at, std::as_writable_bytes(std::span(block)).subspan(kept));
      at += bytes;
      size_t rest = 0;
      for (size_t end; (end = block.find('\n', std::max(rest, rest == 0 ? kept : rest))) != block.npos; rest = end + 1)
        training.count(std::string_view(block).substr(rest, end + 1 - rest));
      block.erase(0, rest);
      LEVIN_CHECK(block.size() < (size_t{1} << 31), "[train_bpe] a line of \"", shown(path.string()), "\" is too long");
    }
    training.count(block);
  }
  return training.run();
}

}  // namespace levin::text
