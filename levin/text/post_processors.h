#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "levin/text/encoding.h"

/// The post-processors of tokenizer.json: they add [CLS], </s> and the like.
namespace levin::text {

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  /// One encoding for each text, or for each part of a template; their order is that of the result.
  virtual void process(std::vector<Encoding>& encodings, bool add_special_tokens) const = 0;
  /// Whether offsets are trimmed by the text of the tokens, which is needed for it.
  virtual bool reads_tokens() const { return false; }
};
using PostProcessorPointer = std::unique_ptr<const PostProcessor>;

struct SpecialToken {
  std::string token;
  int64_t id = 0;
};

/// A part of a template: a text (0 or 1), or special tokens.
struct TemplatePart {
  int text = -1;
  std::vector<SpecialToken> tokens;
  int64_t type_id = 0;
};

PostProcessorPointer make_template_processing(std::vector<TemplatePart> single, std::vector<TemplatePart> pair);
PostProcessorPointer make_byte_level_processor(bool add_prefix_space, bool trim_offsets);
PostProcessorPointer make_bert_processing(SpecialToken cls, SpecialToken sep);
PostProcessorPointer make_roberta_processing(SpecialToken cls, SpecialToken sep, bool add_prefix_space,
                                             bool trim_offsets);
PostProcessorPointer make_post_processor_sequence(std::vector<PostProcessorPointer> parts);

}  // namespace levin::text
