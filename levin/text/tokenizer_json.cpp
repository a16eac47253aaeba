#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/json_reader.h"
#include "levin/text/tokenizer_parts.h"

namespace levin::text {
namespace {

using Json = nlohmann::json;

[[noreturn]] void fail_type(std::string_view what, const std::string& type) {
  ::levin::detail::fail(::levin::detail::concat("[tokenizer] the ", what, " \"", shown(type), "\" is not known"));
}

// A member of an object, checked.
const Json* member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

[[noreturn]] void fail_member(const char* name, const char* wanted) {
  ::levin::detail::fail(::levin::detail::concat("[tokenizer] \"", name, "\" is not ", wanted));
}

bool get_bool(const Json& object, const char* name, bool otherwise) {
  const auto* value = member(object, name);
  if (!value) return otherwise;
  if (!value->is_boolean()) fail_member(name, "true or false");
  return value->get<bool>();
}

std::optional<std::string> maybe_string(const Json& object, const char* name) {
  const auto* value = member(object, name);
  if (!value) return std::nullopt;
  if (!value->is_string()) fail_member(name, "a string");
  return value->get<std::string>();
}

std::string get_string(const Json& object, const char* name) {
  auto value = maybe_string(object, name);
  LEVIN_CHECK(value, "[tokenizer] \"", name, "\" is missing");
  return *std::move(value);
}

uint64_t get_count(const Json& value, const char* name) {
  if (!value.is_number_unsigned()) fail_member(name, "a whole number that is not negative");
  return value.get<uint64_t>();
}

uint64_t get_count(const Json& object, const char* name, uint64_t otherwise) {
  const auto* value = member(object, name);
  return value ? get_count(*value, name) : otherwise;
}

char32_t get_char(const Json& object, const char* name) {
  const auto points = to_points(get_string(object, name));
  if (points.size() != 1) fail_member(name, "one character");
  return points[0];
}

const Json& get_list(const Json& object, const char* name) {
  const auto* value = member(object, name);
  if (!value || !value->is_array()) fail_member(name, "a list");
  LEVIN_CHECK(value->size() <= 10'000'000, "[tokenizer] \"", name, "\" is too long");
  return *value;
}

std::string type_of(const Json& object, std::string_view what) {
  LEVIN_CHECK(object.is_object(), "[tokenizer] a ", what, " is not an object");
  return get_string(object, "type");
}

Pattern get_pattern(const Json& object) {
  const auto* pattern = member(object, "pattern");
  if (pattern && pattern->is_string()) return Pattern::string(pattern->get<std::string>());
  if (!pattern || !pattern->is_object()) fail_member("pattern", "a String or a Regex");
  if (const auto text = maybe_string(*pattern, "String")) return Pattern::string(*text);
  return Pattern::regex(get_string(*pattern, "Regex"));
}

SplitBehavior get_behavior(const Json& object, const char* otherwise) {
  const auto name = maybe_string(object, "behavior").value_or(otherwise);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  fail_type("split behavior", name);
}

PrependScheme get_scheme(const Json& object) {
  const auto name = maybe_string(object, "prepend_scheme");
  auto scheme = PrependScheme::kAlways;
  if (name) {
    if (*name == "first")
      scheme = PrependScheme::kFirst;
    else if (*name == "never")
      scheme = PrependScheme::kNever;
    else if (*name != "always")
      fail_type("prepend_scheme", *name);
  }
  if (!get_bool(object, "add_prefix_space", true)) {
    LEVIN_CHECK(!name || scheme == PrependScheme::kNever,
                "[tokenizer] add_prefix_space is false, but prepend_scheme is \"", shown(*name), "\"");
    scheme = PrependScheme::kNever;
  }
  return scheme;
}

std::string decode_base64(std::string_view text) {
  std::string out;
  uint32_t bits = 0, count = 0;
  for (const char c : text) {
    uint32_t digit;
    if (c >= 'A' && c <= 'Z')
      digit = static_cast<uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z')
      digit = static_cast<uint32_t>(c - 'a' + 26);
    else if (c >= '0' && c <= '9')
      digit = static_cast<uint32_t>(c - '0' + 52);
    else if (c == '+')
      digit = 62;
    else if (c == '/')
      digit = 63;
    else if (c == '=')
      break;
    else
      fail_member("precompiled_charsmap", "base64");
    bits = bits << 6 | digit;
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xff);
    }
  }
  return out;
}

