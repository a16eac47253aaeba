// levin generate.
#include <csignal>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/files.h"
#include "levin/testing/eventually.h"
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
  static std::string read_whole_lines(const std::string& file) {
    const auto text = read_file(file);
    return text.substr(0, text.rfind('\n') + 1);
  }
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
  EXPECT_FALSE(fs::exists(path(".out.txt")));
}

// Killed at many places of the work, resumed each time: the bytes of a run that nobody disturbed.
TEST_F(GenerateCli, ResumesAfterAKillWithTheSameBytes) {
  constexpr int kKills = 6;
  std::string prompts;
  for (int i = 0; i < 150; ++i) prompts += fmt::format("w{} w{} w{}\n", i % 47, i * 7 % 49, i % 5);
  write_file(path("in.txt"), prompts);
  // Draws of several rows each, in batches that the calls do not divide.
  const std::vector<std::string> words{folder_.string(),
                                       path("in.txt"),
                                       path("out.txt"),
                                       "24",
                                       "0.9",
                                       "--batch",
                                       "3",
                                       "--num-return-sequences",
                                       "2",
                                       "--seed",
                                       "5"};
  const auto with = [&](std::vector<std::string> more) {
    auto all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  auto whole = with({});
  whole[2] = path("whole.txt");
  ASSERT_EQ(run(whole).status, 0);
  const auto expected = read_file(path("whole.txt"));
  const auto lines = [&] {
    const auto text = fs::exists(path("out.txt.part")) ? read_file(path("out.txt.part")) : std::string();
    return std::ranges::count(text, '\n');
  };
  int64_t before = 0;
  for (int kill = 0; kill < kKills && !fs::exists(path("out.txt")); ++kill) {
    auto command = with({"--resume"});
    command.insert(command.begin(), {levin_program(), "generate"});
    Process process(command);
    // Some rows further each time, but for the first one: before there is a row.
    const auto target = before + (kill == 0 ? 0 : 45);
    ASSERT_TRUE(eventually([&] { return lines() >= target || fs::exists(path("out.txt")); }));
    process.signal(SIGKILL);
    process.wait();
    if (fs::exists(path("out.txt.part"))) EXPECT_TRUE(expected.starts_with(read_whole_lines(path("out.txt.part"))));
    before = lines();
  }
  const auto ended = run(with({"--resume", "--overwrite"}));
  ASSERT_EQ(ended.status, 0) << ended.text();
  EXPECT_THAT(ended.text(), HasSubstr("lines are there already"));
  EXPECT_EQ(read_file(path("out.txt")), expected);
  for (const auto& entry : fs::directory_iterator(folder_))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".part")));
}

