#include "levin/text/post_processors.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/text/normalizers.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text {

void Encoding::append(const Encoding& other) {
  const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  add(ids, other.ids);
  add(tokens, other.tokens);
  add(offsets, other.offsets);
  add(special_mask, other.special_mask);
  add(type_ids, other.type_ids);
}

namespace {

Encoding special_encoding(const std::vector<SpecialToken>& tokens, int64_t type_id) {
  Encoding out;
  for (const auto& [token, id] : tokens) {
    out.ids.push_back(id);
    out.tokens.push_back(token);
    out.offsets.push_back({0, 0});
    out.special_mask.push_back(1);
    out.type_ids.push_back(type_id);
  }
  return out;
}

void set_type(Encoding& encoding, int64_t type_id) {
  encoding.type_ids.assign(encoding.ids.size(), type_id);
}

bool is_blank(char32_t point) {
  return point == 0x120 || properties(point).is_space();
}

// Takes the blanks at both ends of a token out of its offsets.
void trim(Encoding& encoding, bool add_prefix_space) {
  for (size_t i = 0; i < encoding.tokens.size() && i < encoding.offsets.size(); ++i) {
    const auto& token = encoding.tokens[i];
    uint32_t leading = 0, trailing = 0;
    size_t begin = 0, end = token.size();
    while (begin < token.size() && is_blank(decode_utf8(token, begin).point)) {
      begin += utf8_length(token[begin]);
      ++leading;
    }
    while (end > 0) {
      size_t last = end - 1;
      while (last > 0 && (token[last] & 0xc0) == 0x80) --last;
      if (!is_blank(decode_utf8(token, last).point)) break;
      end = last;
      ++trailing;
    }
    auto& [from, to] = encoding.offsets[i];
    if (leading > 0) {
      if ((i == 0 || from == 0) && add_prefix_space && leading == 1) leading = 0;
      from = std::min(from + leading, to);
    }
    if (trailing > 0 && to >= trailing) to = std::max(to - trailing, from);
  }
}

class TemplateProcessing : public PostProcessor {
 public:
  TemplateProcessing(std::vector<TemplatePart> single, std::vector<TemplatePart> pair)
      : single_(std::move(single)), pair_(std::move(pair)) {}
  void process(std::vector<Encoding>& encodings, bool add_special_tokens) const override {
    LEVIN_CHECK(encodings.size() == 1 || encodings.size() == 2,
                "[tokenizer] TemplateProcessing cannot follow a post-processor that has parts of its own");
    std::vector<Encoding> out;
    for (const auto& part : encodings.size() == 2 ? pair_ : single_) {
      if (part.text >= 0) {
        LEVIN_CHECK(static_cast<size_t>(part.text) < encodings.size(),
                    "[tokenizer] the template asks for a second text");
        out.push_back(encodings[static_cast<size_t>(part.text)]);
        set_type(out.back(), part.type_id);
      } else if (add_special_tokens) {
        out.push_back(special_encoding(part.tokens, part.type_id));
      }
    }
    encodings = std::move(out);
  }

 private:
  std::vector<TemplatePart> single_, pair_;
};

class ByteLevelProcessor : public PostProcessor {
 public:
  ByteLevelProcessor(bool add_prefix_space, bool trim_offsets)
      : add_prefix_space_(add_prefix_space), trim_offsets_(trim_offsets) {}
  void process(std::vector<Encoding>& encodings, bool) const override {
    if (!trim_offsets_) return;
    for (auto& encoding : encodings) trim(encoding, add_prefix_space_);
  }
  bool reads_tokens() const override { return trim_offsets_; }

 private:
  bool add_prefix_space_, trim_offsets_;
};

class BertProcessing : public PostProcessor {
 public:
  BertProcessing(SpecialToken cls, SpecialToken sep) : cls_{std::move(cls)}, sep_{std::move(sep)} {}
  void process(std::vector<Encoding>& encodings, bool add_special_tokens) const override {
    if (!add_special_tokens) return;
    for (size_t i = 0; i < encodings.size(); ++i) {
      Encoding out;
      if (i == 0) out = special_encoding(cls_, 0);
      out.append(encodings[i]);
      out.append(special_encoding(sep_, i == 0 ? 0 : 1));
      encodings[i] = std::move(out);
    }
  }

 private:
  std::vector<SpecialToken> cls_, sep_;
};

class RobertaProcessing : public PostProcessor {
 public:
  RobertaProcessing(SpecialToken cls, SpecialToken sep, bool add_prefix_space, bool trim_offsets)
      : cls_{std::move(cls)}, sep_{std::move(sep)}, add_prefix_space_(add_prefix_space), trim_offsets_(trim_offsets) {}
  void process(std::vector<Encoding>& encodings, bool add_special_tokens) const override {
    for (size_t i = 0; i < encodings.size(); ++i) {
      auto& encoding = encodings[i];
      if (trim_offsets_) trim(encoding, add_prefix_space_);
      set_type(encoding, 0);
      if (!add_special_tokens) continue;
      auto out = special_encoding(i == 0 ? cls_ : sep_, 0);
      out.append(encoding);
      out.append(special_encoding(sep_, 0));
      encoding = std::move(out);
    }
  }
  bool reads_tokens() const override { return trim_offsets_; }

 private:
  std::vector<SpecialToken> cls_, sep_;
  bool add_prefix_space_, trim_offsets_;
};

class ProcessorSequence : public PostProcessor {
 public:
  explicit ProcessorSequence(std::vector<PostProcessorPointer> parts) : parts_(std::move(parts)) {}
  void process(std::vector<Encoding>& encodings, bool add_special_tokens) const override {
    for (const auto& part : parts_) part->process(encodings, add_special_tokens);
  }
  bool reads_tokens() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->reads_tokens(); });
  }

 private:
  std::vector<PostProcessorPointer> parts_;
};

}  // namespace

PostProcessorPointer make_template_processing(std::vector<TemplatePart> single, std::vector<TemplatePart> pair) {
  return std::make_unique<TemplateProcessing>(std::move(single), std::move(pair));
}
PostProcessorPointer make_byte_level_processor(bool add_prefix_space, bool trim_offsets) {
  return std::make_unique<ByteLevelProcessor>(add_prefix_space, trim_offsets);
}
PostProcessorPointer make_bert_processing(SpecialToken cls, SpecialToken sep) {
  return std::make_unique<BertProcessing>(std::move(cls), std::move(sep));
}
PostProcessorPointer make_roberta_processing(SpecialToken cls, SpecialToken sep, bool add_prefix_space,
                                             bool trim_offsets) {
  return std::make_unique<RobertaProcessing>(std::move(cls), std::move(sep), add_prefix_space, trim_offsets);
}
PostProcessorPointer make_post_processor_sequence(std::vector<PostProcessorPointer> parts) {
  return std::make_unique<ProcessorSequence>(std::move(parts));
}

}  // namespace levin::text
