// What chat templates get of a request.
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/files.h"
#include "levin/generate/serve/api_error.h"
#include "levin/generate/serve/requests.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// The tiny model of the tests with another chat template.
class ChatRequests : public ::testing::Test {
 protected:
  void use(const std::string& chat_template) {
    const auto from = fs::path(source_dir()) / "tests/generate/fixtures/chat";
    fs::copy_file(from / "tokenizer.json", folder_ / "tokenizer.json", fs::copy_options::overwrite_existing);
    write_file(folder_ / "tokenizer_config.json",
               nlohmann::json{{"eos_token", "<|end|>"}, {"chat_template", chat_template}}.dump());
    tokenizer_ = text::Tokenizer::from_folder(folder_.path());
    model_ = {.name = "tiny", .tokenizer = &*tokenizer_, .vocab_size = tokenizer_->id_end()};
  }
  std::string prompt(const std::string& body) const {
    return tokenizer_->decode(serve::chat_request(body, model_).prompts.at(0), /*skip_special_tokens=*/false);
  }
  /// "field: message" of the error.
  std::string refusal(const std::string& body) const {
    try {
      return "no error: " + prompt(body);
    } catch (const serve::ApiError& error) {
      return fmt::format("{} {}: {}", error.status(), error.param(), error.what());
    }
  }

  TemporaryFolder folder_;
  std::optional<text::Tokenizer> tokenizer_;
  serve::ServedModel model_;
};

TEST_F(ChatRequests, TemplatesGetWhatMessagesHave) {
  use("{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.name }}|{{ m.tool_call_id }}|{{ m.reasoning_content }}"
      "|{{ m.name is defined }}]{% endfor %}");
  EXPECT_EQ(prompt(R"({"messages": [{"role": "user", "content": "Hi", "name": "Ann"}]})"), "[user|Hi|Ann|||True]");
  EXPECT_EQ(prompt(R"({"messages": [{"role": "assistant", "content": "a", "reasoning_content": "so", "name": null}]})"),
            "[assistant|a|||so|False]");
  EXPECT_EQ(prompt(R"({"messages": [{"role": "tool", "content": "3", "tool_call_id": "c1", "refusal": null}]})"),
            "[tool|3||c1||False]");
}

TEST_F(ChatRequests, TemplatesGetTheirVariables) {
  use("{{ enable_thinking }}|{{ add_generation_prompt }}|{{ eos_token }}|{% for d in documents or [] %}"
      "{% for key, value in d.items() %}{{ key }}={{ value }},{% endfor %}{% endfor %}");
  const auto with = [](const std::string& more) {
    return R"({"messages": [{"role": "user", "content": "Hi"}])" + more + "}";
  };
  EXPECT_EQ(prompt(with("")), "|True|<|end|>|");
  EXPECT_EQ(prompt(with(R"(, "add_generation_prompt": false)")), "|False|<|end|>|");
  EXPECT_EQ(prompt(with(R"(, "chat_template_kwargs": {"enable_thinking": false})")), "False|True|<|end|>|");
  EXPECT_EQ(prompt(with(R"(, "chat_template_kwargs": {"add_generation_prompt": false, "eos_token": "E"})")),
            "|False|E|");
  EXPECT_EQ(prompt(with(R"(, "chat_template_kwargs": {"documents": [{"title": "t", "body": 1}, {"a": 2}]})")),
            "|True|<|end|>|title=t,body=1,a=2,");
  EXPECT_EQ(prompt(with(R"(, "chat_template_kwargs": null)")), "|True|<|end|>|");
}

TEST_F(ChatRequests, WrongOnesAreRefusedByName) {
  use("{{ messages[0].content }}");
  EXPECT_EQ(prompt(R"({"messages": [{"role": "user", "content": "Hi", "function_call": null}]})"), "Hi");
  for (const char* name : {"name", "tool_call_id", "reasoning_content"})
    EXPECT_THAT(refusal(fmt::format(R"({{"messages": [{{"role": "user", "content": "Hi", "{}": 5}}]}})", name)),
                HasSubstr(fmt::format("400 messages[0].{0}: 'messages[0].{0}' must be a string.", name)));
  const auto with = [&](const std::string& more) {
    return refusal(R"({"messages": [{"role": "user", "content": "Hi"}], )" + more + "}");
  };
  EXPECT_THAT(with(R"("chat_template_kwargs": [1])"), HasSubstr("400 chat_template_kwargs: "));
  EXPECT_THAT(with(R"("chat_template_kwargs": {"messages": []})"), HasSubstr("400 chat_template_kwargs: "));
  EXPECT_THAT(with(R"("chat_template_kwargs": {"tools": []})"), HasSubstr("'tools'"));
  EXPECT_THAT(with(R"("chat_template": "a")"), HasSubstr("400 chat_template: "));
  EXPECT_THAT(with(R"("documents": [{}])"), HasSubstr("chat_template_kwargs"));
  EXPECT_THAT(with(R"("continue_final_message": true)"), HasSubstr("400 continue_final_message: "));
  std::string keys;
  for (int i = 0; i < 5000; ++i) keys += fmt::format("{}\"k{}\": 0", i == 0 ? "" : ", ", i);
  EXPECT_THAT(with("\"chat_template_kwargs\": {" + keys + "}"), HasSubstr("more than 4096 keys"));
  // The first of two counts as well: its keys are looked for one by one.
  EXPECT_THAT(with("\"chat_template_kwargs\": {" + keys + "}, \"chat_template_kwargs\": {}"), HasSubstr("4096"));
}

}  // namespace
}  // namespace levin::testing
