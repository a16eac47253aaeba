#include "levin/text/sentencepiece.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text {
namespace {

using Json = nlohmann::json;

// The wire format of protocol buffers, as far as this file has it.
class Message {
 public:
  explicit Message(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint32_t number = 0;
    uint64_t value = 0;      // of numbers
    std::string_view bytes;  // of texts and messages
    bool is_bytes = false;
  };

  bool next(Field& field) {
    if (at_ == bytes_.size()) return false;
    const auto key = varint();
    field = {.number = static_cast<uint32_t>(key >> 3)};
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed(8);
        break;
      case 2: {
        const auto size = varint();
        need(size);
        field.bytes = bytes_.substr(at_, size);
        field.is_bytes = true;
        at_ += size;
        break;
      }
      case 5:
        field.value = fixed(4);
        break;
      default:
        fail_damaged();
    }
    return true;
  }

 private:
  [[noreturn]] static void fail_damaged() {
    ::levin::detail::fail("[tokenizer] the file is no SentencePiece model, or is damaged");
  }
  void need(uint64_t bytes) const {
    if (bytes > bytes_.size() - at_) fail_damaged();
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64; shift += 7) {
      need(1);
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail_damaged();
  }
  uint64_t fixed(size_t size) {
    need(size);
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i)
      value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes_[at_++])) << 8 * i;
    return value;
  }

  std::string_view bytes_;
  size_t at_ = 0;
};

struct SentencePieceModel {
  struct Entry {
    std::string text;
    double score = 0;
    uint64_t type = 1;
  };
  std::vector<Entry> pieces;
  uint64_t model_type = 1;
  uint64_t unk_id = 0;
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>";
  std::string charsmap;
};

constexpr uint64_t kUnknownPiece = 2, kControlPiece = 3, kUserPiece = 4;

SentencePieceModel read_model(std::string_view bytes) {
  SentencePieceModel model;
  Message file(bytes);
  Message::Field field, inner;
  while (file.next(field)) {
    if (!field.is_bytes) continue;
    Message message(field.bytes);
    if (field.number == 1) {
      auto& piece = model.pieces.emplace_back();
      while (message.next(inner)) {
        if (inner.number == 1) piece.text = inner.bytes;
        if (inner.number == 2) {
          const auto bits = static_cast<uint32_t>(inner.value);
          float score;
          std::memcpy(&score, &bits, 4);
          piece.score = score;
        }
        if (inner.number == 3) piece.type = inner.value;
      }
      LEVIN_CHECK(valid_utf8(piece.text) && piece.text.size() < 10'000, "[tokenizer] piece ", model.pieces.size() - 1,
                  " of the SentencePiece model is not UTF-8, or too long");
      LEVIN_CHECK(piece.score - piece.score == 0, "[tokenizer] piece ", model.pieces.size() - 1,
                  " of the SentencePiece model has no finite score");
    } else if (field.number == 2) {
      while (message.next(inner)) {
        if (inner.number == 3) model.model_type = inner.value;
        if (inner.number == 40) model.unk_id = inner.value;
        if (inner.number == 45) model.unk_piece = inner.bytes;
        if (inner.number == 46) model.bos_piece = inner.bytes;
        if (inner.number == 47) model.eos_piece = inner.bytes;
      }
    } else if (field.number == 3) {
      while (message.next(inner)) {
        if (inner.number == 2) model.charsmap = inner.bytes;
      }
    }
  }
  LEVIN_CHECK(!model.pieces.empty(), "[tokenizer] the file is no SentencePiece model: it has no pieces");
  for (const auto* text : {&model.unk_piece, &model.bos_piece, &model.eos_piece})
    LEVIN_CHECK(valid_utf8(*text), "[tokenizer] a name of the SentencePiece model is not UTF-8");
  LEVIN_CHECK(model.model_type == 1 || model.model_type == 2,
              "[tokenizer] the SentencePiece model is neither BPE nor Unigram (model_type ", model.model_type, ")");
  return model;
}

