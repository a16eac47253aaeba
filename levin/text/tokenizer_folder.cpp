#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/lfs_pointer.h"
#include "levin/core/words.h"
#include "levin/text/json_reader.h"
#include "levin/text/sentencepiece.h"
#include "levin/text/tokenizer_parts.h"

namespace levin::text {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kLargestFile = uint64_t{512} << 20;

/// A file that is often kept in Git LFS.
std::string read_large(const fs::path& path) {
  auto content = read_file(path, kLargestFile);
  LEVIN_CHECK(!::levin::detail::is_lfs_pointer(content), "[tokenizer] ", path.filename().string(),
              ::levin::detail::kIsLfsPointer);
  return content;
}

Json read_object(const fs::path& path) {
  if (!fs::exists(path)) return Json::object();
  const auto text = read_file(path, kLargestFile);
  check_json_depth(text, path.filename().string());
  auto json = Json::parse(text, nullptr, false);
  LEVIN_CHECK(json.is_object(), "[tokenizer] \"", shown(path.string()), "\" is not a JSON object");
  return json;
}

// What the files beside the vocabulary say.
struct FolderFiles {
  Json tokenizer_config, special_tokens_map, added_tokens, config;
};

std::optional<std::string> text_of(const Json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
    return (*found)["content"].get<std::string>();
  return std::nullopt;
}

std::optional<bool> bool_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() ? std::optional(found->get<bool>()) : std::nullopt;
}

bool flag_of(const Json& value, const char* name, bool otherwise) {
  return bool_of(value, name).value_or(otherwise);
}

TokenizerConfig read_config(const fs::path& folder, const FolderFiles& files) {
  TokenizerConfig config;
  const auto name = [&](const char* key) {
    auto text = text_of(files.tokenizer_config, key);
    return text ? text : text_of(files.special_tokens_map, key);
  };
  config.bos_token = name("bos_token");
  config.eos_token = name("eos_token");
  config.unk_token = name("unk_token");
  config.pad_token = name("pad_token");
  config.cls_token = name("cls_token");
  config.sep_token = name("sep_token");
  config.mask_token = name("mask_token");
  const auto& json = files.tokenizer_config;
  config.padding_side = text_of(json, "padding_side").value_or("");
  if (const auto found = json.find("model_max_length"); found != json.end() && found->is_number()) {
    const auto length = found->get<double>();  // "no limit" is written as 1e30
    if (length >= 0 && length < 1e15) config.model_max_length = static_cast<int64_t>(length);
  }
  LEVIN_CHECK(!bool_of(json, "split_special_tokens").value_or(false),
              "[tokenizer] tokenizer_config.json: split_special_tokens is not supported; set it to false, and encode ",
              "texts of users with special_tokens_in_text = false");
  config.add_bos_token = bool_of(json, "add_bos_token");
  config.add_eos_token = bool_of(json, "add_eos_token");
  config.clean_up_tokenization_spaces = bool_of(json, "clean_up_tokenization_spaces");
  if (const auto found = json.find("chat_template"); found != json.end()) {
    if (found->is_string()) config.chat_template = found->get<std::string>();
    if (found->is_array()) {
      for (const auto& item : *found) {
        if (!item.is_object()) continue;
        const auto key = text_of(item, "name"), text = text_of(item, "template");
        if (key && text) config.named_chat_templates[*key] = *text;
      }
      const auto plain = config.named_chat_templates.find("default");
      if (plain != config.named_chat_templates.end()) config.chat_template = plain->second;
    }
  }
  if (const auto path = folder / "chat_template.jinja"; fs::exists(path))
    config.chat_template = read_file(path, 1 << 20);
  return config;
}

AddedToken added_of(const Json& value, bool special) {
  AddedToken token;
  token.id = -1;
  token.special = special;
  token.normalized = !special;
  if (value.is_string()) {
    token.content = value.get<std::string>();
  } else if (value.is_object()) {
    token.content = text_of(value, "content").value_or("");
    token.lstrip = flag_of(value, "lstrip", false);
    token.rstrip = flag_of(value, "rstrip", false);
    token.single_word = flag_of(value, "single_word", false);
    token.special = special || flag_of(value, "special", false);
    token.normalized = flag_of(value, "normalized", !token.special);
  }
  return token;
}

