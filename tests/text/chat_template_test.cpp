#include "levin/text/chat_template.h"

#include <chrono>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/testing/paths.h"

namespace levin::text {
namespace {

using ChatJson = nlohmann::ordered_json;

std::string failure_of(const std::string& source, const std::string& variables = "{}", const ChatLimits& limits = {}) {
  try {
    const ChatTemplate chat(source);
    static_cast<void>(chat.render(variables, limits));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ChatTemplate, SameAsTransformers) {
  const auto cases = ChatJson::parse(read_file(testing::source_dir() + "/tests/text/fixtures/chat/cases.json"));
  int rendered = 0;
  for (const auto& row : cases) {
    const auto source = row.at("template").get<std::string>();
    const auto variables = row.at("variables").dump();
    if (row.contains("fails")) {
      EXPECT_TRUE(failure_of(source, variables).starts_with("[chat template] line "))
          << source << failure_of(source, variables);
      continue;
    }
    ++rendered;
    try {
      EXPECT_EQ(ChatTemplate(source).render(variables), row.at("text").get<std::string>()) << source;
    } catch (const Error& error) {
      ADD_FAILURE() << source << "\n" << error.what();
    }
  }
  EXPECT_GT(rendered, 60);
}

TEST(ChatTemplate, ErrorsHaveTheLine) {
  EXPECT_EQ(failure_of("a\nb\n{{ x.y }}"), "[chat template] line 3: \"x\" is not defined");
  EXPECT_EQ(failure_of("{% if true %}\n\n{% include 'a' %}"),
            "[chat template] line 3: the statement \"include\" is not known");
  EXPECT_EQ(failure_of("{% for x in [1] %}\n{{ raise_exception('no\nway') }}{% endfor %}"),
            "[chat template] line 2: the template refuses: no?way");
}

TEST(ChatTemplate, NothingRunsForEver) {
  const auto start = std::chrono::steady_clock::now();
  for (const char* source : {
           "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{{ 'a' * 10000000000 }}",
           "{% set n = namespace(s='aaaaaaaaaa') %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
           "{% set n = namespace(s=[1]) %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
           "{{ range(1000000000) }}",
           "{{ 9223372036854775807 + 1 }}",
           "{{ 2 ** 1000 }}",
           "{{ 'a' | replace('', 'b' * 60000000) }}",
       })
    EXPECT_TRUE(failure_of(source).starts_with("[chat template] line ")) << source;
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += " + 1";
  const auto deep = "{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}";
  EXPECT_NE(failure_of(deep).find("nested"), std::string::npos);
  EXPECT_NE(failure_of(sum + " }}"), "no error");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(ChatTemplate, VariablesMustBeAnObject) {
  EXPECT_NE(failure_of("a", "[]"), "no error");
  EXPECT_NE(failure_of("a", "{"), "no error");
  EXPECT_NE(failure_of("a", std::string(100, '[')), "no error");
  EXPECT_EQ(ChatTemplate("{{ a }}").render(R"({"a": "x"})"), "x");
}

TEST(ChatTemplate, OfATokenizer) {
  const auto tokenizer = Tokenizer::from_folder(testing::source_dir() + "/tests/text/fixtures/folder_llama");
  EXPECT_THROW(apply_chat_template(tokenizer, {}), Error);
}

}  // namespace
}  // namespace levin::text
