#include "levin/text/learned_tokens.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::text {
namespace {

namespace fs = std::filesystem;
using levin::testing::error_of;
using ::testing::HasSubstr;

const fs::path kLlama = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/text_tasks/llama";

std::string learned_text(const Tokenizer& tokenizer, const LearnedTokens& tokens) {
  EXPECT_EQ(tokens.ids.size(), tokens.learned.size());
  std::vector<int64_t> ids;
  for (size_t i = 0; i < tokens.ids.size(); ++i)
    if (tokens.learned[i]) ids.push_back(tokens.ids[i]);
  return tokenizer.decode(ids, /*skip_special_tokens=*/false);
}

TEST(LearnedTokens, AreTheCompletionAndItsEnd) {
  const auto tokenizer = Tokenizer::from_folder(kLlama);
  const auto tokens = completion_tokens(tokenizer, "how was the film ?", " it was great .");
  EXPECT_EQ(learned_text(tokenizer, tokens), " it was great .</s>");
  EXPECT_EQ(tokenizer.decode(tokens.ids, false), "<s>how was the film ? it was great .</s>");
  // Without a prompt all but the first token.
  EXPECT_EQ(learned_text(tokenizer, completion_tokens(tokenizer, "", "the plot")), "the plot</s>");
}

TEST(LearnedTokens, AreTheTurnsOfTheAssistant) {
  const auto tokenizer = Tokenizer::from_folder(kLlama);
  const std::vector<ChatMessage> chat{
      {"user", "how was it ?"}, {"assistant", "it was dull"}, {"user", "so ?"}, {"assistant", "so it was"}};
  const auto tokens = chat_tokens(tokenizer, chat);
  EXPECT_EQ(learned_text(tokenizer, tokens), "it was dull</s>so it was</s>");
  EXPECT_EQ(tokenizer.decode(tokens.ids, false),
            "<|user|>how was it ?</s><|assistant|>it was dull</s><|user|>so ?</s><|assistant|>so it was</s>");
}

TEST(LearnedTokens, AreWhatTheTemplateMarksAsGenerated) {
  const levin::testing::TemporaryFolder temporary;
  fs::copy(kLlama, temporary.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  // Earlier turns are changed, which the marks do not mind; those in a captured text are none of the result.
  write_file(temporary / "chat_template.jinja",
             "{% set kept %}{% generation %}so{% endgeneration %}{% endset %}"
             "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% generation %}{{ m.content }}"
             "{% if loop.last %} .{% endif %}{% endgeneration %}</s>{% else %}<|user|>{{ m.content }}</s>{% endif %}"
             "{% endfor %}");
  const auto tokenizer = Tokenizer::from_folder(temporary.path());
  const std::vector<ChatMessage> chat{
      {"user", "how ?"}, {"assistant", "it was"}, {"user", "so ?"}, {"assistant", "dull"}};
  EXPECT_EQ(learned_text(tokenizer, chat_tokens(tokenizer, chat)), "it wasdull .");
}

TEST(LearnedTokens, TemplateThatForgetsTurnsIsAnError) {
  const levin::testing::TemporaryFolder temporary;
  fs::copy(kLlama, temporary.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  write_file(temporary / "chat_template.jinja", "{{ messages[-1]['content'] }}");
  const auto tokenizer = Tokenizer::from_folder(temporary.path());
  const std::vector<ChatMessage> chat{{"user", "how ?"}, {"assistant", "so"}, {"user", "why ?"}, {"assistant", "it"}};
  EXPECT_THAT(error_of([&] { chat_tokens(tokenizer, chat); }), HasSubstr("turn 2"));
}

TEST(TokenizerFolder, SplitSpecialTokensIsRefused) {
  const levin::testing::TemporaryFolder temporary;
  fs::copy(kLlama, temporary.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  write_file(temporary / "tokenizer_config.json", R"({"split_special_tokens": false})");
  EXPECT_EQ(error_of([&] { Tokenizer::from_folder(temporary.path()); }), "no error");
  write_file(temporary / "tokenizer_config.json", R"({"split_special_tokens": true})");
  EXPECT_THAT(error_of([&] { Tokenizer::from_folder(temporary.path()); }),
              HasSubstr("split_special_tokens is not supported"));
}

}  // namespace
}  // namespace levin::text