// Tokens that stand in the files beside the vocabulary, those with an id first.
std::vector<AddedToken> more_tokens(const FolderFiles& files) {
  std::vector<AddedToken> tokens;
  const auto add = [&](AddedToken token) {
    const auto known = [&](const AddedToken& other) { return other.content == token.content; };
    if (!token.content.empty() && std::none_of(tokens.begin(), tokens.end(), known)) tokens.push_back(std::move(token));
  };
  if (const auto found = files.tokenizer_config.find("added_tokens_decoder");
      found != files.tokenizer_config.end() && found->is_object()) {
    for (const auto& [key, value] : found->items()) {
      auto token = added_of(value, false);
      LEVIN_CHECK(!key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == key.npos,
                  "[tokenizer] added_tokens_decoder has the id \"", shown(key), "\"");
      token.id = std::stoll(key);
      add(std::move(token));
    }
  }
  for (const auto& [content, id] : files.added_tokens.items()) {
    LEVIN_CHECK(id.is_number_unsigned(), "[tokenizer] added_tokens.json: \"", shown(content), "\" has no id");
    AddedToken token{.id = static_cast<int64_t>(std::min(id.get<uint64_t>(), uint64_t{1} << 40)), .content = content};
    add(std::move(token));
  }
  for (const auto* object : {&files.tokenizer_config, &files.special_tokens_map}) {
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      if (const auto found = object->find(key); found != object->end()) add(added_of(*found, true));
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      const auto found = object->find(key);
      if (found == object->end() || !found->is_array()) continue;
      for (const auto& value : *found) add(added_of(value, true));
    }
  }
  LEVIN_CHECK(tokens.size() <= 20'000, "[tokenizer] the folder names too many added tokens");
  return tokens;
}

// "GPT2", "Roberta", "Bert": the class without "Tokenizer" and "Fast", or by the model.
std::string class_of(const FolderFiles& files) {
  auto name = text_of(files.tokenizer_config, "tokenizer_class").value_or("");
  for (const char* end : {"Fast", "Tokenizer"}) {
    if (name.ends_with(end)) name.erase(name.size() - std::string_view(end).size());
  }
  if (!name.empty() && name != "PreTrained") return name;
  constexpr std::pair<const char*, const char*> models[] = {{"gpt2", "GPT2"},
                                                            {"opt", "GPT2"},
                                                            {"roberta", "Roberta"},
                                                            {"bart", "Roberta"},
                                                            {"qwen2", "Qwen2"},
                                                            {"qwen3", "Qwen2"},
                                                            {"bert", "Bert"},
                                                            {"distilbert", "DistilBert"},
                                                            {"electra", "Electra"},
                                                            {"mpnet", "Bert"},
                                                            {"llama", "Llama"},
                                                            {"mistral", "Llama"},
                                                            {"t5", "T5"},
                                                            {"mt5", "T5"},
                                                            {"xlm-roberta", "XLMRoberta"}};
  const auto model = text_of(files.config, "model_type").value_or("");
  for (const auto& [type, known] : models) {
    if (model == type) return known;
  }
  return "";
}

Json read_merges_file(const fs::path& path) {
  Json merges = Json::array();
  const auto text = read_file(path, kLargestFile);
  LEVIN_CHECK(valid_utf8(text), "[tokenizer] \"", shown(path.string()), "\" is not UTF-8");
  for (size_t at = 0; at < text.size();) {
    auto end = text.find('\n', at);
    if (end == text.npos) end = text.size();
    auto line = text.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.starts_with("#version")) continue;
    merges.push_back(std::move(line));
  }
  return merges;
}

Json bos_eos_template(const TokenizerConfig& config, const Json& vocab) {
  Json single = Json::array(), pair = Json::array(), specials = Json::object();
  const auto use = [&](const std::optional<std::string>& token, std::optional<bool> wanted) {
    if (!wanted.value_or(false) || !token) return false;
    LEVIN_CHECK(vocab.contains(*token), "[tokenizer] the token \"", shown(*token),
                "\" is to be added, but is not in the vocabulary");
    specials[*token] = {{"id", *token}, {"ids", Json::array({vocab[*token]})}, {"tokens", Json::array({*token})}};
    return true;
  };
  const bool bos = use(config.bos_token, config.add_bos_token), eos = use(config.eos_token, config.add_eos_token);
  for (int i = 0; i < 2; ++i) {
    Json part = Json::array();
    if (bos) part.push_back({{"SpecialToken", {{"id", *config.bos_token}, {"type_id", i}}}});
    part.push_back({{"Sequence", {{"id", i == 0 ? "A" : "B"}, {"type_id", i}}}});
    if (eos) part.push_back({{"SpecialToken", {{"id", *config.eos_token}, {"type_id", i}}}});
    if (i == 0) single = part;
    pair.insert(pair.end(), part.begin(), part.end());
  }
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", specials}};
}

