// Labeled texts, language examples, rows of tokens and how they become batches.
#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/data/loader.h"
#include "levin/data/text/labeled_texts.h"
#include "levin/data/text/language_examples.h"
#include "levin/data/text/token_rows.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin::text_rows_tests {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

class TextRows : public testing::FolderTest {
 protected:
  fs::path file(const std::string& name, const std::string& content) const {
    fs::create_directories((folder_ / name).parent_path());
    write_file(folder_ / name, content);
    return folder_ / name;
  }
  std::string labeled_error(const std::string& name, const std::string& content) const {
    return error_of([&] { read_labeled_texts(file(name, content)); });
  }
  std::string language_error(const std::string& content) const {
    return error_of([&] { read_language_examples(file("bad.jsonl", content)); });
  }
};

TEST_F(TextRows, LabeledTextsOfAllKinds) {
  const auto check = [](const std::vector<LabeledText>& texts) {
    ASSERT_EQ(texts.size(), 2u);
    EXPECT_EQ(texts[0].text, "a \"fine\" film,\nreally");
    EXPECT_EQ(texts[0].label, "neg");
    EXPECT_EQ(texts[1].label, "pos");
  };
  check(read_labeled_texts(file("a.csv", "id,text,label\n1,\"a \"\"fine\"\" film,\nreally\",neg\n2,good,pos\n")));
  check(read_labeled_texts(file("b.jsonl",
                                "{\"body\": \"a \\\"fine\\\" film,\\nreally\", \"y\": \"neg\"}\n\n"
                                "{\"body\": \"good\", \"y\": \"pos\"}\n"),
                           {.text = "body", .label = "y"}));
  file("c/neg/1.txt", "a \"fine\" film,\nreally");
  file("c/pos/1.txt", "good");
  file("c/unsup/1.txt", "nobody knows");
  check(read_labeled_texts(folder_ / "c"));

  const auto numbers =
      read_labeled_texts(file("d.jsonl", "{\"text\":\"a\",\"label\":1}\n{\"text\":\"b\",\"label\":0}"));
  EXPECT_THAT(class_names(numbers), ElementsAre("0", "1"));
  EXPECT_TRUE(are_class_numbers(class_names(numbers)));
  EXPECT_THAT(class_numbers(numbers, {"0", "1"}, "d"), ElementsAre(1, 0));
  EXPECT_THAT(class_names({{"x", "11"}, {"y", "2"}}), ElementsAre("11", "2"));
}

TEST_F(TextRows, BadLabeledTextsAreOneLine) {
  EXPECT_THAT(labeled_error("a.csv", "words,label\nx,1\n"),
              AllOf(HasSubstr("no column \"text\""), HasSubstr("words, label")));
  EXPECT_THAT(labeled_error("a.csv", "text,label\n ,1\n"), AllOf(HasSubstr("row 2"), HasSubstr("text is empty")));
  EXPECT_THAT(labeled_error("a.csv", "text,label\nx,\n"), HasSubstr("label is empty"));
  EXPECT_THAT(labeled_error("a.csv", "text,label\nx,1,2\n"), HasSubstr("3 cells"));
  EXPECT_THAT(labeled_error("a.jsonl", "{\"text\": \"x\", \"label\": 1.5}\n"), HasSubstr("whole number"));
  EXPECT_THAT(labeled_error("a.jsonl", "{\"text\": 3, \"label\": 1}\n"), HasSubstr("not a text"));
  EXPECT_THAT(labeled_error("a.jsonl", "{\"text\": \"x\"}\n"), AllOf(HasSubstr("line 1"), HasSubstr("no \"label\"")));
  EXPECT_THAT(labeled_error("a.jsonl", "[1]\n"), HasSubstr("not a JSON object"));
  EXPECT_THAT(labeled_error("a.parquet", "x"), HasSubstr(".csv"));
  EXPECT_THAT(error_of([&] { read_labeled_texts(folder_ / "none.csv"); }), HasSubstr("is not there"));
  EXPECT_THAT(error_of([] {
                class_numbers({{"x", "c"}}, {"a", "b"}, "data.test");
              }),
              AllOf(HasSubstr("data.test"), HasSubstr("\"c\""), HasSubstr("a, b")));
}

// Bytes of another encoding: the file, the line, the place in it.
TEST_F(TextRows, TextsThatAreNotUtf8AreNamedByFileLineAndByte) {
  const auto place = [](const char* name, const char* line, int byte) {
    return AllOf(HasSubstr(name), HasSubstr(line),
                 HasSubstr("is not UTF-8 (byte " + std::to_string(byte) + " of the line)"));
  };
  EXPECT_THAT(labeled_error("a.csv", "text,label\nfine,1\ncaf\xe9,2\n"), place("a.csv", "row 3", 4));
  EXPECT_THAT(labeled_error("a.jsonl", "{}\n{\"text\": \"caf\xe9\"}\n"), place("a.jsonl", "line 2", 14));
  EXPECT_THAT(language_error("{\"text\": \"caf\xe9\"}\n"), place("bad.jsonl", "line 1", 14));
  EXPECT_THAT(error_of([&] { read_language_examples(file("b.txt", "one\n\ncaf\xe9")); }), place("b.txt", "line 3", 4));
}

TEST_F(TextRows, ASeparatorThatIsNoCommaIsTold) {
  EXPECT_THAT(labeled_error("a.csv", "text;label\na;b\n"),
              HasSubstr("(they are separated by semicolons; a .csv has commas"));
  EXPECT_THAT(labeled_error("a.csv", "text\tlabel\na\tb\n"), HasSubstr("separated by tabs"));
  EXPECT_THAT(labeled_error("a.tsv", "text,label\na,b\n"), HasSubstr("separated by commas"));
}