NormalizerPointer read_normalizer(const Json& json) {
  const auto type = type_of(json, "normalizer");
  if (type == "NFC") return make_normal_form(NormalForm::kNfc);
  if (type == "NFD") return make_normal_form(NormalForm::kNfd);
  if (type == "NFKC") return make_normal_form(NormalForm::kNfkc);
  if (type == "NFKD") return make_normal_form(NormalForm::kNfkd);
  if (type == "Lowercase") return make_lowercase();
  if (type == "Strip") return make_strip(get_bool(json, "strip_left", true), get_bool(json, "strip_right", true));
  if (type == "StripAccents") return make_strip_accents();
  if (type == "Replace") return make_replace(get_pattern(json), get_string(json, "content"));
  if (type == "Prepend") return make_prepend(get_string(json, "prepend"));
  if (type == "Nmt") return make_nmt();
  if (type == "ByteLevel") return make_byte_level_normalizer();
  if (type == "Precompiled") return make_precompiled(decode_base64(get_string(json, "precompiled_charsmap")));
  if (type == "BertNormalizer") {
    BertNormalizerOptions options;
    options.clean_text = get_bool(json, "clean_text", true);
    options.handle_chinese_chars = get_bool(json, "handle_chinese_chars", true);
    if (member(json, "strip_accents")) options.strip_accents = get_bool(json, "strip_accents", true);
    options.lowercase = get_bool(json, "lowercase", true);
    return make_bert_normalizer(options);
  }
  if (type == "Sequence") {
    std::vector<NormalizerPointer> parts;
    for (const auto& part : get_list(json, "normalizers")) parts.push_back(read_normalizer(part));
    return make_normalizer_sequence(std::move(parts));
  }
  fail_type("normalizer", type);
}

// `last` when the model is next, and reads bytes.
PreTokenizerPointer read_pre_tokenizer(const Json& json, bool last) {
  const auto type = type_of(json, "pre-tokenizer");
  if (type == "ByteLevel")
    return make_byte_level({.add_prefix_space = get_bool(json, "add_prefix_space", true),
                            .use_regex = get_bool(json, "use_regex", true),
                            .keep_bytes = last});
  if (type == "Split")
    return make_split(get_pattern(json), get_behavior(json, "Isolated"), get_bool(json, "invert", false));
  if (type == "Metaspace")
    return make_metaspace(get_char(json, "replacement"), get_scheme(json), get_bool(json, "split", true));
  if (type == "Whitespace") return make_whitespace();
  if (type == "WhitespaceSplit") return make_whitespace_split();
  if (type == "BertPreTokenizer") return make_bert_pre_tokenizer();
  if (type == "Punctuation") return make_punctuation(get_behavior(json, "Isolated"));
  if (type == "Digits") return make_digits(get_bool(json, "individual_digits", false));
  if (type == "CharDelimiterSplit") return make_char_delimiter_split(get_char(json, "delimiter"));
  if (type == "UnicodeScripts") return make_unicode_scripts();
  if (type == "FixedLength") return make_fixed_length(get_count(json, "length", 5));
  if (type == "Sequence") {
    std::vector<PreTokenizerPointer> parts;
    const auto& list = get_list(json, "pretokenizers");
    for (size_t i = 0; i < list.size(); ++i) parts.push_back(read_pre_tokenizer(list[i], last && i + 1 == list.size()));
    return make_pre_tokenizer_sequence(std::move(parts));
  }
  fail_type("pre-tokenizer", type);
}

SpecialToken read_special_pair(const Json& json, const char* name) {
  const auto& pair = get_list(json, name);
  if (pair.size() != 2 || !pair[0].is_string()) fail_member(name, "a token and its id");
  return {pair[0].get<std::string>(), static_cast<int64_t>(get_count(pair[1], name))};
}

