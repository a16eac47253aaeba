#include "levin/text/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/testing/paths.h"
#include "levin/text/unicode/pattern.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

fs::path fixtures() {
  return fs::path(testing::source_dir()) / "tests" / "text" / "fixtures";
}

Json cases_of(const fs::path& folder) {
  return Json::parse(read_file(folder / "cases.json"));
}

Json json_of(const std::vector<Span>& offsets) {
  auto list = Json::array();
  for (const auto& [begin, end] : offsets) list.push_back({begin, end});
  return list;
}

std::string flat(const std::vector<Span>& offsets) {
  auto list = Json::array();
  for (const auto& [begin, end] : offsets) {
    list.push_back(begin);
    list.push_back(end);
  }
  return list.dump();
}

std::string error_of(const std::string& json) {
  try {
    Tokenizer::from_json(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Every folder has what the Python packages made of its texts.
TEST(Tokenizer, SameAsThePythonPackages) {
  int folders = 0, compared = 0;
  for (const auto& entry : fs::directory_iterator(fixtures())) {
    if (entry.path().filename() == "components" || entry.path().filename() == "chat") continue;
    if (!fs::exists(entry.path() / "cases.json")) continue;
    const auto tokenizer = Tokenizer::from_folder(entry.path());
    ++folders;
    const auto cases = cases_of(entry.path());
    for (const auto& want : cases.at("cases")) {
      const auto text = want.at("text").get<std::string>();
      SCOPED_TRACE(entry.path().filename().string() + ": " + want.at("text").dump());
      const EncodeOptions options{.add_special_tokens = want.value("special", true)};
      const auto got = want.contains("pair") ? tokenizer.encode_pair(text, want.at("pair").get<std::string>(), options)
                                             : tokenizer.encode(text, options);
      ASSERT_EQ(Json(got.ids), want.at("ids"));
      ASSERT_EQ(Json(got.tokens), want.at("tokens"));
      ASSERT_EQ(json_of(got.offsets), want.at("offsets"));
      if (want.contains("mask")) {
        ASSERT_EQ(Json(got.special_mask), want.at("mask"));
        ASSERT_EQ(Json(got.type_ids), want.at("types"));
      }
      ASSERT_EQ(tokenizer.decode(got.ids), want.at("decoded").get<std::string>());
      ASSERT_EQ(tokenizer.decode(got.ids, false), want.at("decoded_all").get<std::string>());
      ++compared;
    }
  }
  EXPECT_GE(folders, 20);
  EXPECT_GE(compared, 1500);
}

std::string with_parts(const Json& normalizer, const Json& pre_tokenizer) {
  return Json{{"version", "1.0"},
              {"normalizer", normalizer},
              {"pre_tokenizer", pre_tokenizer},
              {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", Json::array({Json::array({"<unk>", 0.0})})}}}}
      .dump();
}

TEST(Tokenizer, ScoresAreReadAsThePackageReadsThem) {
  // The package rounds the first score twice, to the second one. Read exactly, "ab" and "c" would be better.
  const auto tokenizer = Tokenizer::from_json(R"({"version": "1.0", "model": {"type": "Unigram", "unk_id": 0, "vocab": [
      ["<unk>", 0.0], ["ab", -7.3464223328362985], ["c", 0.0], ["a", 0.0], ["bc", -7.346422332836299]]}})");
  EXPECT_EQ(tokenizer.encode("abc", {.tokens = true}).tokens, (std::vector<std::string>{"a", "bc"}));
}

TEST(Tokenizer, EveryPreTokenizerCutsAsThePackage) {
  const auto cases = cases_of(fixtures() / "components");
  for (const auto& row : cases.at("pre_tokenizers")) {
    const auto tokenizer = Tokenizer::from_json(with_parts(nullptr, row.at("what")));
    for (size_t i = 0; i < cases.at("texts").size(); ++i) {
      const auto text = cases.at("texts")[i].get<std::string>();
      EXPECT_EQ(flat(tokenizer.encode(text).offsets), row.at("offsets")[i].dump())
          << row.at("what") << " on " << cases.at("texts")[i];
    }
  }
}

TEST(Tokenizer, EveryNormalizerChangesAsThePackage) {
  const auto cases = cases_of(fixtures() / "components");
  for (const auto& row : cases.at("normalizers")) {
    const auto tokenizer = Tokenizer::from_json(with_parts(row.at("what"), {{"type", "FixedLength"}, {"length", 1}}));
    for (size_t i = 0; i < cases.at("texts").size(); ++i) {
      const auto got = tokenizer.encode(cases.at("texts")[i].get<std::string>());
      std::string text;
      for (const auto& token : got.tokens) text += token;
      EXPECT_EQ(text, row.at("texts")[i].get<std::string>()) << row.at("what") << " on " << cases.at("texts")[i];
      EXPECT_EQ(flat(got.offsets), row.at("offsets")[i].dump()) << row.at("what") << " on " << cases.at("texts")[i];
    }
  }
}

// A text of all kinds of characters, always the same.
std::string mixed_text(uint32_t seed, int characters) {
  const char32_t points[] = {U'a',      U'Z',  U'\'', U's', U'L', U'l',      U' ',      U' ', U'\n',
                             U'\r',     U'\t', U'1',  U'2', U'.', U',',      U'!',      U'é', U'你',
                             U'好',     U'。', U'，', U'٣', U'½', U'\u00a0', U'\u3000', U'ſ', U'😀',
                             U'\u0301', U'(',  U'|',  U'_', U'-', U'न',      U'\u094d', U'।'};
  std::string text;
  for (int i = 0; i < characters; ++i) {
    seed = seed * 1664525u + 1013904223u;
    append_utf8(text, points[(seed >> 8) % std::size(points)]);
  }
  return text;
}

TEST(Pattern, ScannersAgreeWithTheEngine) {
  const std::string expressions[] = {
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      " ?[^(\\s|[.,!?…。，、।۔،])]+"};
  for (const auto& expression : expressions) {
    const auto scanner = Pattern::regex(expression), engine = Pattern::engine(expression);
    for (uint32_t seed = 0; seed < 300; ++seed) {
      const auto text = mixed_text(seed, 60);
      std::vector<Part> a, b;
      scanner.parts(text, a);
      engine.parts(text, b);
      const auto same = [](const Part& x, const Part& y) {
        return x.begin == y.begin && x.end == y.end && x.is_match == y.is_match;
      };
      ASSERT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end(), same)) << expression << "\n" << text;
    }
  }
}