TEST_F(TextRows, LanguageExamples) {
  EXPECT_EQ(read_language_examples(file("a.txt", "one\ntwo\n")).all[0].text, "one\ntwo\n");
  const auto chats = read_language_examples(
      file("a.jsonl", R"({"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "b"}]})"));
  EXPECT_EQ(chats.kind, LanguageKind::kChat);
  EXPECT_EQ(chats.all[0].messages[1].second, "b");
  EXPECT_THAT(language_error("{\"txt\": \"a\"}"), AllOf(HasSubstr("messages"), HasSubstr("it has txt")));
  EXPECT_THAT(language_error("{\"text\": \" \"}"), HasSubstr("empty"));
  EXPECT_THAT(language_error("{\"prompt\": \"a\"}"), HasSubstr("no \"completion\""));
  EXPECT_THAT(language_error("{\"text\": \"a\"}\n{\"prompt\": \"a\", \"completion\": \"b\"}"),
              AllOf(HasSubstr("line 2"), HasSubstr("another kind")));
  EXPECT_THAT(language_error(R"({"messages": [{"role": "user", "content": "a"}]})"), HasSubstr("assistant"));
  EXPECT_THAT(language_error(R"({"messages": [{"role": "user", "content": "a", "tool_calls": []}]})"),
              HasSubstr("tool_calls"));
}

TEST(TokenRowsTest, TargetsBlocksAndPacking) {
  const std::vector<int64_t> ids{5, 6, 7};
  EXPECT_THAT(next_token_targets(ids), ElementsAre(6, 7, -100));
  EXPECT_THAT(next_token_targets(ids, std::vector<uint8_t>{0, 0, 1}), ElementsAre(-100, 7, -100));

  const auto blocks = token_blocks(std::vector<int64_t>{1, 2, 3, 4, 5, 6}, 2);
  ASSERT_EQ(blocks.size(), 2u);  // 5 is the last target
  EXPECT_THAT(blocks[1].ids, ElementsAre(3, 4));
  EXPECT_THAT(blocks[1].targets, ElementsAre(4, 5));

  const auto row = [](int64_t id, size_t count) {
    return TokenRow{.ids = std::vector<int64_t>(count, id), .targets = std::vector<int64_t>(count, -id)};
  };
  const auto packed = packed_rows({row(1, 2), row(2, 5), row(3, 3), row(4, 1)}, 6);
  ASSERT_EQ(packed.size(), 2u);
  EXPECT_THAT(packed[0].ids, ElementsAre(2, 2, 2, 2, 2, 4));
  EXPECT_THAT(packed[0].texts, ElementsAre(1, 1, 1, 1, 1, 2));
  EXPECT_THAT(packed[1].ids, ElementsAre(3, 3, 3, 1, 1));
  EXPECT_THAT(packed[1].targets, ElementsAre(-3, -3, -3, -1, -1));
  EXPECT_THAT(error_of([&] { packed_rows({row(1, 7)}, 6); }), HasSubstr("7 tokens"));
}

TEST(TokenRowsTest, BatchesArePaddedByTheirLongestRow) {
  std::vector<TokenRow> all;
  for (int64_t i = 0; i < 6; ++i)
    all.push_back({.ids = std::vector<int64_t>(static_cast<size_t>(i + 1), 9),
                   .targets = std::vector<int64_t>(static_cast<size_t>(i + 1), 8),
                   .label = i});
  const TokenRows rows(all);
  EXPECT_EQ(rows.tokens(), 21);
  auto loader = make_loader(rows, {.batch_size = 4}, PadRows{.pad_token = 3, .multiple_of = 4});
  std::vector<int64_t> lengths;
  for (const auto& batch : loader) {
    lengths.push_back(batch["ids"].size(1));
    if (batch["ids"].size(0) != 4) continue;
    EXPECT_TRUE(batch["ids"][1].equal(at::tensor({9, 9, 3, 3}, at::kLong)));
    EXPECT_TRUE(batch["mask"][1].equal(at::tensor({1, 1, 0, 0}, at::kLong)));
    EXPECT_TRUE(batch["targets"][1].equal(at::tensor({8, 8, -100, -100}, at::kLong)));
    EXPECT_TRUE(batch["label"].equal(at::arange(4, at::kLong)));
  }
  EXPECT_THAT(lengths, ElementsAre(4, 8));
  EXPECT_EQ(PadRows{.length = 9}({rows.get(0)})["ids"].size(1), 9);
  EXPECT_THAT(error_of([&] { PadRows{.length = 2}({rows.get(4)}); }), HasSubstr("longer than 2"));
}

TEST(TokenRowsTest, OrderByLength) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 103; ++i) lengths.push_back(i * 37 % 101);
  const auto sampler = Sampler::by_length(lengths, 20);
  const auto order = sampler.order(103, 7, 2);
  EXPECT_EQ(order, sampler.order(103, 7, 2));
  EXPECT_NE(order, sampler.order(103, 7, 3));
  EXPECT_NE(order, sampler.order(103, 8, 2));
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < 103; ++i) EXPECT_EQ(sorted[static_cast<size_t>(i)], i);
  const auto length = [&](size_t i) { return lengths[static_cast<size_t>(order[i])]; };
  EXPECT_EQ(length(0), 100);
  for (size_t i = 1; i < order.size(); ++i) {
    if (i % 20 > 1) {
      EXPECT_GE(length(i - 1), length(i)) << i;
    }
  }
  EXPECT_THAT(error_of([&] { sampler.order(5, 0, 0); }), HasSubstr("103 lengths"));
}

}  // namespace
}  // namespace levin::text_rows_tests