TEST_F(GenerateCli, ResumesOnlyTheRunThatWasInterrupted) {
  write_file(path("in.txt"), "w1 w2\nw3\n");
  const std::vector<std::string> words{folder_.string(), path("in.txt"), path("out.txt"), "4", "0"};
  const auto with = [&](std::vector<std::string> more) {
    auto all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  const auto part = path("out.txt.part");
  write_file(part, "one line\nhalf");
  EXPECT_THAT(with({}).text(), HasSubstr("--resume continues it, --overwrite begins from the start"));
  EXPECT_THAT(with({"--resume"}).text(), HasSubstr("which says what run it is of; --overwrite begins from the start"));
  // The note of a run with these settings, as one that was killed leaves it.
  const auto note = [&](const std::string& seed, const std::string& prompts) {
    auto process = Process({levin_program(), "generate", folder_.string(), prompts, path("out.txt"), "400", "1",
                            "--batch", "1", "--seed", seed, "--overwrite"});
    EXPECT_TRUE(eventually([&] { return fs::exists(part + ".json") && fs::file_size(part) > 0; }));
    process.signal(SIGKILL);
    process.wait();
  };
  std::string many;
  for (int i = 0; i < 2000; ++i) many += "w1 w2\n";
  write_file(path("many.txt"), many);
  note("1", path("many.txt"));
  const auto resumed = [&](const std::string& seed, const std::string& prompts) {
    const auto ran =
        run({folder_.string(), prompts, path("out.txt"), "400", "1", "--batch", "1", "--seed", seed, "--resume"});
    EXPECT_EQ(ran.status, 1);
    EXPECT_FALSE(fs::exists(path("out.txt")));
    return ran.text();
  };
  EXPECT_THAT(resumed("2", path("many.txt")), HasSubstr("is of a run with another seed (\"1\", now \"2\")"));
  EXPECT_THAT(resumed("1", path("in.txt")), HasSubstr("is of a run with another INPUT"));
  EXPECT_THAT(run({folder_.string(), path("in.txt"), "-", "4", "0", "--resume"}).text(),
              HasSubstr("--resume needs a file as OUTPUT"));
  // From the start.
  ASSERT_EQ(with({"--overwrite"}).status, 0);
  EXPECT_EQ(std::ranges::count(read_file(path("out.txt")), '\n'), 2);
  EXPECT_FALSE(fs::exists(part));
}

TEST_F(GenerateCli, StreamsTextsInTheirOrder) {
  write_file(path("in.txt"), "w1 w2 w3\nw4\n");
  const auto ran = run({folder_.string(), path("in.txt"), "-", "8", "0", "--stream"});
  ASSERT_EQ(ran.status, 0) << ran.text();
  EXPECT_EQ(ran.out, "w1 w2 w3 w2 w20 w1 w8 w27 w2 w8 w8\n\nw4 w46 w8 w8 w46 w8 w8 w8 w46\n\n");
  const auto beside = run({folder_.string(), path("in.txt"), path("out.txt"), "8", "0", "--stream"});
  EXPECT_EQ(beside.out, ran.out);
  EXPECT_EQ(read_file(path("out.txt")), " w2 w20 w1 w8 w27 w2 w8 w8\n w46 w8 w8 w46 w8 w8 w8 w46\n");
}

TEST_F(GenerateCli, AWholeFileIsOnePrompt) {
  write_file(path("in.txt"), "w1\nw2 w3\n");
  const auto ran = run({folder_.string(), path("in.txt"), path("out.txt"), "8", "0", "--whole-file"});
  ASSERT_EQ(ran.status, 0) << ran.text();
  EXPECT_EQ(read_file(path("out.txt")), " w2 w20 w1 w8 w27 w2 w8 w8\n");
}

TEST_F(GenerateCli, FlagsOfRulesAreObeyed) {
  write_file(path("in.jsonl"), "{\"ids\": [1, 2, 3]}\n");
  const auto ids = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {folder_.string(), path("in.jsonl"), "-", "8", "0", "--json"});
    const auto ran = run(flags);
    EXPECT_EQ(ran.status, 0) << ran.text();
    return nlohmann::json::parse(ran.out)["ids"].get<std::vector<int64_t>>();
  };
  const std::vector<int64_t> plain{2, 20, 1, 8, 27, 2, 8, 8};
  EXPECT_EQ(ids({}), plain);
  EXPECT_EQ(ids({"--forced-eos-token", "30"}).back(), 30);
  EXPECT_NE(ids({"--begin-suppress-token", "2"})[0], 2);
  EXPECT_EQ(ids({"--logit-bias", "40=100"}), std::vector<int64_t>(8, 40));
  const auto biased = ids({"--sequence-bias", "2,20=-100"});
  EXPECT_EQ(biased[0], 2);
  EXPECT_NE(biased[1], 20);
  EXPECT_EQ(ids({"--sequence-bias", "5,20=-100"}), plain);
  EXPECT_EQ(ids({"--eos", "20", "--min-length", "6"}).size(), 8u) << "20 comes as the fifth of all";
  EXPECT_EQ(ids({"--eos", "20"}).size(), 2u);
  EXPECT_GT(ids({"--encoder-no-repeat-ngram-size", "1"})[0], 3);
  EXPECT_EQ(ids({"--max-time", "0.000001"}).size(), 1u);
  write_file(path("generation_config.json"), R"({"suppress_tokens": [2], "top_k": 5, "use_cache": true})");
  EXPECT_NE(ids({"--generation-config"})[0], 2);
  EXPECT_EQ(ids({}), plain);
  write_file(path("generation_config.json"), R"({"penalty_alpha": 0.6})");
  EXPECT_THAT(run({folder_.string(), path("in.jsonl"), "-", "8", "0", "--json", "--generation-config"}).text(),
              HasSubstr("penalty_alpha is not supported: there is no contrastive search"));
  const auto refused = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {folder_.string(), path("in.jsonl"), "-", "8", "0", "--json"});
    return run(flags).text();
  };
  EXPECT_THAT(refused({"--logit-bias", "5"}), HasSubstr("--logit-bias \"5\" is not ID=X"));
  EXPECT_THAT(refused({"--logit-bias", "5,6=1"}), HasSubstr("--sequence-bias takes them"));
  EXPECT_THAT(refused({"--sequence-bias", "5,x=1"}), HasSubstr("is not a token id"));
  EXPECT_THAT(refused({"--exponential-decay", "3"}), HasSubstr("is not N,X"));
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
