#include <filesystem>

#include <gmock/gmock.h>

#include "levin/core/files.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"

namespace levin::tokenize_cli_tests {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::levin_program;
using testing::Process;

class TokenizeCli : public testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (!fs::exists(levin_program())) GTEST_SKIP() << "the program `levin` is not built here";
  }
  std::string fixture(const std::string& name) const { return testing::source_dir() + "/tests/text/fixtures/" + name; }
};

TEST_F(TokenizeCli, EncodesAndDecodesLines) {
  Process encode({levin_program(), "tokenize", fixture("gpt2")}, {}, "Hello world\n it is\n");
  ASSERT_EQ(encode.wait(), 0) << encode.err();
  EXPECT_EQ(encode.out(), "40 69 281 79 301 425 415\n344 84 344 83\n");
  Process decode({levin_program(), "tokenize", fixture("gpt2"), "--decode"}, {}, encode.out());
  ASSERT_EQ(decode.wait(), 0) << decode.err();
  EXPECT_EQ(decode.out(), "Hello world\n it is\n");
  const auto file = folder_ / "text.txt";
  write_file(file, "it's\n");
  Process json({levin_program(), "tokenize", "--json", fixture("bert"), file.string(), "--no-special"});
  ASSERT_EQ(json.wait(), 0) << json.err();
  EXPECT_THAT(json.out(), HasSubstr(R"("tokens":["it","'","s"],"offsets":[[0,2],[2,3],[3,4]])"));
}

TEST_F(TokenizeCli, Trains) {
  const auto file = (folder_ / "tokenizer.json").string();
  const std::vector<std::string> words{levin_program(), "tokenize", "train", "--vocab-size",
                                       "300",           "--output", file,    fixture("train/corpus.txt")};
  Process train(words);
  ASSERT_EQ(train.wait(), 0) << train.err();
  EXPECT_THAT(train.out(), HasSubstr("300 tokens"));
  Process again(words);
  EXPECT_EQ(again.wait(), 1);
  EXPECT_THAT(again.err(), HasSubstr("--overwrite"));
  Process use({levin_program(), "tokenize", file}, {}, "lower\n");
  EXPECT_EQ(use.wait(), 0) << use.err();
}

TEST_F(TokenizeCli, Refuses) {
  Process none({levin_program(), "tokenize"});
  EXPECT_EQ(none.wait(), 1);
  EXPECT_THAT(none.err(), HasSubstr("TOKENIZER is missing"));
  Process flag({levin_program(), "tokenize", fixture("gpt2"), "--jsn"});
  EXPECT_EQ(flag.wait(), 1);
  EXPECT_THAT(flag.err(), HasSubstr("--jsn"));
  Process text({levin_program(), "tokenize", fixture("gpt2")}, {}, "\xff\n");
  EXPECT_EQ(text.wait(), 1);
  EXPECT_THAT(text.err(), HasSubstr("-:1 is not UTF-8 (byte 1 of the line)"));
}

}  // namespace
}  // namespace levin::tokenize_cli_tests
