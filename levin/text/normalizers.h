#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/text/aligned.h"
#include "levin/text/unicode/pattern.h"

/// The normalizers of tokenizer.json: they change the text before it is cut. Names are those of the file.
namespace levin::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(Aligned& text) const = 0;
};
using NormalizerPointer = std::unique_ptr<const Normalizer>;

struct BertNormalizerOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  /// By default as `lowercase`.
  std::optional<bool> strip_accents;
  bool lowercase = true;
};

NormalizerPointer make_normal_form(NormalForm form);
NormalizerPointer make_lowercase();
NormalizerPointer make_strip(bool left, bool right);
NormalizerPointer make_strip_accents();
NormalizerPointer make_replace(Pattern pattern, std::string content);
NormalizerPointer make_prepend(std::string head);
NormalizerPointer make_bert_normalizer(BertNormalizerOptions options);
NormalizerPointer make_nmt();
NormalizerPointer make_byte_level_normalizer();
/// `charsmap` is the table of a SentencePiece model: a double-array trie and the texts that it points to.
NormalizerPointer make_precompiled(std::string_view charsmap);
NormalizerPointer make_normalizer_sequence(std::vector<NormalizerPointer> parts);

/// The character that stands for a byte in byte-level vocabularies.
char32_t byte_to_char(unsigned char byte);
/// -1 when the character stands for no byte.
int char_to_byte(char32_t point);
/// Replaces every byte by its character.
void map_bytes(Aligned& text);

}  // namespace levin::text
