// levin generate.
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/files.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"

namespace levin::testing::generate_cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kFolders = fs::path(source_dir()) / "tests/models/fixtures/language";

class GenerateCli : public testing::FolderTest {
 protected:
  /// A tiny model, with a tokenizer of 49 words.
  void SetUp() override {
    testing::FolderTest::SetUp();
    for (const auto* name : {"config.json", "model.safetensors"}) fs::copy(kFolders / "llama" / name, folder_ / name);
    nlohmann::json vocab{{"[unk]", 49}};
    for (int i = 0; i < 49; ++i) vocab[fmt::format("w{}", i)] = i;
    const nlohmann::json tokenizer{{"version", "1.0"},
                                   {"added_tokens", nlohmann::json::array()},
                                   {"normalizer", nullptr},
                                   {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                                   {"post_processor", nullptr},
                                   {"decoder", nullptr},
                                   {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "[unk]"}}}};
    write_file(folder_ / "tokenizer.json", tokenizer.dump());
  }
  ProgramResult run(std::vector<std::string> words) {
    words.insert(words.begin(), {levin_program(), "generate"});
    return run_program(words);
  }
  std::string path(const char* name) { return (folder_ / name).string(); }
};

TEST_F(GenerateCli, WritesALineForEachPrompt) {
  write_file(path("in.txt"), "w1 w2 w3\nw4\n");
  const auto ran = run({folder_.string(), path("in.txt"), path("out.txt"), "8", "0"});
  ASSERT_EQ(ran.status, 0) << ran.text();
  EXPECT_EQ(read_file(path("out.txt")), " w2 w20 w1 w8 w27 w2 w8 w8\n w46 w8 w8 w46 w8 w8 w8 w46\n");
  EXPECT_THAT(ran.text(), AllOf(HasSubstr("16 new tokens"), HasSubstr("tokens/s"), HasSubstr("memory")));
  const auto paged = run({folder_.string(), path("in.txt"), path("paged.txt"), "8", "0", "--paged"});
  ASSERT_EQ(paged.status, 0) << paged.text();
  EXPECT_EQ(read_file(path("paged.txt")), read_file(path("out.txt")));
}

TEST_F(GenerateCli, NamesTheLineThatIsNotUtf8) {
  write_file(path("in.txt"), "w1 w2\nw1 \xff\n");
  const auto ran = run({folder_.string(), path("in.txt"), path("out.txt"), "2", "0"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("in.txt:2 is not UTF-8 (byte 4 of the line)"));
}

TEST_F(GenerateCli, WritesJsonOfPromptsAndIds) {
  write_file(path("in.jsonl"), "{\"prompt\": \"w1 w2 w3\"}\n{\"ids\": [4]}\n");
  const auto ran = run({folder_.string(), path("in.jsonl"), "-", "8", "0", "--json", "--stop", "w8"});
  ASSERT_EQ(ran.status, 0) << ran.text();
  std::istringstream lines(ran.out);
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["prompt"], "w1 w2 w3");
  EXPECT_EQ(rows[0]["ids"], (std::vector<int64_t>{2, 20, 1, 8}));
  EXPECT_EQ(rows[0]["text"], " w2 w20 w1 ");
  EXPECT_EQ(rows[0]["finish_reason"], "stop");
  EXPECT_EQ(rows[0]["logprobs"].size(), 4u);
  EXPECT_EQ(rows[1]["text"], " w46 ");
}

TEST_F(GenerateCli, TensorParallelRanksWriteWhatOneProcessWrites) {
  write_file(path("in.txt"), "w1 w2 w3\nw4\n");
  const std::string expected = " w2 w20 w1 w8 w27 w2 w8 w8\n w46 w8 w8 w46 w8 w8 w8 w46\n";
  const auto ran = run({folder_.string(), path("in.txt"), path("out.txt"), "8", "0", "--tensor-parallel", "2"});
  ASSERT_EQ(ran.status, 0) << ran.text();
  EXPECT_EQ(read_file(path("out.txt")), expected);
  // Under a launcher there are as many as it has started; a stop string is rank 0's matter.
  const auto run_2 = run_program({levin_program(), "run", "--nproc-per-node", "2", levin_program(), "generate",
                                  folder_.string(), path("in.txt"), "-", "8", "0", "--stop", "w27"});
  ASSERT_EQ(run_2.status, 0) << run_2.text();
  EXPECT_THAT(run_2.out, HasSubstr(" w2 w20 w1 w8 \n w46"));
}

