#include "levin/text/decoders.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/text/normalizers.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  std::string out;
  size_t rest = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, rest)) {
    out.append(text, rest, at - rest);
    out += to;
    rest = at + from.size();
  }
  if (rest == 0) return;
  out.append(text, rest);
  text = std::move(out);
}

class ByteLevelDecoder : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const auto& token : tokens) {
      const auto before = bytes.size();
      for (size_t at = 0; at < token.size();) {
        const auto [point, length] = decode_utf8(token, at);
        const int byte = char_to_byte(point);
        if (byte < 0) {  // no byte-level token: its text as it is
          bytes.resize(before);
          bytes += token;
          break;
        }
        bytes += static_cast<char>(byte);
        at += length;
      }
    }
    tokens = {replace_broken_utf8(bytes)};
  }
};

class WordPieceDecoder : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      auto& token = tokens[i];
      if (i > 0) {
        if (token.starts_with(prefix_))
          token.erase(0, prefix_.size());
        else
          token.insert(0, " ");
      }
      if (cleanup_) token = clean_up_spaces(std::move(token));
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(char32_t replacement, PrependScheme scheme) : word_(to_utf8(replacement)), scheme_(scheme) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], word_, i == 0 && scheme_ != PrependScheme::kNever ? "" : " ");
  }

 private:
  std::string word_;
  PrependScheme scheme_;
};

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }

 private:
  std::string suffix_;
};

class ByteFallbackDecoder : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (valid_utf8(bytes))
        out.push_back(bytes);
      else
        out.insert(out.end(), bytes.size(), "\xef\xbf\xbd");
      bytes.clear();
    };
    for (auto& token : tokens) {
      if (const int byte = byte_of(token); byte >= 0) {
        bytes += static_cast<char>(byte);
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    tokens = std::move(out);
  }

 private:
  static int byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
    const auto digit = [](char c) {
      if (c >= '0' && c <= '9') return c - '0';
      const char low = static_cast<char>(c | 32);
      return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
    };
    const int high = token[3] == '+' ? 0 : digit(token[3]), low = digit(token[4]);  // "+A" is a number in Rust
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }
};

class FuseDecoder : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::string all;
    for (const auto& token : tokens) all += token;
    tokens = {std::move(all)};
  }
};

class StripDecoder : public Decoder {
 public:
  StripDecoder(char32_t content, size_t start, size_t stop) : word_(to_utf8(content)), start_(start), stop_(stop) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (auto& token : tokens) {
      size_t begin = 0, end = token.size();
      for (size_t i = 0; i < start_ && std::string_view(token).substr(begin).starts_with(word_); ++i)
        begin += word_.size();
      for (size_t i = 0; i < stop_ && end >= begin + word_.size(); ++i) {
        if (std::string_view(token).substr(end - word_.size(), word_.size()) != word_) break;
        end -= word_.size();
      }
      token = token.substr(begin, end - begin);
    }
  }

 private:
  std::string word_;
  size_t start_, stop_;
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void decode(std::vector<std::string>& tokens) const override {
    std::vector<Part> parts;
    for (auto& token : tokens) {
      parts.clear();
      pattern_.parts(token, parts);
      check_growth(token.size() + parts.size() * content_.size(), token.size());
      std::string out;
      for (const auto& part : parts) {
        if (part.is_match)
          out += content_;
        else
          out.append(token, part.begin, part.end - part.begin);
      }
      token = std::move(out);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class CtcDecoder : public Decoder {
 public:
  CtcDecoder(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  void decode(std::vector<std::string>& tokens) const override {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (auto& token : tokens) {
      replace_all(token, pad_, "");
      if (!cleanup_) continue;
      token = clean_up_spaces(std::move(token));
      replace_all(token, delimiter_, " ");
    }
    std::erase_if(tokens, [](const auto& token) { return token.empty(); });
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

class DecoderSequence : public Decoder {
 public:
  explicit DecoderSequence(std::vector<DecoderPointer> parts) : parts_(std::move(parts)) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (const auto& part : parts_) part->decode(tokens);
  }

 private:
  std::vector<DecoderPointer> parts_;
};

}  // namespace

std::string clean_up_spaces(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> rules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : rules) replace_all(text, from, to);
  return text;
}

DecoderPointer make_byte_level_decoder() {
  return std::make_unique<ByteLevelDecoder>();
}
DecoderPointer make_word_piece_decoder(std::string prefix, bool cleanup) {
  return std::make_unique<WordPieceDecoder>(std::move(prefix), cleanup);
}
DecoderPointer make_metaspace_decoder(char32_t replacement, PrependScheme scheme) {
  return std::make_unique<MetaspaceDecoder>(replacement, scheme);
}
DecoderPointer make_bpe_decoder(std::string suffix) {
  return std::make_unique<BpeDecoder>(std::move(suffix));
}
DecoderPointer make_byte_fallback_decoder() {
  return std::make_unique<ByteFallbackDecoder>();
}
DecoderPointer make_fuse_decoder() {
  return std::make_unique<FuseDecoder>();
}
DecoderPointer make_strip_decoder(char32_t content, size_t start, size_t stop) {
  return std::make_unique<StripDecoder>(content, start, stop);
}
DecoderPointer make_replace_decoder(Pattern pattern, std::string content) {
  return std::make_unique<ReplaceDecoder>(std::move(pattern), std::move(content));
}
DecoderPointer make_ctc_decoder(std::string pad_token, std::string word_delimiter_token, bool cleanup) {
  return std::make_unique<CtcDecoder>(std::move(pad_token), std::move(word_delimiter_token), cleanup);
}
DecoderPointer make_decoder_sequence(std::vector<DecoderPointer> parts) {
  return std::make_unique<DecoderSequence>(std::move(parts));
}

}  // namespace levin::text