std::string encode_base64(std::string_view bytes) {
  constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    for (size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0);
    for (size_t i = 0; i < 4; ++i) out += i <= count ? digits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

// Every way to cut a piece into two others is a merge; a piece with a lower id is merged first.
Json merges_of(const std::vector<SentencePieceModel::Entry>& pieces,
               const std::unordered_map<std::string_view, uint32_t>& ids) {
  struct Cut {
    uint32_t left_points, right_points, left, right;
    std::string_view left_text, right_text;
  };
  Json merges = Json::array();
  std::vector<Cut> cuts;
  uint64_t work = 0;
  for (uint32_t id = 0; id < pieces.size(); ++id) {
    const std::string_view text = pieces[id].text;
    if (ids.at(text) != id) continue;
    work += text.size();
    LEVIN_CHECK(work < 100'000'000, "[tokenizer] the pieces of the SentencePiece model are too long");
    cuts.clear();
    const auto points = static_cast<uint32_t>(count_points(text));
    uint32_t before = 0;
    for (size_t at = 0; at < text.size();) {
      at += utf8_length(text[at]);
      ++before;
      if (at == text.size()) break;
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left != ids.end() && right != ids.end())
        cuts.push_back({before, points - before, left->second, right->second, left->first, right->first});
    }
    std::stable_sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) {
      return std::tie(a.left_points, a.right_points, a.left, a.right) <
             std::tie(b.left_points, b.right_points, b.left, b.right);
    });
    for (const auto& cut : cuts) merges.push_back({cut.left_text, cut.right_text});
  }
  return merges;
}

Json special(std::string_view token, bool is_special, size_t id) {
  return {{"id", id},        {"content", token},    {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", is_special}};
}

Json template_of(const Json& single, const Json& pair, const std::vector<std::pair<std::string, size_t>>& tokens) {
  Json specials = Json::object();
  for (const auto& [token, id] : tokens)
    specials[token] = {{"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}};
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", specials}};
}

Json special_part(std::string_view token, int type) {
  return {{"SpecialToken", {{"id", token}, {"type_id", type}}}};
}
Json text_part(const char* name, int type) {
  return {{"Sequence", {{"id", name}, {"type_id", type}}}};
}

Json metaspace(const char* scheme, bool split) {
  return {{"type", "Metaspace"}, {"replacement", "\xe2\x96\x81"}, {"prepend_scheme", scheme}, {"split", split}};
}

void make_llama(const SentencePieceModel& model, const SentencePieceOptions& options, Json& json) {
  std::unordered_map<std::string_view, uint32_t> ids;
  for (uint32_t id = 0; id < model.pieces.size(); ++id) ids[model.pieces[id].text] = id;
  Json vocab = Json::object();
  for (const auto& [text, id] : ids) vocab[std::string(text)] = id;
  json["model"] = {{"type", "BPE"},
                   {"vocab", std::move(vocab)},
                   {"merges", merges_of(model.pieces, ids)},
                   {"fuse_unk", true},
                   {"byte_fallback", true}};
  json["pre_tokenizer"] = metaspace("first", false);
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "\xe2\x96\x81"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  Json single = Json::array(), pair = Json::array();
  std::vector<std::pair<std::string, size_t>> used;
  const auto bos = ids.find(model.bos_piece), eos = ids.find(model.eos_piece);
  const bool with_bos = options.add_bos_token.value_or(false) && bos != ids.end();
  const bool with_eos = options.add_eos_token.value_or(false) && eos != ids.end();
  if (with_bos) used.emplace_back(model.bos_piece, bos->second);
  if (with_eos) used.emplace_back(model.eos_piece, eos->second);
  for (int i = 0; i < 2; ++i) {
    Json part = Json::array();
    if (with_bos) part.push_back(special_part(model.bos_piece, i));
    part.push_back(text_part(i == 0 ? "A" : "B", i));
    if (with_eos) part.push_back(special_part(model.eos_piece, i));
    if (i == 0) single = part;
    pair.insert(pair.end(), part.begin(), part.end());
  }
  json["post_processor"] = template_of(single, pair, used);
}

void make_unigram_json(const SentencePieceModel& model, const SentencePieceOptions& options, Json& json) {
  Json vocab = Json::array();
  Json normalizers = Json::array();
  if (!model.charsmap.empty())
    normalizers.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(model.charsmap)}});
  auto unk_id = model.unk_id;
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", {{{"type", "WhitespaceSplit"}}, metaspace("always", true)}}};
  json["decoder"] = metaspace("always", true);
  if (options.kind == SentencePieceKind::kXlmRoberta) {
    for (const char* token : {"<s>", "<pad>", "</s>", "<unk>"}) vocab.push_back({token, 0.0});
    for (size_t i = 3; i < model.pieces.size(); ++i) vocab.push_back({model.pieces[i].text, model.pieces[i].score});
    vocab.push_back({"<mask>", 0.0});
    unk_id = 3;
    const auto bos = special_part("<s>", 0), eos = special_part("</s>", 0), a = text_part("A", 0),
               b = text_part("B", 0);
    json["post_processor"] = template_of({bos, a, eos}, {bos, a, eos, eos, b, eos}, {{"<s>", 0}, {"</s>", 2}});
  } else {
    for (const auto& piece : model.pieces) vocab.push_back({piece.text, piece.score});
  }
  if (options.kind == SentencePieceKind::kT5) {
    for (int i = options.extra_ids - 1; i >= 0; --i) {
      const auto token = "<extra_id_" + std::to_string(i) + ">";
      json["added_tokens"].push_back(special(token, true, vocab.size()));
      vocab.push_back({token, 0.0});
    }
    unk_id = 2;
    const auto eos = special_part("</s>", 0), a = text_part("A", 0), b = text_part("B", 0);
    size_t eos_id = 1;
    for (size_t i = 0; i < model.pieces.size(); ++i) {
      if (model.pieces[i].text == "</s>") eos_id = i;
    }
    json["post_processor"] = template_of({a, eos}, {a, eos, b, eos}, {{"</s>", eos_id}});
  }
  if (options.kind == SentencePieceKind::kAuto) {
    normalizers.push_back({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}});
    normalizers.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "\xe2\x96\x81"}});
    json["pre_tokenizer"] = metaspace("always", true);
  }
  if (!normalizers.empty()) json["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
  LEVIN_CHECK(unk_id < vocab.size(), "[tokenizer] the unk_id of the SentencePiece model is larger than its vocabulary");
  json["model"] = {{"type", "Unigram"}, {"unk_id", unk_id}, {"vocab", std::move(vocab)}, {"byte_fallback", false}};
}

}  // namespace