TEST_F(GenerateCli, RefusesRanksThatCannotShareTheModel) {
  write_file(path("in.txt"), "w1\n");
  const std::vector<std::string> words{folder_.string(), path("in.txt"), path("out.txt"), "2", "0"};
  auto more = words;
  more.insert(more.end(), {"--tensor-parallel", "7"});
  const auto ran = run(more);
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.text(), HasSubstr("heads, which 7 ranks cannot share"));
  EXPECT_EQ(std::ranges::count(ran.text(), '\n'), 1) << ran.text();
  EXPECT_FALSE(fs::exists(path("out.txt")));
  more.back() = "-1";
  EXPECT_THAT(run(more).text(), HasSubstr("--tensor-parallel -1 must be"));
}

TEST_F(GenerateCli, RefusesInOneLineAndWritesNothing) {
  const auto model = folder_.string(), in = path("in.txt"), out = path("out.txt");
  write_file(in, "w1\n");
  const auto refused = [&](const std::vector<std::string>& words, const std::string& expected) {
    const auto ran = run(words);
    EXPECT_EQ(ran.status, 1);
    EXPECT_THAT(ran.text(), AllOf(HasSubstr("error: ["), HasSubstr(expected)));
    EXPECT_EQ(std::ranges::count(ran.text(), '\n'), 1) << ran.text();
    EXPECT_FALSE(fs::exists(out));
  };
  refused({path("nowhere"), in, out, "8", "0"}, "is not a folder");
  refused({model, in, out, "-3", "0"}, "NUM_TOKENS -3 must be positive");
  refused({model, in, out, "8", "-0.5"}, "TEMPERATURE -0.5 must be 0");
  refused({model, in, in, "8", "0"}, "is there already; --overwrite replaces it");
  refused({model, in, out, "8", "0", "--paged", "--num-beams", "2"}, "beams do not go through the paged cache");
  refused({(kFolders / "bert").string(), in, out, "8", "0"}, "an encoder, which does not generate");
  std::string words;
  for (int i = 0; i < 33; ++i) words += "w1 ";
  write_file(in, words + "\n");
  refused({model, in, out, "8", "0"}, "in.txt:1 has 33 tokens, the context of the model has 32");
  refused({model, in, out, "0", "0"}, "NUM_TOKENS 0 must be positive");
  write_file(in, R"({"messages": [{"role": "user", "content": "w1", "tool_calls": [1]}]})"
                 "\n");
  refused({model, in, out, "8", "0"}, "\"tool_calls\" is not passed to chat templates");
  write_file(in, "w1\n");
  refused({model, in, out, "8", "nan"}, "TEMPERATURE");
  refused({model, in, out, "8", "0", "--prompt-lookup", "-2"}, "prompt_lookup -2 must not be negative");
  refused({model, in, out, "8", "0", "--draft-model", path("nowhere")}, "is not a folder");
  fs::create_directory(folder_ / "empty");
  refused({path("empty"), in, out, "8", "0"}, "config.json");
  fs::remove(folder_ / "model.safetensors");
  refused({model, in, out, "8", "0"}, "");
}