// vocab.json and merges.txt: GPT-2, OPT, RoBERTa, Qwen2.
std::string json_of_byte_level(const fs::path& folder, FolderFiles& files, TokenizerConfig& config) {
  const auto kind = class_of(files);
  LEVIN_CHECK(kind.empty() || kind == "GPT2" || kind == "Roberta" || kind == "Bart" || kind == "Qwen2",
              "[tokenizer] vocab.json and merges.txt of a \"", shown(kind),
              "\" are not known (known: GPT2, Roberta, Bart, Qwen2); save it as tokenizer.json");
  const auto vocab = read_object(folder / "vocab.json");
  Json json = {{"version", "1.0"}, {"decoder", {{"type", "ByteLevel"}}}};
  const bool prefix = flag_of(files.tokenizer_config, "add_prefix_space", false);
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}};
  const auto otherwise = [&](std::optional<std::string>& token, const char* name, const char* key) {
    if (!token && !files.tokenizer_config.contains(key)) {
      token = name;
      files.tokenizer_config[key] = name;
    }
  };
  if (kind == "Roberta" || kind == "Bart") {
    otherwise(config.bos_token, "<s>", "bos_token");
    otherwise(config.eos_token, "</s>", "eos_token");
    otherwise(config.sep_token, "</s>", "sep_token");
    otherwise(config.cls_token, "<s>", "cls_token");
    otherwise(config.unk_token, "<unk>", "unk_token");
    otherwise(config.pad_token, "<pad>", "pad_token");
    otherwise(config.mask_token, "<mask>", "mask_token");
    const auto id = [&](const std::optional<std::string>& token) {
      LEVIN_CHECK(token && vocab.contains(*token), "[tokenizer] the token \"", shown(token.value_or("")),
                  "\" is not in vocab.json");
      return Json::array({*token, vocab[*token]});
    };
    json["post_processor"] = {{"type", "RobertaProcessing"},
                              {"sep", id(config.sep_token)},
                              {"cls", id(config.cls_token)},
                              {"trim_offsets", flag_of(files.tokenizer_config, "trim_offsets", true)},
                              {"add_prefix_space", prefix}};
  } else {
    if (kind == "Qwen2") {
      otherwise(config.pad_token, "<|endoftext|>", "pad_token");
      json["normalizer"] = {{"type", "NFC"}};
      json["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern",
              {{"Regex",
                R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"use_regex", false}}}}};
    } else {
      otherwise(config.bos_token, "<|endoftext|>", "bos_token");
    }
    otherwise(config.eos_token, "<|endoftext|>", "eos_token");
    otherwise(config.unk_token, "<|endoftext|>", "unk_token");
    json["post_processor"] = bos_eos_template(config, vocab);
  }
  json["model"] = {{"type", "BPE"}, {"merges", read_merges_file(folder / "merges.txt")}, {"vocab", vocab}};
  return json.dump();
}

