#include "levin/text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/text/sentencepiece.h"
#include "levin/text/tokenizer_parts.h"

namespace levin::text {
namespace {

// A cache for as long as a call lasts.
class BorrowedCache {
 public:
  explicit BorrowedCache(Tokenizer::Parts::Caches& caches) : caches_(caches) {
    const std::lock_guard lock(caches_.mutex);
    if (caches_.idle.empty()) {
      cache_ = std::make_unique<PieceCache>();
    } else {
      cache_ = std::move(caches_.idle.back());
      caches_.idle.pop_back();
    }
  }
  ~BorrowedCache() {
    const std::lock_guard lock(caches_.mutex);
    if (caches_.idle.size() < 256) caches_.idle.push_back(std::move(cache_));
  }
  BorrowedCache(const BorrowedCache&) = delete;
  BorrowedCache& operator=(const BorrowedCache&) = delete;
  PieceCache& operator*() const { return *cache_; }

 private:
  Tokenizer::Parts::Caches& caches_;
  std::unique_ptr<PieceCache> cache_;
};

// From bytes to the number of the character that they are in; empty for ASCII, where both are the same.
std::vector<uint32_t> character_numbers(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return {};
  std::vector<uint32_t> numbers(text.size() + 1);
  uint32_t count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    count += (text[i] & 0xc0) != 0x80;
    numbers[i] = count - 1;
  }
  numbers[text.size()] = count;
  return numbers;
}

class Encoder {
 public:
  Encoder(const Tokenizer::Parts& parts, PieceCache& cache, const EncodeOptions& options)
      : parts_(parts), cache_(cache), options_(options) {
    reads_tokens_ = options.offsets && parts.post_processor && parts.post_processor->reads_tokens();
  }