std::string json_of_sentencepiece(std::string_view bytes, const SentencePieceOptions& options) {
  const auto model = read_model(bytes);
  const bool is_bpe = model.model_type == 2;
  LEVIN_CHECK(is_bpe || options.kind != SentencePieceKind::kLlama,
              "[tokenizer] the SentencePiece model is Unigram; Llama's are BPE");
  LEVIN_CHECK(!is_bpe || options.kind == SentencePieceKind::kLlama || options.kind == SentencePieceKind::kAuto,
              "[tokenizer] the SentencePiece model is BPE; T5's and XLM-RoBERTa's are Unigram");
  Json json = {{"version", "1.0"}, {"added_tokens", Json::array()}};
  if (is_bpe)
    make_llama(model, options, json);
  else
    make_unigram_json(model, options, json);
  // Ids are those of the vocabulary; XLM-RoBERTa has names of its own for its first tokens.
  std::vector<std::string> names;
  for (const auto& piece : model.pieces) {
    const bool is_special = piece.type == kControlPiece || piece.type == kUnknownPiece;
    if ((!is_special && piece.type != kUserPiece) || piece.text.empty()) continue;
    if (std::find(names.begin(), names.end(), piece.text) != names.end()) continue;
    names.push_back(piece.text);
    json["added_tokens"].push_back(special(piece.text, is_special, 0));
    LEVIN_CHECK(names.size() <= 20'000, "[tokenizer] the SentencePiece model has too many control pieces");
  }
  if (options.kind == SentencePieceKind::kXlmRoberta) {
    for (const char* token : {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}) {
      if (std::find(names.begin(), names.end(), token) == names.end())
        json["added_tokens"].push_back(special(token, true, 0));
    }
  }
  return json.dump();
}

}  // namespace levin::text