std::vector<TemplatePart> read_template(const Json& json, const char* name,
                                        const std::map<std::string, std::vector<SpecialToken>>& specials) {
  std::vector<TemplatePart> parts;
  for (const auto& item : get_list(json, name)) {
    LEVIN_CHECK(item.is_object() && item.size() == 1 && item.begin()->is_object(),
                "[tokenizer] a part of the template \"", name, "\" is not a Sequence or a SpecialToken");
    const auto& body = *item.begin();
    TemplatePart part{.type_id = static_cast<int64_t>(get_count(body, "type_id", 0) & 0xffffffff)};
    const auto id = get_string(body, "id");
    if (item.begin().key() == "Sequence") {
      LEVIN_CHECK(id == "A" || id == "B", "[tokenizer] the template \"", name, "\" has a sequence \"", shown(id), "\"");
      part.text = id == "A" ? 0 : 1;
    } else {
      const auto found = specials.find(id);
      LEVIN_CHECK(item.begin().key() == "SpecialToken" && found != specials.end(), "[tokenizer] the template \"", name,
                  "\" needs the special token \"", shown(id), "\", which is not there");
      part.tokens = found->second;
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

PostProcessorPointer read_post_processor(const Json& json) {
  const auto type = type_of(json, "post-processor");
  if (type == "ByteLevel")
    return make_byte_level_processor(get_bool(json, "add_prefix_space", true), get_bool(json, "trim_offsets", true));
  if (type == "BertProcessing")
    return make_bert_processing(read_special_pair(json, "cls"), read_special_pair(json, "sep"));
  if (type == "RobertaProcessing")
    return make_roberta_processing(read_special_pair(json, "cls"), read_special_pair(json, "sep"),
                                   get_bool(json, "add_prefix_space", true), get_bool(json, "trim_offsets", true));
  if (type == "TemplateProcessing") {
    std::map<std::string, std::vector<SpecialToken>> specials;
    if (const auto* all = member(json, "special_tokens")) {
      LEVIN_CHECK(all->is_object(), "[tokenizer] \"special_tokens\" is not an object");
      for (const auto& [name, value] : all->items()) {
        LEVIN_CHECK(value.is_object(), "[tokenizer] the special token \"", shown(name), "\" is not an object");
        const auto& ids = get_list(value, "ids");
        const auto& tokens = get_list(value, "tokens");
        LEVIN_CHECK(ids.size() == tokens.size(), "[tokenizer] the special token \"", shown(name), "\" has ", ids.size(),
                    " ids and ", tokens.size(), " tokens");
        auto& list = specials[name];
        for (size_t i = 0; i < ids.size(); ++i) {
          LEVIN_CHECK(tokens[i].is_string(), "[tokenizer] a token of \"", shown(name), "\" is not a string");
          list.push_back({tokens[i].get<std::string>(), static_cast<int64_t>(get_count(ids[i], "ids") & 0xffffffff)});
        }
      }
    }
    return make_template_processing(read_template(json, "single", specials), member(json, "pair")
                                                                                 ? read_template(json, "pair", specials)
                                                                                 : std::vector<TemplatePart>());
  }
  if (type == "Sequence") {
    std::vector<PostProcessorPointer> parts;
    for (const auto& part : get_list(json, "processors")) parts.push_back(read_post_processor(part));
    return make_post_processor_sequence(std::move(parts));
  }
  fail_type("post-processor", type);
}

DecoderPointer read_decoder(const Json& json) {
  const auto type = type_of(json, "decoder");
  if (type == "ByteLevel") return make_byte_level_decoder();
  if (type == "WordPiece")
    return make_word_piece_decoder(maybe_string(json, "prefix").value_or("##"), get_bool(json, "cleanup", true));
  if (type == "Metaspace") return make_metaspace_decoder(get_char(json, "replacement"), get_scheme(json));
  if (type == "BPEDecoder") return make_bpe_decoder(maybe_string(json, "suffix").value_or("</w>"));
  if (type == "ByteFallback") return make_byte_fallback_decoder();
  if (type == "Fuse") return make_fuse_decoder();
  if (type == "Strip")
    return make_strip_decoder(get_char(json, "content"), get_count(json, "start", 0), get_count(json, "stop", 0));
  if (type == "Replace") return make_replace_decoder(get_pattern(json), get_string(json, "content"));
  if (type == "CTC")
    return make_ctc_decoder(maybe_string(json, "pad_token").value_or("<pad>"),
                            maybe_string(json, "word_delimiter_token").value_or("|"), get_bool(json, "cleanup", true));
  if (type == "Sequence") {
    std::vector<DecoderPointer> parts;
    for (const auto& part : get_list(json, "decoders")) parts.push_back(read_decoder(part));
    return make_decoder_sequence(std::move(parts));
  }
  fail_type("decoder", type);
}

Vocabulary read_vocabulary(const Json& json) {
  const auto* vocab = member(json, "vocab");
  LEVIN_CHECK(vocab && vocab->is_object(), "[tokenizer] the model has no \"vocab\" of tokens and ids");
  // By id, so that the check against ids without tokens sees them in order.
  std::vector<std::pair<uint64_t, const std::string*>> all;
  all.reserve(vocab->size());
  for (auto item = vocab->begin(); item != vocab->end(); ++item)
    all.emplace_back(get_count(*item, "vocab"), &item.key());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Vocabulary vocabulary;
  for (const auto& [id, token] : all) vocabulary.add(*token, id);
  return vocabulary;
}

Merges read_merges(const Json& json) {
  Merges merges;
  const auto& list = get_list(json, "merges");
  merges.reserve(list.size());
  for (const auto& item : list) {
    if (item.is_array()) {
      LEVIN_CHECK(item.size() == 2 && item[0].is_string() && item[1].is_string(), "[tokenizer] merge ", merges.size(),
                  " is not a pair of tokens");
      merges.emplace_back(item[0].get<std::string>(), item[1].get<std::string>());
      continue;
    }
    LEVIN_CHECK(item.is_string(), "[tokenizer] merge ", merges.size(), " is not a pair of tokens");
    const auto& text = item.get_ref<const std::string&>();
    if (text.starts_with("#version")) continue;
    const auto blank = text.find(' ');
    LEVIN_CHECK(blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos, "[tokenizer] merge ",
                merges.size(), " is not two tokens with a blank between: \"", shown(text), "\"");
    merges.emplace_back(text.substr(0, blank), text.substr(blank + 1));
  }
  return merges;
}

/// The number as the package reads it: its digits become a double, and that is divided by a power of ten (serde_json
/// without float_roundtrip). The last bit decides between segmentations of equal score.
double rounded_twice(double exact) {
  std::array<char, 40> text;
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), std::abs(exact), std::chars_format::scientific);
  uint64_t digits = 0;
  int exponent = 0;
  for (const char* at = text.data(); at != end.ptr; ++at) {
    if (*at == 'e') {
      int power = 0;
      std::from_chars(at[1] == '+' ? at + 2 : at + 1, end.ptr, power);
      exponent += power;
      break;
    }
    if (*at == '.') continue;
    digits = 10 * digits + static_cast<uint64_t>(*at - '0');
    if (at != text.data()) --exponent;
  }
  constexpr int kMostDigits = 300;  // beyond these a power of ten is no double
  if (!std::isfinite(exact) || exponent < -kMostDigits || exponent > kMostDigits) return exact;
  double power = 1;
  const auto name = "1e" + std::to_string(std::abs(exponent));
  std::from_chars(name.data(), name.data() + name.size(), power);
  const auto number = static_cast<double>(digits);
  return std::copysign(exponent < 0 ? number / power : number * power, exact);
}

std::unique_ptr<Model> read_unigram(const Json& json) {
  Vocabulary vocabulary;
  std::vector<double> scores;
  for (const auto& item : get_list(json, "vocab")) {
    LEVIN_CHECK(item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_number(), "[tokenizer] entry ",
                scores.size(), " of the Unigram vocabulary is not a token and its score");
    vocabulary.add(item[0].get<std::string>(), scores.size());
    scores.push_back(rounded_twice(item[1].get<double>()));
  }
  std::optional<uint32_t> unk_id;
  if (const auto* id = member(json, "unk_id")) {
    const auto value = get_count(*id, "unk_id");
    LEVIN_CHECK(value < scores.size(), "[tokenizer] unk_id ", value, " is larger than the vocabulary");
    unk_id = static_cast<uint32_t>(value);
  }
  return make_unigram(std::move(vocabulary), std::move(scores), unk_id, get_bool(json, "byte_fallback", false));
}

std::unique_ptr<Model> read_model(const Json& json) {
  LEVIN_CHECK(json.is_object(), "[tokenizer] the model is not an object");
  auto type = maybe_string(json, "type").value_or("");
  if (type.empty()) {  // old files
    const auto* vocab = member(json, "vocab");
    type = member(json, "merges")                      ? "BPE"
           : vocab && vocab->is_array()                ? "Unigram"
           : member(json, "continuing_subword_prefix") ? "WordPiece"
                                                       : "WordLevel";
  }
  if (type == "BPE") {
    const auto* dropout = member(json, "dropout");
    LEVIN_CHECK(!dropout || (dropout->is_number() && dropout->get<double>() == 0.0),
                "[tokenizer] the model has a dropout, so that a text has no certain ids; set it to null");
    BpeOptions options;
    options.unk_token = maybe_string(json, "unk_token");
    options.continuing_subword_prefix = maybe_string(json, "continuing_subword_prefix");
    options.end_of_word_suffix = maybe_string(json, "end_of_word_suffix");
    // Empty texts change nothing.
    if (options.continuing_subword_prefix == "") options.continuing_subword_prefix.reset();
    if (options.end_of_word_suffix == "") options.end_of_word_suffix.reset();
    options.fuse_unk = get_bool(json, "fuse_unk", false);
    options.byte_fallback = get_bool(json, "byte_fallback", false);
    options.ignore_merges = get_bool(json, "ignore_merges", false);
    return make_bpe(read_vocabulary(json), read_merges(json), std::move(options));
  }
  if (type == "WordPiece")
    return make_word_piece(read_vocabulary(json), maybe_string(json, "unk_token").value_or("[UNK]"),
                           maybe_string(json, "continuing_subword_prefix").value_or("##"),
                           get_count(json, "max_input_chars_per_word", 100));
  if (type == "WordLevel")
    return make_word_level(read_vocabulary(json), maybe_string(json, "unk_token").value_or("<unk>"));
  if (type == "Unigram") return read_unigram(json);
  fail_type("model", type);
}

std::vector<AddedToken> read_added(const Json& json) {
  std::vector<AddedToken> tokens;
  for (const auto& item : get_list(json, "added_tokens")) {
    LEVIN_CHECK(item.is_object(), "[tokenizer] an added token is not an object");
    AddedToken token;
    token.content = get_string(item, "content");
    const auto* id = member(item, "id");
    LEVIN_CHECK(id, "[tokenizer] the added token \"", shown(token.content), "\" has no id");
    token.id = static_cast<int64_t>(std::min(get_count(*id, "id"), uint64_t{1} << 40));
    token.single_word = get_bool(item, "single_word", false);
    token.lstrip = get_bool(item, "lstrip", false);
    token.rstrip = get_bool(item, "rstrip", false);
    token.special = get_bool(item, "special", false);
    token.normalized = get_bool(item, "normalized", !token.special);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

std::unique_ptr<Tokenizer::Parts> parts_of_json(std::string_view text, std::vector<AddedToken> more) {
  check_json_depth(text, "tokenizer.json");
  const auto json = Json::parse(text, nullptr, false);
  LEVIN_CHECK(json.is_object(), "[tokenizer] the file is not a tokenizer.json");
  const auto version = maybe_string(json, "version");
  LEVIN_CHECK(!version || *version == "1.0", "[tokenizer] tokenizer.json has the version \"",
              shown(version.value_or("")), "\"; only 1.0 is known");
  auto parts = std::make_unique<Tokenizer::Parts>();
  const auto* model = member(json, "model");
  LEVIN_CHECK(model, "[tokenizer] the file is not a tokenizer.json: it has no \"model\"");
  parts->model = read_model(*model);
  if (const auto* part = member(json, "normalizer")) parts->normalizer = read_normalizer(*part);
  if (const auto* part = member(json, "pre_tokenizer"))
    parts->pre_tokenizer = read_pre_tokenizer(*part, parts->model->reads_bytes());
  if (const auto* part = member(json, "post_processor")) parts->post_processor = read_post_processor(*part);
  if (const auto* part = member(json, "decoder")) parts->decoder = read_decoder(*part);
  std::vector<AddedToken> added;
  if (member(json, "added_tokens")) added = read_added(json);
  for (auto& token : more) {
    const auto same = [&](const AddedToken& other) { return other.content == token.content; };
    if (std::none_of(added.begin(), added.end(), same)) added.push_back(std::move(token));
  }
  if (!added.empty())
    parts->added = std::make_unique<AddedTokens>(std::move(added), parts->model->vocabulary(), parts->normalizer.get());
  return parts;
}

}  // namespace levin::text
