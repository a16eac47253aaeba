#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/text/aligned.h"
#include "levin/text/unicode/pattern.h"

/// The pre-tokenizers of tokenizer.json: they cut the text into the pieces that the model sees.
namespace levin::text {

/// A range of the text's bytes; an added token when `token` is not negative.
struct Piece {
  uint32_t begin = 0, end = 0;
  int64_t token = -1;
};

/// A text and its pieces, in order and without empty ones.
struct Pieces {
  Aligned text;
  std::vector<Piece> list;
  /// The model is to see the characters that stand for the bytes of the pieces (see byte_to_char).
  bool byte_level = false;
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class PrependScheme { kAlways, kFirst, kNever };

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void cut(Pieces& pieces) const = 0;
};
using PreTokenizerPointer = std::unique_ptr<const PreTokenizer>;

struct ByteLevelOptions {
  bool add_prefix_space = true;
  bool use_regex = true;
  /// Leave the text as it is and set Pieces::byte_level: for the last pre-tokenizer before a model that reads bytes.
  bool keep_bytes = false;
};

PreTokenizerPointer make_byte_level(ByteLevelOptions options);
PreTokenizerPointer make_split(Pattern pattern, SplitBehavior behavior, bool invert);
PreTokenizerPointer make_metaspace(char32_t replacement, PrependScheme scheme, bool split);
PreTokenizerPointer make_whitespace();
PreTokenizerPointer make_whitespace_split();
PreTokenizerPointer make_bert_pre_tokenizer();
PreTokenizerPointer make_punctuation(SplitBehavior behavior);
PreTokenizerPointer make_digits(bool individual);
PreTokenizerPointer make_char_delimiter_split(char32_t delimiter);
PreTokenizerPointer make_unicode_scripts();
PreTokenizerPointer make_fixed_length(size_t length);
PreTokenizerPointer make_pre_tokenizer_sequence(std::vector<PreTokenizerPointer> parts);

}  // namespace levin::text