  // One text, before the post-processor.
  Encoding encode(std::string_view text) {
    LEVIN_CHECK(text.size() < (size_t{1} << 31), "[tokenizer.encode] a text of ", text.size(), " bytes is too long");
    const auto good = valid_utf8_prefix(text);
    LEVIN_CHECK(good == text.size(), "[tokenizer.encode] the text is not UTF-8 at byte ", good);
    auto pieces = cut(text);
    Encoding out;
    const bool with_tokens = options_.tokens || reads_tokens_;
    const auto numbers = options_.offsets ? character_numbers(text) : std::vector<uint32_t>();
    const auto view = pieces.text.text();
    const bool plain = pieces.text.is_original() && numbers.empty();
    const auto guess = view.size() / 4 + 4;
    out.ids.reserve(guess);
    if (options_.offsets) out.offsets.reserve(guess);
    const auto place = [&](size_t begin, size_t end) -> Span {
      if (plain || begin == end) return {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
      const auto at = pieces.text.is_original() ? Span{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}
                                                : pieces.text.source(begin, end);
      if (numbers.empty()) return at;
      return {numbers[at.begin], at.end > at.begin ? numbers[at.end - 1] + 1 : numbers[at.end]};
    };
    const auto& vocabulary = parts_.model->vocabulary();
    std::vector<ModelToken> made;
    std::span<const ModelToken> tokens;
    for (const auto& piece : pieces.list) {
      const auto part = view.substr(piece.begin, piece.end - piece.begin);
      if (piece.token >= 0) {
        out.ids.push_back(piece.token);
        if (options_.offsets) out.offsets.push_back(place(piece.begin, piece.end));
        if (with_tokens) out.tokens.emplace_back(part);
        continue;
      }
      const auto hash = part.size() <= PieceCache::kLongest ? PieceCache::hash(part) : 0;
      if (part.size() > PieceCache::kLongest || !cache_.find(part, hash, tokens)) {
        made.clear();
        parts_.model->tokenize(part, pieces.byte_level, made);
        cache_.add(part, hash, made);
        tokens = made;
      }
      for (const auto& token : tokens) {
        out.ids.push_back(token.id);
        if (options_.offsets) out.offsets.push_back(place(piece.begin + token.begin, piece.begin + token.end));
        if (with_tokens) {
          if (token.is_text)
            out.tokens.emplace_back(part.substr(token.begin, token.end - token.begin));
          else
            out.tokens.push_back(*vocabulary.token(token.id));
        }
      }
    }
    out.special_mask.assign(out.ids.size(), 0);
    out.type_ids.assign(out.ids.size(), 0);
    return out;
  }

  Encoding process(std::vector<Encoding> encodings) const {
    if (parts_.post_processor) parts_.post_processor->process(encodings, options_.add_special_tokens);
    Encoding out;
    if (encodings.size() == 1) {
      out = std::move(encodings[0]);
    } else {
      for (const auto& encoding : encodings) out.append(encoding);
    }
    if (!options_.tokens) out.tokens.clear();
    if (!options_.offsets) out.offsets.clear();
    return out;
  }

 private:
  Pieces cut(std::string_view text) const {
    Pieces pieces{.text = Aligned(text), .list = {}};
    if (!text.empty()) pieces.list.push_back({0, static_cast<uint32_t>(text.size()), -1});
    if (parts_.added) parts_.added->cut(pieces, false, options_.special_tokens_in_text);
    if (parts_.normalizer) normalize(pieces);
    if (parts_.added) parts_.added->cut(pieces, true, options_.special_tokens_in_text);
    if (parts_.pre_tokenizer) parts_.pre_tokenizer->cut(pieces);
    return pieces;
  }

  void normalize(Pieces& pieces) const {
    const auto original = pieces.text.text();
    std::vector<Aligned> parts;
    bool changed = false;
    for (const auto& piece : pieces.list) {
      parts.emplace_back(original.substr(piece.begin, piece.end - piece.begin), piece.begin);
      if (piece.token >= 0) continue;
      parts.back() = Aligned(original.substr(piece.begin, piece.end - piece.begin), piece.begin);
      parts_.normalizer->apply(parts.back());
      changed = changed || !parts.back().is_original();
    }
    if (!changed) return;
    if (parts.size() == 1) {
      pieces.text = std::move(parts[0]);
      pieces.list[0].end = static_cast<uint32_t>(pieces.text.text().size());
      if (pieces.list[0].end == 0) pieces.list.clear();
      return;
    }
    std::string text;
    std::vector<Span> spans;
    std::vector<Piece> list;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto begin = static_cast<uint32_t>(text.size());
      parts[i].copy_to(0, parts[i].text().size(), text, spans);
      check_growth(text.size(), original.size());
      if (begin < text.size()) list.push_back({begin, static_cast<uint32_t>(text.size()), pieces.list[i].token});
    }
    pieces.text = Aligned(std::move(text), std::move(spans));
    pieces.list = std::move(list);
  }

  const Tokenizer::Parts& parts_;
  PieceCache& cache_;
  EncodeOptions options_;
  bool reads_tokens_ = false;
};

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view json) {
  return Tokenizer(parts_of_json(json));
}

Tokenizer Tokenizer::from_sentencepiece(std::string_view model) {
  return from_json(json_of_sentencepiece(model));
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& file) {
  const auto content = read_file(file, uint64_t{512} << 20);
  try {
    return file.extension() == ".model" ? from_sentencepiece(content) : from_json(content);
  } catch (const Error& error) {
    throw Error(std::string(error.what()) + " (in \"" + shown(file.string()) + "\")");
  }
}

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const BorrowedCache cache(parts_->caches);
  Encoder encoder(*parts_, *cache, options);
  std::vector<Encoding> encodings;
  encodings.push_back(encoder.encode(text));
  return encoder.process(std::move(encodings));
}

Encoding Tokenizer::encode_pair(std::string_view text, std::string_view second, const EncodeOptions& options) const {
  const BorrowedCache cache(parts_->caches);
  Encoder encoder(*parts_, *cache, options);
  std::vector<Encoding> encodings;
  encodings.push_back(encoder.encode(text));
  encodings.push_back(encoder.encode(second));
  encodings[1].type_ids.assign(encodings[1].ids.size(), 1);
  return encoder.process(std::move(encodings));
}

