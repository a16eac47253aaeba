#include "levin/generate/generated_text.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/generate/options.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::generate_tests {
namespace {

using detail::GeneratedText;

const std::filesystem::path kTokenizers = std::filesystem::path(levin::testing::source_dir()) / "tests/text/fixtures";
const std::string kText = "Hello world, naïve 😀 नमस्ते ไทย end. And\nmore";

bool is_whole(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t size = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 99;
    if (i + size > text.size()) return false;
    i += size;
  }
  return true;
}

/// All that is given out for the tokens behind `prompt`.
std::string streamed(const text::Tokenizer& tokenizer, std::span<const int64_t> ids, size_t prompt,
                     const std::vector<std::string>& stop) {
  GeneratedText text(&tokenizer, ids.first(prompt), stop);
  std::string all;
  for (const auto id : ids.subspan(prompt)) {
    const auto more = text.push(id);
    EXPECT_TRUE(is_whole(more)) << more;
    all += more;
    if (text.stopped()) break;
    for (const auto& word : stop)
      for (size_t n = 1; n < word.size(); ++n) EXPECT_FALSE(all.ends_with(word.substr(0, n))) << all;
  }
  all += text.finish();
  EXPECT_EQ(all, text.given());
  return all;
}

TEST(GeneratedText, PromptAndTextAreTheWholeTextForEveryCut) {
  for (const std::string name : {"gpt2", "llama2", "llama3", "bloom", "unigram_bytes"}) {
    const auto tokenizer = text::Tokenizer::from_folder(kTokenizers / name);
    const auto ids = tokenizer.encode(kText).ids;
    const auto whole = tokenizer.decode(ids);
    for (size_t cut = 1; cut <= ids.size(); ++cut) {
      const auto before = tokenizer.decode(std::span(ids).first(cut));
      if (before.find("\xef\xbf\xbd") != std::string::npos) continue;  // within a character
      EXPECT_EQ(before + streamed(tokenizer, ids, cut, {}), whole) << name << " " << cut;
    }
  }
}

TEST(GeneratedText, EndsBeforeAStopString) {
  const auto tokenizer = text::Tokenizer::from_folder(kTokenizers / "gpt2");
  const auto ids = tokenizer.encode(kText).ids;
  const auto whole = tokenizer.decode(ids);
  // Strings of several tokens.
  for (const std::string word : {"😀 नम", "ไทย end", ". And\nm", "\nmore"})
    EXPECT_EQ(streamed(tokenizer, ids, 0, {word}), whole.substr(0, whole.find(word))) << word;
  const std::vector<std::string> absent{"moreover"};
  GeneratedText text(&tokenizer, {}, absent);
  std::string all;
  for (const auto id : ids) all += text.push(id);
  EXPECT_LT(all.size(), whole.size());  // "more" could have become it
  EXPECT_EQ(all + text.finish(), whole);
  EXPECT_FALSE(text.stopped());
}

TEST(GenerateOptions, EndsComeFromTheFolder) {
  const levin::testing::TemporaryFolder folder;
  const std::filesystem::path path = folder.path();
  EXPECT_TRUE(folder_generate_options(path).eos_token_ids.empty());
  write_file(path / "config.json", "{\"eos_token_id\": 7}");
  EXPECT_EQ(folder_generate_options(path).eos_token_ids, (std::vector<int64_t>{7}));
  write_file(path / "generation_config.json", "{\"eos_token_id\": [3, 4]}");
  EXPECT_EQ(folder_generate_options(path).eos_token_ids, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(folder_generate_options(path, {.eos_token_ids = {1}}).eos_token_ids, (std::vector<int64_t>{1}));
  write_file(path / "generation_config.json", "{\"eos_token_id\": \"x\"}");
  EXPECT_NE(levin::testing::error_of([&] { folder_generate_options(path); }).find("eos_token_id is not an integer"),
            std::string::npos);
}

}  // namespace
}  // namespace levin::generate_tests
