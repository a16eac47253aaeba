// Folders that transformers opens, and what it makes of them.
#include <filesystem>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/io/weights/weights.h"
#include "levin/models/folder.h"
#include "levin/models/language_score.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"
#include "levin/text/tokenizer.h"

namespace levin::odd_folder_tests {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

const fs::path kFolders = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

/// A copy of a fixture with other keys in its config.
void copy_folder(const fs::path& from, const fs::path& to,
                 const std::vector<std::pair<std::string, std::string>>& changes) {
  fs::copy(from, to);
  const auto config = models::ModelConfig::read(from / "config.json");
  write_file(to / "config.json", config.with(changes));
}

double difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(OddFolders, DecodersThatClassifyAreScored) {
  for (const char* name : {"gpt2_sequence", "llama_sequence", "opt_sequence"}) {
    SCOPED_TRACE(name);
    auto model = models::open_model(kFolders / name, {.dtype = at::kFloat});
    const std::vector<std::vector<int64_t>> rows{{5, 9, 7, 12}, {8, 3}, {4, 6, 11}};
    const auto scores = models::score_rows(model, rows, {.keep_outputs = true});
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto ids = at::tensor(rows[i], at::kLong).unsqueeze(0);
      EXPECT_LT(difference(scores[i].head, model.decoder(ids)[0]), 1e-5);
      EXPECT_LT(difference(scores[i].output, model.decoder->hidden_states(ids)[0]), 1e-5);
      EXPECT_TRUE(scores[i].logprobs.empty());
    }
  }
}

TEST(OddFolders, TheBiasOfTheDecoderCounts) {
  const testing::TemporaryFolder temporary;
  const auto folder = temporary / "bert";
  copy_folder(kFolders / "roberta_masked", folder, {});
  const WeightFile file(kFolders / "roberta_masked");
  NamedTensors tensors;
  for (const auto& entry : file.entries()) tensors.emplace_back(entry.name, file.read(entry.name));
  const auto bias = file.read("lm_head.bias");
  std::erase_if(tensors, [](const auto& each) { return each.first == "lm_head.decoder.bias"; });
  tensors.emplace_back("lm_head.decoder.bias", bias + 1);
  write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  const auto ids = at::tensor({5, 9, 7, 12}, at::kLong).unsqueeze(0);
  const auto plain = models::open_model(kFolders / "roberta_masked", {.dtype = at::kFloat}).encoder(ids);
  EXPECT_LT(difference(models::open_model(folder, {.dtype = at::kFloat}).encoder(ids), plain + 1), 1e-5);
}

TEST(OddFolders, LlamaRotatesWholeHeads) {
  const testing::TemporaryFolder temporary;
  copy_folder(kFolders / "llama", temporary / "partial", {{"partial_rotary_factor", "0.5"}});
  const auto ids = at::tensor({5, 9, 7, 12}, at::kLong).unsqueeze(0);
  const auto plain = models::open_model(kFolders / "llama", {.dtype = at::kFloat}).decoder(ids);
  EXPECT_TRUE(models::open_model(temporary / "partial", {.dtype = at::kFloat}).decoder(ids).equal(plain));
  copy_folder(kFolders / "llama_linear", temporary / "linear", {{"partial_rotary_factor", "0.5"}});
  EXPECT_THAT(error_of([&] { models::open_model(temporary / "linear"); }), HasSubstr("partial_rotary_factor"));
}

TEST(OddFolders, RotaryKeysOfOtherFamiliesAreNotRead) {
  const testing::TemporaryFolder temporary;
  const auto options = [&](const char* folder, const std::vector<std::pair<std::string, std::string>>& changes) {
    fs::remove_all(temporary / "model");
    copy_folder(kFolders / folder, temporary / "model", changes);
    return models::open_model(temporary / "model").decoder->options;
  };
  const auto neox = options("gpt_neox_sequential", {{"rope_theta", "5e5"}, {"partial_rotary_factor", "1.0"}});
  EXPECT_EQ(neox.rotary_base, 10000);
  EXPECT_EQ(neox.rotary_dim, models::open_model(kFolders / "gpt_neox_sequential").decoder->options.rotary_dim);
  const auto base = models::open_model(kFolders / "llama").decoder->options.rotary_base;
  EXPECT_EQ(options("llama", {{"rotary_emb_base", "77"}}).rotary_base, base);
  EXPECT_EQ(options("mixtral", {{"rope_parameters", "{\"rope_type\": \"default\"}"}}).rotary_base, 1e6);
  EXPECT_EQ(options("gemma", {{"hidden_act", "\"gelu\""}}).activation, "gelu_tanh_gated");
}

TEST(OddFolders, HeadsThatDecodersLackAreNamed) {
  const testing::TemporaryFolder temporary;
  copy_folder(kFolders / "llama", temporary / "tokens", {{"architectures", "[\"LlamaForTokenClassification\"]"}});
  EXPECT_THAT(error_of([&] { models::open_model(temporary / "tokens"); }),
              HasSubstr("\"LlamaForTokenClassification\" has a head that is not supported"));
}

TEST(OddFolders, WhatADownloadLeftBehindIsNamed) {
  const testing::TemporaryFolder temporary;
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2097152\n";
  const auto folder = temporary / "clone";
  copy_folder(kFolders / "llama", folder, {});
  write_file(folder / "model.safetensors", pointer);
  EXPECT_THAT(error_of([&] { models::open_model(folder); }), HasSubstr("is a pointer of Git LFS"));
  fs::rename(folder / "model.safetensors", folder / "pytorch_model.bin");
  EXPECT_THAT(error_of([&] { models::open_model(folder); }), HasSubstr("pytorch_model.bin\" is a pointer of Git LFS"));
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    write_file(folder / name, pointer);
    EXPECT_THAT(error_of([&] { text::Tokenizer::from_folder(folder); }),
                HasSubstr(std::string(name) + " is a pointer of Git LFS"));
  }
  fs::create_symlink("../blobs/1", folder / "model.safetensors");
  EXPECT_THAT(error_of([&] { models::open_model(folder); }),
              HasSubstr("is a link to \"../blobs/1\", which is not there"));
}

TEST(OddFolders, AdaptersAreNoModel) {
  const testing::TemporaryFolder temporary;
  const auto folder = temporary / "adapter";
  fs::create_directory(folder);
  for (const char* text : {R"({"base_model_name_or_path": "gpt2"})", "[]"}) {
    write_file(folder / "adapter_config.json", text);
    EXPECT_THAT(error_of([&] { models::open_model(folder); }), HasSubstr("holds adapters of PEFT, not a model"));
  }
  write_file(folder / "adapter_config.json", R"({"base_model_name_or_path": "gpt2"})");
  EXPECT_THAT(error_of([&] { models::open_model(folder); }), HasSubstr("base model \"gpt2\""));
}

}  // namespace
}  // namespace levin::odd_folder_tests