std::vector<Encoding> Tokenizer::encode_batch(std::span<const std::string> texts, const EncodeOptions& options,
                                              int threads) const {
  if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  threads = static_cast<int>(std::min<size_t>(static_cast<size_t>(threads), texts.size()));
  std::vector<Encoding> out(texts.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (size_t i; (i = next++) < texts.size();) out[i] = encode(texts[i], options);
    } catch (...) {
      next = texts.size();
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
  return out;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const auto id : ids) {
    if (id < 0 || id > UINT32_MAX) continue;
    const std::string* token = parts_->added ? parts_->added->text(static_cast<uint32_t>(id)) : nullptr;
    if (!token) token = parts_->model->vocabulary().token(static_cast<uint32_t>(id));
    if (!token || (skip_special_tokens && parts_->added && parts_->added->is_special(*token))) continue;
    tokens.push_back(*token);
  }
  if (!parts_->decoder) return join(tokens, " ");
  parts_->decoder->decode(tokens);
  std::string text;
  for (const auto& token : tokens) text += token;
  return text;
}

std::optional<int64_t> Tokenizer::token_to_id(std::string_view token) const {
  if (parts_->added) {
    if (const auto id = parts_->added->find(token)) return *id;
  }
  const auto id = parts_->model->vocabulary().find(token);
  return id ? std::optional<int64_t>(*id) : std::nullopt;
}

std::optional<std::string> Tokenizer::id_to_token(int64_t id) const {
  if (id < 0 || id > UINT32_MAX) return std::nullopt;
  const std::string* token = parts_->added ? parts_->added->text(static_cast<uint32_t>(id)) : nullptr;
  if (!token) token = parts_->model->vocabulary().token(static_cast<uint32_t>(id));
  return token ? std::optional(*token) : std::nullopt;
}

int64_t Tokenizer::vocab_size() const {
  auto count = static_cast<int64_t>(parts_->model->vocabulary().size());
  if (parts_->added) {
    for (const auto& token : parts_->added->list()) count += !parts_->model->vocabulary().find(token.content);
  }
  return count;
}

int64_t Tokenizer::id_end() const {
  auto end = static_cast<int64_t>(parts_->model->vocabulary().end());
  if (parts_->added) {
    for (const auto& token : parts_->added->list()) end = std::max(end, token.id + 1);
  }
  return end;
}

bool Tokenizer::is_special(int64_t id) const {
  if (!parts_->added || id < 0 || id > UINT32_MAX) return false;
  const auto* text = parts_->added->text(static_cast<uint32_t>(id));
  return text && parts_->added->is_special(*text);
}

const TokenizerConfig& Tokenizer::config() const {
  return parts_->config;
}

std::string DecodeStream::step(int64_t id) {
  if (prefix_.empty() && !ids_.empty()) {
    auto text = tokenizer_.decode(ids_, skip_special_tokens_);
    if (!text.ends_with("\xef\xbf\xbd")) {
      prefix_ = std::move(text);
      prefix_ids_ = ids_.size();
    }
  }
  ids_.push_back(id);
  return advance(false);
}

std::string DecodeStream::finish() {
  auto rest = advance(true);
  ids_.clear();
  prefix_.clear();
  prefix_ids_ = 0;
  return rest;
}

std::string DecodeStream::advance(bool is_last) {
  const auto text = tokenizer_.decode(ids_, skip_special_tokens_);
  if (text.size() <= prefix_.size() || (!is_last && text.ends_with("\xef\xbf\xbd"))) return {};
  // Where a decoder changes what it gave before, what both have in common is passed over.
  size_t same = 0;
  while (same < prefix_.size() && text[same] == prefix_[same]) ++same;
  while (same > 0 && same < text.size() && (text[same] & 0xc0) == 0x80) --same;
  auto fresh = text.substr(same);
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<long>(prefix_ids_));
  prefix_ids_ = ids_.size();
  prefix_ = tokenizer_.decode(ids_, skip_special_tokens_);
  return fresh;
}

}  // namespace levin::text
