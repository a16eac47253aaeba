// levin convert and levin inspect: the names that weights have.
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/core/files.h"
#include "levin/io/weights/weights.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"
#include "levin/testing/ranks.h"

namespace levin::testing::weights_names {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kIo = fs::path(source_dir()) / "tests/io/fixtures/weights";

class WeightsNames : public testing::FolderTest {
 protected:
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  std::string levin(const std::vector<std::string>& words, int expected = 0) {
    std::vector<std::string> command{levin_program()};
    command.insert(command.end(), words.begin(), words.end());
    Process child(command);
    EXPECT_EQ(child.wait(), expected) << child.err();
    return child.out() + child.err();
  }
  static std::vector<std::string> names(const fs::path& path) {
    std::vector<std::string> found;
    const WeightFile file(path);
    for (const auto& entry : file.entries()) found.push_back(entry.name);
    std::sort(found.begin(), found.end());
    return found;
  }
};

/// An embedding and a head that are one; of a rank of `group` its rows.
std::shared_ptr<torch::nn::Module> tied(Collective* group, TensorShards* shards) {
  auto net = std::make_shared<torch::nn::Module>();
  const int64_t rows = group ? 4 / group->size() : 4, start = group ? rows * group->rank() : 0;
  auto embedding = std::make_shared<torch::nn::Module>(), head = std::make_shared<torch::nn::Module>();
  const auto whole = torch::arange(12, torch::kFloat).view({4, 3});
  auto part = embedding->register_parameter("weight", whole.narrow(0, start, rows).clone());
  head->register_parameter("weight", part);
  net->register_module("embedding", embedding);
  net->register_module("head", head);
  if (shards) shards->add(part, {.sizes = {4, 3}, .start = start});
  return net;
}

TEST_F(WeightsNames, EveryFormatHasBothNamesOfATiedWeight) {
  save_checkpoint(at("one"), {{"model", tied(nullptr, nullptr)}});
  run_ranks(2, [&](Collective& group) {
    TensorShards shards(group);
    const auto net = tied(&group, &shards);
    save_checkpoint(at("parts"), {{"model", net}}, {.world_size = 2, .shards = &shards});
    save_checkpoint(at("full"), {{"model", net}}, {.world_size = 2, .shards = &shards, .full = true});
  });
  const std::vector<std::string> both{"embedding.weight", "head.weight"};
  std::vector<std::string> written{at("one/model.safetensors"), at("full/model.safetensors")};
  for (const std::string from : {"one", "parts", "full"}) {
    for (const std::string ending : {".pt", ".bin", ".safetensors"}) {
      written.push_back(at(from + ending));
      levin({"convert", at(from), written.back()});
    }
    written.push_back(at(from + "_half.pt"));
    levin({"convert", at(from), written.back(), "--dtype", "bfloat16"});
    for (const std::string format : {"safetensors", "pth"}) {
      written.push_back(at(from + "_" + format));
      levin({"convert", at(from), written.back(), "--to", format, "--shard-bytes", "40"});
    }
    levin({"convert", at(from), at(from + "_again"), "--to", "checkpoint"});
    written.push_back(at(from + "_again/model.safetensors"));
    levin({"convert", at(from), at(from + "_all.pt"), "--root", ""});
    EXPECT_EQ(names(at(from + "_all.pt")), (std::vector<std::string>{"model.embedding.weight", "model.head.weight"}));
    EXPECT_THAT(levin({"inspect", at(from)}),
                AllOf(HasSubstr("model.embedding.weight"), HasSubstr("model.head.weight")));
  }
  // From one format to another.
  levin({"convert", at("one.pt"), at("onward.safetensors")});
  levin({"convert", at("one.safetensors"), at("onward2.safetensors")});
  levin({"convert", at("parts.pt"), at("onward.bin")});
  for (const char* name : {"onward.safetensors", "onward2.safetensors", "onward.bin"}) written.push_back(at(name));
  for (const auto& path : written) EXPECT_EQ(names(path), both) << path;
  const auto shared = WeightFile(at("parts.pt")).read(both);
  EXPECT_EQ(shared[0].second.data_ptr(), shared[1].second.data_ptr());

  const auto python = python_with("torch, safetensors");
  if (!python) GTEST_SKIP() << "no Python with torch and safetensors (LEVIN_PEER_PYTHON names one)";
  std::vector<std::string> command{*python, source_dir() + "/tests/launch/read_tied.py"};
  command.insert(command.end(), written.begin(), written.end());
  const auto ran = run_program(command);
  EXPECT_EQ(ran.status, 0) << ran.text();
}

TEST_F(WeightsNames, WhatSafetensorsLeftOutComesBack) {
  levin({"convert", (kIo / "save_model.safetensors").string(), at("both.pt")});
  EXPECT_EQ(names(at("both.pt")), (std::vector<std::string>{"0.weight", "1.weight"}));
}

TEST_F(WeightsNames, FilesOfTrainingScriptsAreRead) {
  const std::vector<std::string> plain{"bias", "weight"};
  for (const char* name : {"reference.pth", "reference_legacy.pth", "wrapped.pth.tar", "wrapped_legacy.pth"}) {
    const auto path = (kIo / name).string();
    const auto told = levin({"convert", path, at("out.safetensors"), "--overwrite"});
    EXPECT_EQ(names(at("out.safetensors")), plain) << name;
    EXPECT_TRUE(WeightFile(at("out.safetensors")).read("bias").equal(torch::arange(3, torch::kFloat)));
    const bool wrapped = std::string(name).starts_with("wrapped");
    EXPECT_EQ(told.find("the prefix \"module.\" of all names") != std::string::npos, wrapped) << told;
    const auto shown = levin({"inspect", path});
    EXPECT_THAT(shown, HasSubstr("[3, 2]"));
    EXPECT_EQ(shown.find("args.lr: 0.1") != std::string::npos, !wrapped) << shown;
  }
  // Who names prefixes or tensors means the names of the file.
  const auto wrapped = (kIo / "wrapped.pth.tar").string();
  levin({"convert", wrapped, at("stripped.pt"), "--strip-prefix", "module."});
  EXPECT_EQ(names(at("stripped.pt")), plain);
  levin({"convert", wrapped, at("chosen.safetensors"), "--select", "module.bias"});
  EXPECT_EQ(names(at("chosen.safetensors")), (std::vector<std::string>{"module.bias"}));
  levin({"convert", wrapped, at("kept.safetensors"), "--add-prefix", "module."});
  EXPECT_EQ(names(at("kept.safetensors")), (std::vector<std::string>{"module.bias", "module.weight"}));
  EXPECT_THAT(levin({"convert", (kIo / "oldest.pth").string(), at("old.pt")}, 1),
              HasSubstr("is a tar of torch before"));
}

TEST_F(WeightsNames, AFifoIsRefusedAtOnce) {
  fs::create_directories(folder_ / "folder");
  for (const char* name : {"folder/manifest.json", "folder/model.safetensors", "weights.pth"}) {
    const auto path = at(name);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    const auto from = std::string(name).starts_with("folder") ? at("folder") : path;
    for (const std::string command : {"inspect", "convert"}) {
      std::vector<std::string> words{"timeout", "60", levin_program(), command, from};
      if (command == "convert") words.push_back(at("x.pt"));
      words[0] = "/usr/bin/timeout";
      Process child(words);
      EXPECT_EQ(child.wait(), 1) << name;
      EXPECT_THAT(child.err(), HasSubstr("is a FIFO; only regular files are read")) << name;
    }
    fs::remove(path);
  }
}

}  // namespace
}  // namespace levin::testing::weights_names
