#include "levin/text/train_bpe.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/testing/paths.h"
#include "levin/text/tokenizer.h"

namespace levin::text {
namespace {

using TrainJson = nlohmann::json;
namespace fs = std::filesystem;

fs::path corpus_folder() {
  return fs::path(testing::source_dir()) / "tests" / "text" / "fixtures" / "train";
}

// The vocabulary and the merges, in order, are those that the Python package learned from the same text.
TEST(TrainBpe, SameAsThePythonPackage) {
  const auto learned = TrainJson::parse(read_file(corpus_folder() / "learned.json"));
  const fs::path files[] = {corpus_folder() / "corpus.txt"};
  for (const auto& [name, want] : learned.items()) {
    TrainBpeOptions options{.min_frequency = want.at("min_frequency").get<uint64_t>(),
                            .add_prefix_space = name == "frequent"};
    if (name == "llama3")
      options.pattern =
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    const auto text = train_bpe(files, want.at("vocab_size").get<size_t>(), options);
    const auto model = TrainJson::parse(text).at("model");
    EXPECT_EQ(model.at("merges"), want.at("merges")) << name;
    const auto& tokens = want.at("tokens");
    EXPECT_EQ(model.at("vocab").size(), tokens.size() + 257) << name;
    for (size_t i = 0; i < tokens.size(); ++i)
      ASSERT_EQ(model.at("vocab").value(tokens[i].get<std::string>(), 0u), i + 257) << name;
    // What was trained is a tokenizer.
    const auto tokenizer = Tokenizer::from_json(text);
    const auto encoding = tokenizer.encode("lower tokens, <|endoftext|> newest!");
    EXPECT_EQ(tokenizer.token_to_id("<|endoftext|>"), 0);
    EXPECT_NE(std::find(encoding.ids.begin(), encoding.ids.end(), 0), encoding.ids.end());
  }
}

TEST(TrainBpe, Refuses) {
  const fs::path files[] = {corpus_folder() / "corpus.txt"};
  EXPECT_THROW(train_bpe(files, 100), Error);
  EXPECT_THROW(train_bpe(std::span<const fs::path>(), 1000), Error);
  const fs::path missing[] = {"/nowhere/x.txt"};
  EXPECT_THROW(train_bpe(missing, 1000), Error);
  EXPECT_THROW(train_bpe(files, 1000, {.pattern = "("}), Error);
  bool first = true;
  const auto broken = [&](std::string_view& text) {
    text = "\xff";
    return std::exchange(first, false);
  };
  EXPECT_THROW(train_bpe(broken, 1000), Error);
}

}  // namespace
}  // namespace levin::text