TEST(Pattern, RefusesWhatItCannotRun) {
  for (const char* bad : {"(", "a)", "[a", "*a", "\\1", "(?<n>a)\\k<n>", "\\p{Nope}", "a{2,1}", "(?y)a", "\\", "[z-a]"})
    EXPECT_THROW(Pattern::engine(bad), Error) << bad;
  std::vector<Part> parts;
  EXPECT_THROW(Pattern::engine("(a+)+$").parts(std::string(60, 'a') + "b", parts), Error);
}

TEST(Tokenizer, StreamGivesWholeCharactersAndTheSameText) {
  for (const char* name : {"gpt2", "llama2", "llama3", "unigram", "bert", "roberta", "folder_t5", "folder_llama"}) {
    const auto tokenizer = Tokenizer::from_folder(fixtures() / name);
    for (const std::string text :
         {"Hi 😀👩‍👩‍👧‍👦 नमस्ते สวัสดี", "a b c", "é", "日本語 텍스트"}) {
      const auto ids = tokenizer.encode(text).ids;
      for (const bool skip : {true, false}) {
        DecodeStream stream(tokenizer, skip);
        std::string all;
        for (const auto id : ids) {
          const auto part = stream.step(id);
          EXPECT_TRUE(valid_utf8(part));
          EXPECT_EQ(part.find("\ufffd"), std::string::npos);
          all += part;
        }
        EXPECT_EQ(all + stream.finish(), tokenizer.decode(ids, skip)) << name;
      }
    }
  }
  // A character that never ends is seen at the end.
  const auto tokenizer = Tokenizer::from_folder(fixtures() / "gpt2");
  auto ids = tokenizer.encode("a😀").ids;
  ids.pop_back();
  DecodeStream stream(tokenizer);
  std::string all;
  for (const auto id : ids) all += stream.step(id);
  EXPECT_EQ(all, "a");
  EXPECT_EQ(all + stream.finish(), tokenizer.decode(ids));
}

