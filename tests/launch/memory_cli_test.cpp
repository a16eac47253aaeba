// levin memory: what a training step will take, from outside.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kLevin = levin_program();

struct Answer {
  int status;
  std::string out, err;
};
Answer ask(std::vector<std::string> words) {
  words.insert(words.begin(), {kLevin, "memory"});
  Process child(words);
  const int status = child.wait();
  return {status, child.out(), child.err()};
}

TEST(MemoryCli, PrintsATable) {
  const auto answer = ask({"--model", "vit_b_16", "--batch", "8", "--num-classes", "10"});
  ASSERT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("vit_b_16: 85.8M parameters, batches of 8 images of 224 pixels, adam, on each "
                                    "rank\n"));
  EXPECT_THAT(answer.out,
              HasSubstr("  parameters  gradients  optimizer  activations  temporary     peak     host  in\n"));
  EXPECT_THAT(answer.out, HasSubstr("32-true      343 MB     343 MB     687 MB"));
  EXPECT_THAT(answer.out, HasSubstr("on the device, in backward; nothing in host memory.\n"));
}

TEST(MemoryCli, KnowsEncodersOfText) {
  const auto answer = ask({"--model", "big_bird", "--batch", "1", "--precision", "bf16-true", "--checkpointing"});
  ASSERT_EQ(answer.status, 0) << answer.err;
  // Those of transformers less its pooler, which the classifier does not use.
  EXPECT_THAT(answer.out, HasSubstr("big_bird: 127M parameters, batches of 1 sequence of 4096 tokens, adam, on each"));
  EXPECT_THAT(ask({"--model", "roberta_base", "--sequence-length", "513"}).err, HasSubstr("1 to 512"));
}

TEST(MemoryCli, KnowsModelsOfText) {
  const auto answer = ask(
      {"--model", "gpt_6_7b", "--batch", "1", "--strategy", "deepspeed_stage_3_offload", "--precision", "bf16-mixed"});
  ASSERT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("gpt_6_7b: 6.66B parameters, batches of 1 sequence of 2048 tokens, adam, on each "
                                    "rank\n"));
  EXPECT_THAT(answer.out, HasSubstr("bf16-mixed deepspeed_stage_3_offload           -          -          -"));
  EXPECT_THAT(answer.out, HasSubstr(" in backward; 107 GB in host memory.\n"));
  const auto json = ask({"--model", "gpt2", "--batch", "2", "--sequence-length", "128", "--precision", "bf16-mixed",
                         "--world-size", "2", "--json"});
  ASSERT_EQ(json.status, 0) << json.err;
  const auto read = nlohmann::json::parse(json.out);
  EXPECT_EQ(read["num_parameters"], 124439808);
  EXPECT_EQ(read["sequence_length"], 128);
  EXPECT_EQ(read["rows"][0]["name"], "bf16-mixed ddp x2");
  EXPECT_FALSE(read.contains("image_size"));
}

