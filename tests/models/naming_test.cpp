#include "levin/models/naming.h"

#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/io/weights/weights.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin::naming_tests {
namespace {

using models::detect_naming;
using models::plan_naming;
using testing::error_of;
using ::testing::HasSubstr;

const std::string kNaming =
    (std::filesystem::path(levin::testing::source_dir()) / "tests/models/fixtures/naming/").string();

std::vector<std::string> names(const WeightFile& file) {
  std::vector<std::string> result;
  for (const auto& entry : file.entries()) result.push_back(entry.name);
  return result;
}

/// The tensors of a file under the names of another scheme.
std::map<std::string, Tensor> renamed(const WeightFile& file, const std::string& from, const std::string& to) {
  std::map<std::string, Tensor> result;
  for (const auto& weight : plan_naming(names(file), from, to)) {
    std::vector<Tensor> parts;
    std::vector<std::vector<int64_t>> shapes;
    for (const auto& source : weight.sources) {
      parts.push_back(file.read(source));
      shapes.push_back(file.at(source).shape);
    }
    auto tensor = parts.size() > 1 ? torch::cat(parts, 0) : parts[0];
    if (weight.parts > 1) tensor = tensor.chunk(weight.parts, 0)[static_cast<size_t>(weight.part)];
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef(models::renamed_shape(weight, shapes)));
    EXPECT_TRUE(result.emplace(weight.name, tensor).second) << weight.name;
  }
  return result;
}

/// The same names, shapes and numbers.
void expect_equal(const std::map<std::string, Tensor>& found, const WeightFile& expected) {
  EXPECT_EQ(found.size(), expected.entries().size());
  for (const auto& entry : expected.entries()) {
    const auto item = found.find(entry.name);
    ASSERT_NE(item, found.end()) << entry.name;
    EXPECT_TRUE(item->second.equal(expected.read(entry.name))) << entry.name;
  }
}

TEST(Naming, EverySchemeOfAViTBecomesEveryOther) {
  for (const std::string from : {"torchvision", "timm", "huggingface"})
    for (const std::string to : {"torchvision", "timm", "huggingface"}) {
      SCOPED_TRACE(from + " to " + to);
      const WeightFile source(kNaming + "vit_" + from + ".safetensors");
      EXPECT_EQ(detect_naming(names(source)).architecture, "vit");
      EXPECT_EQ(detect_naming(names(source)).scheme, from);
      EXPECT_TRUE(detect_naming(names(source)).unknown.empty());
      expect_equal(renamed(source, from, to), WeightFile(kNaming + "vit_" + to + ".safetensors"));
    }
}

TEST(Naming, NamesOfTransformersInMemoryAreReadToo) {
  const WeightFile source(kNaming + "vit_transformers5.safetensors");
  EXPECT_EQ(detect_naming(names(source)).scheme, "huggingface");
  expect_equal(renamed(source, "huggingface", "torchvision"), WeightFile(kNaming + "vit_torchvision.safetensors"));
}

TEST(Naming, EverySchemeOfAResNetBecomesEveryOther) {
  for (const std::string kind : {"basic", "bottleneck"}) {
    SCOPED_TRACE(kind);
    const WeightFile vision(kNaming + "resnet_" + kind + "_torchvision.safetensors");
    const WeightFile hugging(kNaming + "resnet_" + kind + "_huggingface.safetensors");
    EXPECT_EQ(detect_naming(names(vision)).scheme, "torchvision");
    EXPECT_EQ(detect_naming(names(hugging)).architecture, "resnet");
    EXPECT_EQ(detect_naming(names(hugging)).scheme, "huggingface");
    expect_equal(renamed(vision, "torchvision", "huggingface"), hugging);
    expect_equal(renamed(hugging, "huggingface", "torchvision"), vision);
    expect_equal(renamed(vision, "torchvision", "timm"), vision);
  }
}

TEST(Naming, NamesAndShapesAtRealSizesAreEqualSets) {
  std::ifstream in(kNaming + "names.json");
  const auto all = nlohmann::json::parse(in);
  int compared = 0;
  for (const auto& [model, schemes] : all.items())
    for (const auto& [from, source] : schemes.items())
      for (const auto& [to, target] : schemes.items()) {
        SCOPED_TRACE(model + ": " + from + " to " + to);
        std::vector<std::string> list;
        for (const auto& [name, shape] : source.items()) list.push_back(name);
        std::map<std::string, std::vector<int64_t>> found;
        for (const auto& weight : plan_naming(list, from, to)) {
          std::vector<std::vector<int64_t>> shapes;
          for (const auto& part : weight.sources) shapes.push_back(source[part].get<std::vector<int64_t>>());
          found[weight.name] = models::renamed_shape(weight, shapes);
        }
        EXPECT_EQ(found, (target.get<std::map<std::string, std::vector<int64_t>>>()));
        ++compared;
      }
  EXPECT_EQ(compared, 4 + 9 + 9);
}

TEST(Naming, SaysWhatItDoesNotKnow) {
  const std::vector<std::string> other{"layer.weight", "layer.bias"};
  EXPECT_EQ(detect_naming(other).scheme, "");
  EXPECT_THAT(error_of([&] { plan_naming(other, "timm", "torchvision"); }),
              HasSubstr("not of a vit, resnet, gpt2 or llama of timm"));
  EXPECT_THAT(error_of([&] { plan_naming(other, "tim", "torchvision"); }), HasSubstr("did you mean \"timm\"?"));
  auto list = names(WeightFile(kNaming + "vit_timm.safetensors"));
  list.push_back("pre_logits.fc.weight");
  EXPECT_EQ(detect_naming(list).unknown, std::vector<std::string>{"pre_logits.fc.weight"});
  EXPECT_THAT(error_of([&] { plan_naming(list, "timm", "torchvision"); }),
              HasSubstr("1 of 33 names are not of a vit of timm: pre_logits.fc.weight"));
  auto hugging = names(WeightFile(kNaming + "vit_huggingface.safetensors"));
  std::erase(hugging, "vit.encoder.layer.1.attention.attention.key.weight");
  EXPECT_THAT(error_of([&] { plan_naming(hugging, "huggingface", "timm"); }),
              HasSubstr("\"blocks.1.attn.qkv.weight\" is made of queries, keys and values; one is missing"));
  const models::RenamedWeight third{"x", {"y"}, 0, 3};
  const std::vector<std::vector<int64_t>> ten{{10, 2}};
  EXPECT_THAT(error_of([&] { models::renamed_shape(third, ten); }), HasSubstr("10 rows cannot be cut into 3 parts"));
}

TEST(Naming, AModelWithoutItsHeadIsKnown) {
  std::vector<std::string> list;
  for (const auto& name : names(WeightFile(kNaming + "vit_huggingface.safetensors")))
    if (name.starts_with("vit.")) list.push_back(name.substr(4));
  const auto naming = detect_naming(list);
  EXPECT_EQ(naming.scheme, "huggingface");
  EXPECT_TRUE(naming.unknown.empty());
  EXPECT_EQ(plan_naming(list, "huggingface", "timm").size(), 30u);
}

}  // namespace
}  // namespace levin::naming_tests
