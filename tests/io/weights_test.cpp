#include "levin/io/weights/weights.h"

#include <gmock/gmock.h>

#include "levin/io/weights/safetensors_model.h"
#include "levin/io/weights/torch_file.h"
#include "tests/io/crafted.h"

namespace levin::weights_tests {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::weight_fixture;

class WeightsTest : public testing::CraftedFiles {
 protected:
  std::string refusal(const fs::path& path, const WeightOptions& options = {}) {
    return error_of([&] { WeightFile opened(path, options); });
  }
  void index(const std::string& name, const std::string& map) {
    write_file(folder_ / name, "{\"weight_map\": " + map + "}");
  }
};

std::vector<std::string> names(const WeightFile& file) {
  std::vector<std::string> result;
  for (const auto& entry : file.entries()) result.push_back(entry.name);
  return result;
}

TEST_F(WeightsTest, OneViewOverBothFormats) {
  const WeightFile torch_file(weight_fixture("linear.pth"));
  EXPECT_EQ(torch_file.format(), "torch");
  EXPECT_THAT(names(torch_file), ElementsAre("weight", "bias"));
  EXPECT_EQ(torch_file.at("weight").dtype, "float32");
  EXPECT_EQ(torch_file.at("weight").shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(torch_file.at("weight").bytes, 24u);
  EXPECT_EQ(torch_file.bytes(), 36u);
  write_safetensors(folder_ / "copy.safetensors", torch_file.read(names(torch_file)), {{"format", "pt"}});
  const WeightFile copy(folder_);
  EXPECT_EQ(copy.format(), "safetensors");
  EXPECT_EQ(copy.metadata().at("format"), "pt");
  for (const auto& entry : torch_file.entries()) {
    EXPECT_EQ(copy.at(entry.name).dtype, entry.dtype);
    EXPECT_TRUE(copy.read(entry.name).equal(torch_file.read(entry.name)));
  }
  EXPECT_THAT(error_of([&] { copy.read("wieght"); }), HasSubstr("has no tensor \"wieght\"; did you mean \"weight\"?"));
}

TEST_F(WeightsTest, WhatAFileIsIsToldByItsContent) {
  fs::copy_file(weight_fixture("linear.pth"), folder_ / "disguised.safetensors");
  EXPECT_EQ(WeightFile(folder_ / "disguised.safetensors").format(), "torch");
}

TEST_F(WeightsTest, TheWeightsOfACheckpointAreFound) {
  const WeightFile file(weight_fixture("lightning.ckpt"));
  EXPECT_EQ(file.root(), "state_dict");
  EXPECT_THAT(names(file), ElementsAre("net.weight", "net.bias"));
  EXPECT_EQ(file.metadata().at("epoch"), "3");
  EXPECT_EQ(file.metadata().at("pytorch-lightning_version"), "2.5");
  const WeightFile all(weight_fixture("lightning.ckpt"), {.root = ""});
  EXPECT_TRUE(all.contains("optimizer_states.0.state.0.exp_avg"));
  EXPECT_TRUE(all.contains("state_dict.net.bias"));
}

TEST_F(WeightsTest, OpensIndexesOfBothFormats) {
  const WeightFile bins(weight_fixture("sharded_bin"));
  EXPECT_EQ(bins.format(), "torch");
  EXPECT_EQ(bins.files().size(), 2u);
  EXPECT_THAT(names(bins), ElementsAre("a", "b"));
  EXPECT_TRUE(bins.read("b").equal(torch::arange(4, torch::kFloat)));
  const auto both = bins.read(std::vector<std::string>{"b", "a"});
  EXPECT_EQ(both[0].first, "b");
  EXPECT_TRUE(both[1].second.equal(torch::arange(3, torch::kFloat)));
  const WeightFile tensors(fs::path(testing::source_dir()) / "tests/io/fixtures/sharded");
  EXPECT_EQ(tensors.format(), "safetensors");
  EXPECT_THAT(names(tensors), ElementsAre("a", "b"));
}

TEST_F(WeightsTest, TiedTensorsStayTied) {
  const WeightFile file(weight_fixture("shared.pt"));
  const auto tensors = file.read(std::vector<std::string>{"base", "tied", "scalar"});
  EXPECT_EQ(tensors[0].second.data_ptr(), tensors[1].second.data_ptr());
}

TEST_F(WeightsTest, RefusesWhatDoesNotFitTogether) {
  EXPECT_THAT(refusal(folder_ / "missing.pt"), HasSubstr("does not exist"));
  EXPECT_THAT(refusal(folder_), HasSubstr("has no weights"));
  write_torch_file(folder_ / "a.pth", {{"a", torch::ones(1)}});
  write_torch_file(folder_ / "b.pth", {{"b", torch::ones(1)}});
  write_torch_file(folder_ / "both.pth", {{"a", torch::ones(1)}, {"b", torch::ones(1)}});
  EXPECT_THAT(refusal(folder_), HasSubstr("has 3 weight files; name one of them"));
  const auto path = folder_ / "pytorch_model.bin.index.json";
  const auto with = [&](const std::string& map) {
    index("pytorch_model.bin.index.json", map);
    return refusal(path);
  };
  EXPECT_EQ(with(R"({"a": "a.pth", "b": "b.pth"})"), "no error");
  EXPECT_THAT(with(R"({"a": "../a.pth"})"), HasSubstr("only names of files beside the index are allowed"));
  EXPECT_THAT(with(R"({"a": 3})"), HasSubstr("only names of files"));
  EXPECT_THAT(with(R"({"a": "a.pth", "b": "c.pth"})"), HasSubstr("c.pth"));
  EXPECT_THAT(with(R"({"a": "a.pth", "b": "a.pth"})"), HasSubstr("\"b\" is said to be in \"a.pth\", it is not"));
  EXPECT_THAT(with(R"({"a": "both.pth"})"), HasSubstr("\"b\" of \"both.pth\" is not in the index"));
  EXPECT_THAT(with(R"({"a": "a.pth", "b": "both.pth"})"), HasSubstr("\"a\" is in two files"));
  EXPECT_THAT(with("{}"), HasSubstr("is not an index"));
  EXPECT_THAT(with("[]"), HasSubstr("is not an index"));
  write_file(path, "{");
  EXPECT_THAT(refusal(path), HasSubstr("is not an index"));
  write_file(folder_ / "text.pth", "no weights at all, only words");
  EXPECT_THAT(refusal(folder_ / "text.pth"), HasSubstr("[safetensors]"));
}

TEST_F(WeightsTest, NamesOfTypes) {
  EXPECT_EQ(dtype_name(at::kBFloat16), "bfloat16");
  EXPECT_EQ(dtype_from_name("test", "float16"), at::kHalf);
  EXPECT_THAT(error_of([] { dtype_from_name("test", "flaot32"); }), HasSubstr("did you mean \"float32\"?"));
}

}  // namespace
}  // namespace levin::weights_tests
