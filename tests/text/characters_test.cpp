#include "levin/text/unicode/characters.h"

#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/text/tokenizer.h"

namespace levin::text {
namespace {

TEST(CharacterTokenizer, EachCharacterIsAToken) {
  const std::u32string characters = U"\n \"\\aé猫🐈";
  const auto tokenizer = Tokenizer::from_json(character_tokenizer(characters));
  EXPECT_EQ(tokenizer.vocab_size(), 8);
  const std::string text = "猫 a\n\n\"🐈\\é\"  ";
  const auto ids = tokenizer.encode(text).ids;
  EXPECT_EQ(ids, (std::vector<int64_t>{6, 1, 4, 0, 0, 2, 7, 3, 5, 2, 1, 1}));
  EXPECT_EQ(tokenizer.decode(ids), text);
  // What is not among them is left out, as the Python package does it.
  EXPECT_EQ(tokenizer.encode("abé").ids, (std::vector<int64_t>{4, 5}));
}

TEST(CharacterTokenizer, RefusesNoneAndTwice) {
  EXPECT_THROW(character_tokenizer({}), Error);
  EXPECT_THROW(character_tokenizer(std::u32string(U"aba")), Error);
}

}  // namespace
}  // namespace levin::text