TEST(MemoryCli, KnowsAdaptersAndQuantizedWeights) {
  const auto peak = [](std::vector<std::string> more) {
    std::vector<std::string> words{"--model", "gpt2",        "--batch",   "1",     "--sequence-length",
                                   "128",     "--precision", "bf16-true", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const auto answer = ask(words);
    EXPECT_EQ(answer.status, 0) << answer.err;
    return nlohmann::json::parse(answer.out);
  };
  const auto whole = peak({}), lora = peak({"--lora", "8"}), packed = peak({"--lora", "8", "--quantize", "nf4"});
  // 85M of 124M parameters are in linear layers of blocks.
  const auto bytes = [](const nlohmann::json& json, const char* key) { return json["rows"][0][key].get<double>(); };
  EXPECT_LT(bytes(lora, "optimizer"), 0.05 * bytes(whole, "optimizer"));
  EXPECT_NEAR(bytes(lora, "parameters") - bytes(packed, "parameters"), 85e6 * (2 - 4.5 / 8), 3e6);
  EXPECT_EQ(packed["num_parameters"], lora["num_parameters"]);
  EXPECT_LT(bytes(packed, "peak"), bytes(lora, "peak"));
  EXPECT_EQ(packed["quantize"], "nf4");
  EXPECT_EQ(packed["lora"], 8);

  const auto used = ask(
      {"--model", "gpt2", "--batch", "2", "--quantize", "int8", "--inference", "--precision", "bf16-true", "--json"});
  ASSERT_EQ(used.status, 0) << used.err;
  const auto read = nlohmann::json::parse(used.out);
  EXPECT_EQ(read["cache"], 2 * 2 * 1024 * 12 * 768 * 2);  // keys and values, rows, tokens, layers, width, bytes
  EXPECT_NEAR(read["weights"].get<double>(), 85e6 + 2 * 39.5e6, 2e6);
  EXPECT_GT(read["temporary"], 0);
}

TEST(MemoryCli, NumbersAreForPrograms) {
  const auto json = ask({"--model", "vit_b_16", "--batch", "4", "--accelerator", "cpu", "--precision", "bf16-mixed",
                         "--strategy", "fsdp", "--devices", "4", "--json"});
  ASSERT_EQ(json.status, 0) << json.err;
  const auto read = nlohmann::json::parse(json.out);
  EXPECT_EQ(read["num_parameters"], 86567656);
  const auto& row = read["rows"][0];
  EXPECT_EQ(row["name"], "bf16-mixed fsdp x4");
  EXPECT_NEAR(row["parameters"].get<double>(), 86567656.0, 0.01 * 86567656);
  EXPECT_EQ(row["gradients"], row["parameters"]);
  EXPECT_GT(row["peak"], row["activations"]);
  const auto csv = ask({"--model", "vit_b_16", "--batch", "4", "--accelerator", "cpu", "--csv", "--optimizer", "sgd"});
  EXPECT_THAT(csv.out, ::testing::StartsWith("configuration,parameters,gradients,optimizer,activations,temporary,peak,"
                                             "host,peak_part\n32-true,346270624,346270624,0,"));
}

TEST(MemoryCli, TheLadderGoesDown) {
  const TemporaryFolder folder;
  const auto answer = ask({"--model", "vit_h_14", "--batch", "16", "--devices", "8", "--ladder", "--json", "--plot",
                           folder / "ladder.png", "--timeline", folder / "step.png"});
  ASSERT_EQ(answer.status, 0) << answer.err;
  const auto read = nlohmann::json::parse(answer.out);
  ASSERT_EQ(read["rows"].size(), 10u);
  EXPECT_LT(read["rows"].back()["peak"].get<double>(), 0.25 * read["rows"][0]["peak"].get<double>());
  EXPECT_GT(read["rows"].back()["host"], 0);
  EXPECT_GT(fs::file_size(folder / "ladder.png"), 1000u);
  EXPECT_GT(fs::file_size(folder / "step.png"), 1000u);
}

TEST(MemoryCli, OfAPipelineHasARowForEachRank) {
  const std::vector<std::string> words{"--model", "gpt2", "--batch", "4", "--sequence-length", "64", "--devices", "4"};
  const auto peaks_of = [&](const std::string& strategy) {
    auto all = words;
    all.insert(all.end(), {"--strategy", strategy, "--json"});
    const auto answer = ask(all);
    EXPECT_EQ(answer.status, 0) << answer.err;
    std::vector<int64_t> peaks;
    const auto read = nlohmann::json::parse(answer.out);
    for (const auto& row : read["rows"]) peaks.push_back(row["peak"].get<int64_t>());
    return peaks;
  };
  EXPECT_EQ(peaks_of("model_parallel:pp=2,dp_shard=2,microbatches=4").size(), 2u);
  EXPECT_EQ(peaks_of("pipeline").size(), 4u);
  auto all = words;
  all.insert(all.end(), {"--strategy", "model_parallel:dp_shard=2,cp=2", "--csv"});
  EXPECT_THAT(ask(all).out, HasSubstr("\n\"32-true model_parallel:dp_shard=2,cp=2 x4\","));
}

TEST(MemoryCli, RefusesInOneLine) {
  for (const auto& [words, line] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "name a model: levin memory --model vit_b_16"},
           {{"--model", "vit_b_61"}, "did you mean \"vit_b_16\"?"},
           {{"--model", "gpt3"}, "did you mean \"gpt2\"?"},
           {{"--model", "gpt2", "--image-size", "224"}, "--image-size is not for gpt2, a model of text"},
           {{"--model", "resnet18", "--sequence-length", "8"}, "not for resnet18, a model of images"},
           {{"--model", "gpt2", "--sequence-length", "2048"}, "--sequence-length 2048 is not allowed (1 to 1024)"},
           {{"--model", "gpt2", "--batch", "9999999"}, "--batch 9999999 is not allowed (1 to 16384)"},
           {{"--model", "resnet18", "--devices", "-1"}, "--devices -1 is not allowed (1 to "},
           {{"--model", "resnet18", "--devices", "many"}, "--devices \"many\" is not a whole number"},
           {{"--model", "resnet18", "--strategy", "fdsp"}, "did you mean \"fsdp\"?"},
           {{"--model", "resnet18", "--precision", "bf16-mixd"}, "did you mean \"bf16-mixed\"?"},
           {{"--model", "resnet18", "--optimizer", "adan"}, "did you mean \"adam\"?"},
           {{"--model", "resnet18", "--offload"}, "cannot offload"},
           {{"--model", "resnet18", "--batch", "0"}, "--batch 0 is not allowed (1 to "},
           {{"--model", "vit_b_16", "--image-size", "100"}, "not a multiple of patch_size"},
           {{"--model", "resnet18", "--plot", "a.gif"}, "--plot \"a.gif\" must end with .svg or .png"},
           {{"--model", "resnet18", "--timeline", "a.gif"}, "--timeline \"a.gif\" must end with .svg or .png"},
           {{"--model", "resnet18", "--csv", "--json"}, "exclude each other"},
           {{"--model", "gpt2", "--devices", "4", "--strategy", "model_parallel:dp_shard=4,ep=2"},
            "the model has no experts"},
           {{"--model", "gpt2", "--devices", "2", "--strategy", "expert_parallel"}, "the model has no experts"},
           {{"--model", "gpt2", "--devices", "2", "--strategy", "model_parallel:pp=2,schedule=1f1c"},
            "did you mean \"1f1b\"?"},
           {{"--model", "resnet18", "--devices", "2", "--strategy", "context_parallel"},
            "says how its sequence is spread"},
           {{"--model", "resnet18", "--lora", "8"}, "are for language models, not for resnet18"},
           {{"--model", "gpt2", "--quantize", "nf4"}, "add --lora RANK to train adapters, or --inference"},
           {{"--model", "gpt2", "--quantize", "nf5", "--inference"}, "did you mean \"nf4\"?"},
           {{"--model", "gpt2", "--lora", "-3"}, "--lora -3 is not allowed (1 to "},
           {{"--model", "gpt2", "--lora", "8", "--lora-targets", "c_atn"}, "did you mean \"c_attn\"?"},
           {{"--model", "/tmp"}, "is a folder without a config.json"},
           {{"--model", "resnet18", "--batches", "2"}, "did you mean \"--batch\"?"}}) {
    const auto answer = ask(words);
    EXPECT_EQ(answer.status, 1);
    EXPECT_THAT(answer.err, ::testing::AllOf(::testing::StartsWith("error: ["), HasSubstr(line)));
    EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1) << answer.err;
  }
}

}  // namespace
}  // namespace levin::testing