TEST_F(GenerateCli, AMissingShardIsNamed) {
  const auto in = path("in.txt"), out = path("out.txt");
  write_file(in, "w1\n");
  fs::rename(folder_ / "model.safetensors", folder_ / "model-00001-of-00002.safetensors");
  const nlohmann::json index{{"metadata", nlohmann::json::object()},
                             {"weight_map",
                              {{"model.embed_tokens.weight", "model-00001-of-00002.safetensors"},
                               {"lm_head.weight", "model-00002-of-00002.safetensors"}}}};
  write_file(folder_ / "model.safetensors.index.json", index.dump());
  const auto ran = run({folder_.string(), in, out, "8", "0"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.text(), HasSubstr("model-00002-of-00002.safetensors"));
  EXPECT_EQ(std::ranges::count(ran.text(), '\n'), 1) << ran.text();
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(GenerateCli, ATokenizerOfAnotherModelIsRefused) {
  const auto in = path("in.txt"), out = path("out.txt");
  write_file(in, "w1\n");
  auto tokenizer = nlohmann::json::parse(read_file(folder_ / "tokenizer.json"));
  tokenizer["added_tokens"] = nlohmann::json::array({{{"id", 50},
                                                      {"content", "[pad]"},
                                                      {"special", true},
                                                      {"single_word", false},
                                                      {"lstrip", false},
                                                      {"rstrip", false},
                                                      {"normalized", false}}});
  write_file(folder_ / "tokenizer.json", tokenizer.dump());
  EXPECT_EQ(run({folder_.string(), in, "-", "1", "0"}).status, 0);  // a padding behind the words does no harm
  tokenizer["model"]["vocab"]["w50"] = 51;
  write_file(folder_ / "tokenizer.json", tokenizer.dump());
  const auto ran = run({folder_.string(), in, out, "8", "0"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.text(),
              HasSubstr("the tokenizer is that of another model: \"w50\" has the id 51, the model knows 0 to 49"));
  EXPECT_FALSE(fs::exists(out));
}

// A file system of a few bytes is not to be had here; a limit on the size of files is the same to the program.
TEST_F(GenerateCli, AFileThatCannotBeWholeDoesNotAppear) {
  std::string prompts;
  for (int i = 0; i < 400; ++i) prompts += "w1 w2 w3\n";
  write_file(path("in.txt"), prompts);
  const auto ran = run_program({"/bin/bash", "-c",
                                "trap '' XFSZ; ulimit -f 4; exec " + levin_program() + " generate " + folder_.string() +
                                    " " + path("in.txt") + " " + path("out.txt") + " 20 0 --batch 400"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.text(), HasSubstr("error: ["));
  EXPECT_FALSE(fs::exists(path("out.txt")));
  for (const auto& entry : fs::directory_iterator(folder_))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("out.txt")));
}

TEST_F(GenerateCli, GuessesChangeNoTextAndAreCounted) {
  write_file(path("in.txt"), "w1 w2 w3\nw4\n");
  const std::string expected = " w2 w20 w1 w8 w27 w2 w8 w8\n w46 w8 w8 w46 w8 w8 w8 w46\n";
  const auto model = folder_.string();
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--prompt-lookup", "3"}, {"--draft-model", model, "--draft-tokens", "2"}}) {
    std::vector<std::string> words{model, path("in.txt"), path("out.txt"), "8", "0", "--overwrite"};
    words.insert(words.end(), flags.begin(), flags.end());
    const auto ran = run(words);
    ASSERT_EQ(ran.status, 0) << ran.text();
    EXPECT_EQ(read_file(path("out.txt")), expected) << flags[0];
    EXPECT_THAT(ran.text(), HasSubstr("guessed tokens were taken"));
  }
}

TEST_F(GenerateCli, AFullDeviceIsAnError) {
  write_file(path("in.txt"), "w1\n");
  const auto ran = run({folder_.string(), path("in.txt"), "/dev/full", "4", "0"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.text(), HasSubstr("No space left on device"));
  EXPECT_FALSE(fs::is_regular_file("/dev/full"));
}

TEST_F(GenerateCli, WeightsOnTheDiskGiveTheSameTexts) {
  write_file(path("in.txt"), "w1 w2 w3\nw4\n");
  write_file(path("map.json"), "{\"\": \"cpu\", \"blocks\": \"disk\"}");
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--device-map", path("map.json")},
                                                {"--device-map", "cpu"},
                                                {"--max-memory", "cpu=1GB"}}) {
    std::vector<std::string> words{folder_.string(), path("in.txt"), path("out.txt"), "8", "0", "--overwrite"};
    words.insert(words.end(), flags.begin(), flags.end());
    if (flags[0] == "--max-memory") words.insert(words.end(), {"--device", "cpu"});
    const auto ran = run(words);
    ASSERT_EQ(ran.status, 0) << ran.text();
    EXPECT_EQ(read_file(path("out.txt")), " w2 w20 w1 w8 w27 w2 w8 w8\n w46 w8 w8 w46 w8 w8 w8 w46\n") << flags[1];
    EXPECT_THAT(ran.text(), AllOf(HasSubstr("tokens, "), HasSubstr("cache and activations of 2 rows of 11 tokens")));
    if (flags[1] == path("map.json")) {
      EXPECT_THAT(ran.text(), AllOf(HasSubstr("blocks.0-1 (streamed)"), HasSubstr("each pass brings")));
    }
  }
}

TEST_F(GenerateCli, RefusesPlacesThatCannotBe) {
  write_file(path("in.txt"), "w1\n");
  write_file(path("map.json"), "{\"blocks\": \"disk\"}");
  const auto refused = [&](std::vector<std::string> flags, const std::string& line) {
    std::vector<std::string> words{folder_.string(), path("in.txt"), path("out.txt"), "8", "0", "--device", "cpu"};
    words.insert(words.end(), flags.begin(), flags.end());
    const auto ran = run(words);
    EXPECT_NE(ran.status, 0);
    EXPECT_THAT(ran.text(), HasSubstr(line));
    EXPECT_FALSE(fs::exists(path("out.txt")));
  };
  refused({"--device-map", "autp"}, "is neither a file nor one of auto, balanced, sequential, cpu");
  refused({"--device-map", path("map.json")}, "the device map has no place for \"tokens\"");
  refused({"--max-memory", "cpu"}, "is not DEVICE=BYTES");
  refused({"--max-memory", "cpu=many"}, "is not a number of bytes");
  refused({"--max-memory", "tpu=1GB"}, "there is no device \"tpu\"");
  refused({"--max-memory", "cpu=20kB"}, "[placement] cpu needs");
}

}  // namespace
}  // namespace levin::testing::generate_cli
