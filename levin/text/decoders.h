#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/text/pre_tokenizers.h"
#include "levin/text/unicode/pattern.h"

/// The decoders of tokenizer.json: tokens become text again.
namespace levin::text {

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Changes the list of tokens; the text is what is left, joined.
  virtual void decode(std::vector<std::string>& tokens) const = 0;
};
using DecoderPointer = std::unique_ptr<const Decoder>;

DecoderPointer make_byte_level_decoder();
DecoderPointer make_word_piece_decoder(std::string prefix, bool cleanup);
DecoderPointer make_metaspace_decoder(char32_t replacement, PrependScheme scheme);
DecoderPointer make_bpe_decoder(std::string suffix);
DecoderPointer make_byte_fallback_decoder();
DecoderPointer make_fuse_decoder();
DecoderPointer make_strip_decoder(char32_t content, size_t start, size_t stop);
DecoderPointer make_replace_decoder(Pattern pattern, std::string content);
DecoderPointer make_ctc_decoder(std::string pad_token, std::string word_delimiter_token, bool cleanup);
DecoderPointer make_decoder_sequence(std::vector<DecoderPointer> parts);

/// " ." becomes ".", " n't" becomes "n't" and so on: what `clean_up_tokenization_spaces` asks for.
std::string clean_up_spaces(std::string text);

}  // namespace levin::text