TEST(Tokenizer, BatchEqualsSingle) {
  const auto tokenizer = Tokenizer::from_folder(fixtures() / "llama3");
  std::vector<std::string> texts;
  for (uint32_t i = 0; i < 200; ++i) texts.push_back(mixed_text(i, static_cast<int>(i)));
  for (const int threads : {0, 1, 3}) {
    const auto batch = tokenizer.encode_batch(texts, {}, threads);
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto one = tokenizer.encode(texts[i]);
      ASSERT_EQ(batch[i].ids, one.ids);
      ASSERT_EQ(batch[i].offsets, one.offsets);
    }
  }
  texts[7] = "\xff";
  EXPECT_THROW(tokenizer.encode_batch(texts), Error);
}

TEST(Tokenizer, ByteLevelTextsComeBack) {
  const auto gpt2 = Tokenizer::from_folder(fixtures() / "gpt2");
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const auto text = mixed_text(seed, 80);
    EXPECT_EQ(gpt2.decode(gpt2.encode(text).ids), text);
  }
}

TEST(Tokenizer, Options) {
  const auto tokenizer = Tokenizer::from_folder(fixtures() / "gpt2");
  const std::string text = "a<|endoftext|>b";
  const auto found = tokenizer.encode(text).ids;
  EXPECT_EQ(std::count(found.begin(), found.end(), 0), 1);
  const auto plain = tokenizer.encode(text, {.special_tokens_in_text = false}).ids;
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 0), 0);
  EXPECT_EQ(tokenizer.decode(plain), text);
  const auto ids_only = tokenizer.encode(text, {.tokens = false, .offsets = false});
  EXPECT_EQ(ids_only.ids, found);
  EXPECT_TRUE(ids_only.tokens.empty() && ids_only.offsets.empty());
}

TEST(Tokenizer, TokensAndIds) {
  const auto tokenizer = Tokenizer::from_folder(fixtures() / "matrix");
  EXPECT_EQ(tokenizer.token_to_id("<s>"), 0);
  EXPECT_EQ(tokenizer.id_to_token(0), "<s>");
  EXPECT_EQ(tokenizer.token_to_id("not there"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(-1), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(1 << 30), std::nullopt);
  EXPECT_EQ(tokenizer.vocab_size(), 457);
  EXPECT_EQ(tokenizer.id_end(), 457);
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(100));
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>{-5, 1 << 20}), "");
}

