#include "levin/generate/generation_config.h"

#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/files.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"

namespace levin::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GenerationConfig : public FolderTest {
 protected:
  GenerateOptions read(const std::string& json, GenerateOptions options = {}) {
    write_file(folder_ / "generation_config.json", json);
    return with_generation_config(folder_, std::move(options));
  }
  std::string refusal(const std::string& json) {
    return error_of([&] { (void)read(json); });
  }
};

TEST_F(GenerationConfig, HasTheFieldsOfTransformers) {
  std::ifstream stream(source_dir() + "/tests/generate/fixtures/generation_fields.json");
  const auto names = nlohmann::json::parse(stream)["fields"].get<std::set<std::string>>();
  std::set<std::string> known;
  for (const auto& field : generation_fields()) {
    EXPECT_TRUE(known.emplace(field.name).second) << field.name << " stands twice";
    EXPECT_FALSE(field.what.empty());
  }
  EXPECT_EQ(known, names);
}

TEST_F(GenerationConfig, FillsInWhatTheProgramDoesNotSay) {
  const auto o = read(R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "eos_token_id": [2, 5],
    "repetition_penalty": 1.05, "bad_words_ids": [[7, 8]], "sequence_bias": [[[3, 4], -1.5]], "stop_strings": "END",
    "exponential_decay_length_penalty": [5, 1.5], "forced_eos_token_id": 2, "early_stopping": true, "top_h": 0.4,
    "max_length": 4096, "pad_token_id": 0, "transformers_version": "5", "guidance_scale": 1.0, "num_beam_groups": 1})",
                      {.top_p = 0.5, .eos_token_ids = {9}});
  EXPECT_EQ(o.temperature, 0.6);
  EXPECT_EQ(o.top_p, 0.5) << "the program's counts";
  EXPECT_THAT(o.eos_token_ids, ElementsAre(9));
  EXPECT_EQ(o.top_k, 20);
  EXPECT_EQ(o.top_h, 0.4);
  EXPECT_EQ(o.repetition_penalty, 1.05);
  EXPECT_EQ(o.bad_words, (std::vector<std::vector<int64_t>>{{7, 8}}));
  EXPECT_EQ(o.sequence_bias, (std::vector<std::pair<std::vector<int64_t>, double>>{{{3, 4}, -1.5}}));
  EXPECT_THAT(o.stop, ElementsAre("END"));
  EXPECT_EQ(o.exponential_decay_length_penalty, (std::pair<int64_t, double>{5, 1.5}));
  EXPECT_THAT(o.forced_eos_token_id, ElementsAre(2));
  EXPECT_TRUE(o.early_stopping);
  EXPECT_EQ(o.max_new_tokens, GenerateOptions().max_new_tokens);
}

TEST_F(GenerationConfig, DrawsOnlyWhereTheFileSaysSo) {
  EXPECT_EQ(read(R"({"temperature": 0.6})").temperature, 0);
  EXPECT_EQ(read(R"({"do_sample": true})").temperature, 1);
  EXPECT_EQ(read(R"({"do_sample": true})").top_k, 50) << "transformers' own";
  EXPECT_EQ(read(R"({"do_sample": true, "top_k": 0})").top_k, 0);
  EXPECT_EQ(read(R"({"temperature": 0.6})", {.temperature = 0.3}).temperature, 0.3);
}

TEST_F(GenerationConfig, RefusesInOneLine) {
  for (const auto& field : generation_fields()) {
    if (field.kind != GenerationField::Kind::kRefused) continue;
    const std::string name(field.name);
    EXPECT_THAT(refusal("{\"" + name + "\": 4}"), HasSubstr(name + " is not supported: "));
    EXPECT_EQ(refusal("{\"" + name + "\": null}"), "no error");
  }
  EXPECT_THAT(refusal(R"({"temprature": 1})"), HasSubstr("temprature is no field of GenerationConfig"));
  EXPECT_THAT(refusal(R"({"top_k": "five"})"), HasSubstr("top_k has a value of another type"));
  EXPECT_THAT(refusal(R"({"early_stopping": "never"})"), HasSubstr("early_stopping has a value of another type"));
  EXPECT_THAT(refusal(R"({"exponential_decay_length_penalty": [1]})"), HasSubstr("another type"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(error_of([&] { (void)with_generation_config(folder_ / "none"); }), HasSubstr("is not there"));
}

}  // namespace
}  // namespace levin::testing