// vocab.txt: BERT and its relatives.
std::string json_of_word_piece(const fs::path& folder, FolderFiles& files, TokenizerConfig& config) {
  const auto text = read_file(folder / "vocab.txt", kLargestFile);
  LEVIN_CHECK(valid_utf8(text), "[tokenizer] \"", shown((folder / "vocab.txt").string()), "\" is not UTF-8");
  Json vocab = Json::object();
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    auto end = text.find('\n', at);
    if (end == text.npos) end = text.size();
    auto line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    vocab[line] = count;
    at = end + 1;
  }
  const auto token = [&](std::optional<std::string>& value, const char* name, const char* key) {
    if (!value && !files.tokenizer_config.contains(key)) {
      value = name;
      files.tokenizer_config[key] = name;
    }
    return value.value_or(name);
  };
  const auto unk = token(config.unk_token, "[UNK]", "unk_token"), cls = token(config.cls_token, "[CLS]", "cls_token"),
             sep = token(config.sep_token, "[SEP]", "sep_token");
  token(config.pad_token, "[PAD]", "pad_token");
  token(config.mask_token, "[MASK]", "mask_token");
  for (const auto& name : {unk, cls, sep})
    LEVIN_CHECK(vocab.contains(name), "[tokenizer] the token \"", shown(name), "\" is not in vocab.txt");
  Json json = {{"version", "1.0"}};
  json["normalizer"] = {{"type", "BertNormalizer"},
                        {"clean_text", true},
                        {"handle_chinese_chars", flag_of(files.tokenizer_config, "tokenize_chinese_chars", true)},
                        {"lowercase", flag_of(files.tokenizer_config, "do_lower_case", true)}};
  if (const auto strip = bool_of(files.tokenizer_config, "strip_accents")) json["normalizer"]["strip_accents"] = *strip;
  json["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  json["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  const auto part = [](const std::string& name, int type) -> Json {
    return {{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const Json a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, b = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  Json specials = Json::object();
  for (const auto& name : {cls, sep})
    specials[name] = {{"id", name}, {"ids", Json::array({vocab[name]})}, {"tokens", Json::array({name})}};
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {part(cls, 0), a, part(sep, 0)}},
                            {"pair", {part(cls, 0), a, part(sep, 0), b, part(sep, 1)}},
                            {"special_tokens", specials}};
  json["model"] = {{"type", "WordPiece"},
                   {"vocab", vocab},
                   {"unk_token", unk},
                   {"continuing_subword_prefix", "##"},
                   {"max_input_chars_per_word", 100}};
  return json.dump();
}

std::string json_of_model_file(const fs::path& path, const FolderFiles& files, const TokenizerConfig& config) {
  const auto kind = class_of(files);
  SentencePieceOptions options{.add_bos_token = config.add_bos_token, .add_eos_token = config.add_eos_token};
  if (kind == "Llama" || kind == "CodeLlama")
    options.kind = SentencePieceKind::kLlama;
  else if (kind == "T5")
    options.kind = SentencePieceKind::kT5;
  else if (kind == "XLMRoberta")
    options.kind = SentencePieceKind::kXlmRoberta;
  else
    LEVIN_CHECK(kind.empty(), "[tokenizer] the SentencePiece model of a \"", shown(kind),
                "\" is not known (known: Llama, T5, XLMRoberta); save it as tokenizer.json");
  return json_of_sentencepiece(read_large(path), options);
}

}  // namespace

Tokenizer Tokenizer::from_folder(const fs::path& folder) {
  LEVIN_CHECK(fs::is_directory(folder), "[tokenizer] \"", shown(folder.string()), "\" is not a folder");
  try {
    FolderFiles files{.tokenizer_config = read_object(folder / "tokenizer_config.json"),
                      .special_tokens_map = read_object(folder / "special_tokens_map.json"),
                      .added_tokens = read_object(folder / "added_tokens.json"),
                      .config = read_object(folder / "config.json")};
    auto config = read_config(folder, files);
    const auto has = [&](const char* name) { return fs::exists(folder / name); };
    std::string json;
    if (has("tokenizer.json")) {
      json = read_large(folder / "tokenizer.json");
    } else if (const auto model = has("tokenizer.model")           ? "tokenizer.model"
                                  : has("spiece.model")            ? "spiece.model"
                                  : has("sentencepiece.bpe.model") ? "sentencepiece.bpe.model"
                                                                   : nullptr) {
      json = json_of_model_file(folder / model, files, config);
    } else if (has("vocab.json") && has("merges.txt")) {
      json = json_of_byte_level(folder, files, config);
    } else if (has("vocab.txt")) {
      json = json_of_word_piece(folder, files, config);
    } else {
      ::levin::detail::fail(
          "[tokenizer] there is no tokenizer.json, tokenizer.model, vocab.json with merges.txt, or vocab.txt");
    }
    auto parts = parts_of_json(json, more_tokens(files));
    parts->config = std::move(config);
    return Tokenizer(std::move(parts));
  } catch (const Error& error) {
    throw Error(std::string(error.what()) + " (in \"" + shown(folder.string()) + "\")");
  }
}

}  // namespace levin::text