// The same merges as strings, as old files have them, give the same ids.
TEST(Tokenizer, MergesAsStrings) {
  auto json = Json::parse(read_file(fixtures() / "llama3" / "tokenizer.json"));
  const auto pairs = Tokenizer::from_json(json.dump());
  for (auto& merge : json["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const auto strings = Tokenizer::from_json(json.dump());
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const auto text = mixed_text(seed, 200);
    EXPECT_EQ(pairs.encode(text).ids, strings.encode(text).ids);
  }
}

TEST(Tokenizer, LongPiecesAreMergedAsShortOnes) {
  // A piece that is longer than the linear method takes goes through the heap: both halves of the comparison exist by
  // adding a separator that no merge crosses.
  const auto tokenizer = Tokenizer::from_folder(fixtures() / "gpt2");
  std::string word;
  for (int i = 0; i < 60; ++i) word += "token";
  const auto ids = tokenizer.encode(word).ids;
  const auto one = tokenizer.encode("token").ids;
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(ids.size(), 60u);
}

TEST(Tokenizer, FolderConfig) {
  const auto tokenizer = Tokenizer::from_folder(fixtures() / "folder_opt");
  EXPECT_EQ(tokenizer.config().bos_token, "</s>");
  EXPECT_EQ(tokenizer.config().pad_token, "<pad>");
  EXPECT_EQ(tokenizer.config().add_bos_token, true);
  EXPECT_FALSE(tokenizer.config().chat_template);
  EXPECT_THROW(Tokenizer::from_folder(fixtures() / "components"), Error);
  EXPECT_THROW(Tokenizer::from_folder("/nowhere"), Error);
}

TEST(Tokenizer, HostileFilesAreRefusedInOneLine) {
  const auto model = [](const std::string& body) { return R"({"model": {"type": "BPE", )" + body + "}}"; };
  const std::pair<std::string, const char*> cases[] = {
      {"", "not a tokenizer.json"},
      {"[]", "not a tokenizer.json"},
      {"{}", "no \"model\""},
      {std::string(100, '[') + std::string(100, ']'), "nested too deeply"},
      {R"({"version": "2.0", "model": {}})", "version"},
      {R"({"model": {"type": "Nope"}})", "not known"},
      {model(R"("vocab": 3, "merges": [])"), "vocab"},
      {model(R"("vocab": {"a": -1}, "merges": [])"), "vocab"},
      {model(R"("vocab": {"a": 99999999999}, "merges": [])"), "too large"},
      {model(R"("vocab": {"a": 99999999}, "merges": [])"), "tokens before it"},
      {model(R"("vocab": {"a": 0}, "merges": ["a a"])"), "not in the vocabulary"},
      {model(R"("vocab": {"a": 0}, "merges": ["a"])"), "two tokens"},
      {model(R"("vocab": {"a": 0}, "merges": [["a"]])"), "pair"},
      {model(R"("vocab": {"a": 0}, "merges": [], "dropout": 0.1)"), "dropout"},
      {R"({"model": {"type": "Unigram", "unk_id": 5, "vocab": [["a", 0.0]]}})", "unk_id"},
      {R"({"model": {"type": "WordLevel", "vocab": {}}, "normalizer": {"type": "Nope"}})", "not known"},
      {R"({"model": {"type": "WordLevel", "vocab": {}}, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA/w=="}})",
       "precompiled_charsmap"},
      {R"({"model": {"type": "WordLevel", "vocab": {}}, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}})",
       "cannot be run"},
      {R"({"model": {"type": "WordLevel", "vocab": {}}, "pre_tokenizer": {"type": "FixedLength", "length": 0}})",
       "length"},
      {R"({"model": {"type": "WordLevel", "vocab": {}}, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": []}})",
       "needs the special token"},
      {R"({"model": {"type": "WordLevel", "vocab": {"a": 0}}, "added_tokens": [{"id": 0, "content": "b"}]})",
       "has the id"},
  };
  for (const auto& [json, part] : cases) {
    const auto line = error_of(json);
    EXPECT_NE(line.find(part), std::string::npos) << json << "\n" << line;
    EXPECT_EQ(line.find('\n'), std::string::npos);
  }
  const auto grows = Tokenizer::from_json(
      R"({"model": {"type": "WordLevel", "vocab": {"<unk>": 0}}, "normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": ")" +
      std::string(100'000, 'b') + R"("}})");
  EXPECT_THROW(grows.encode(std::string(100'000, 'a')), Error);
  EXPECT_THROW(Tokenizer::from_sentencepiece("no model"), Error);
  EXPECT_THROW(Tokenizer::from_sentencepiece(""), Error);
  const auto sound = Tokenizer::from_folder(fixtures() / "gpt2");
  EXPECT_THROW(sound.encode("\xc3"), Error);
}

TEST(Unicode, BrokenBytes) {
  EXPECT_EQ(replace_broken_utf8("a\xf0\x9f\x98z"), "a\ufffdz");
  EXPECT_EQ(replace_broken_utf8("\xff\xfe"), "\ufffd\ufffd");
  EXPECT_EQ(replace_broken_utf8("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");
  EXPECT_FALSE(valid_utf8("\xc0\x80"));
  EXPECT_TRUE(valid_utf8("é😀"));
}

}  // namespace
}  // namespace levin::text
