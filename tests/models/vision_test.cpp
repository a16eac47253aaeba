// Every named model against torchvision's: names, shapes, first weights, outputs, gradients, running statistics.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/io/weights/safetensors.h"
#include "levin/models/registry.h"
#include "levin/models/resnet.h"
#include "levin/models/vit.h"
#include "levin/nn/functional.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "tests/models/vision_rule.h"

namespace levin {
namespace {

using levin::testing::rule_digest;
using nlohmann::json;
using testing::error_of;

const std::string kVisionFixtures = levin::testing::source_dir() + "/tests/models/fixtures/";
constexpr int64_t kClasses = 10;

const json& parity() {
  static const json all = json::parse(std::ifstream(kVisionFixtures + "vision_parity.json"));
  return all;
}

/// The named model with the changes of a case: fewer blocks, another stem.
models::ImageModel build(const json& c) {
  const auto name = c["model"].get<std::string>();
  const auto named = init_module([&] { return models::make(name); }, {.deferred = true});
  if (const auto* vit = named->as<models::VisionTransformerImpl>()) {
    auto options = vit->options;
    options.image_size = c["image"];
    options.num_layers = c.value("num_layers", options.num_layers);
    options.num_classes = kClasses;
    return models::vit(options);
  }
  auto options = named->as<models::ResNetImpl>()->options;
  options.num_classes = kClasses;
  options.layers = c.value("layers", options.layers);
  options.replace_stride_with_dilation = c.value("replace_stride_with_dilation", options.replace_stride_with_dilation);
  options.small_images = c.value("small_images", false);
  options.zero_init_residual = c.value("zero_init_residual", false);
  return models::resnet(options);
}

Tensor images_of(const json& c) {
  const int64_t batch = c["batch"], side = c["image"];
  return (levin::testing::rule_numbers("images", batch * 3 * side * side) * 1.7).view({batch, 3, side, side});
}

Tensor labels_of(const json& c) {
  return (torch::arange(c["batch"].get<int64_t>()) * 3).remainder(kClasses);
}

Tensor tensor_of(const json& numbers) {
  return torch::tensor(numbers.get<std::vector<double>>(), torch::kFloat);
}

/// ||a - b|| / ||b||
double difference(const Tensor& a, const Tensor& b) {
  const auto x = a.detach().flatten().to(torch::kDouble), y = b.detach().flatten().to(torch::kDouble);
  return ((x - y).norm() / y.norm()).item<double>();
}

void expect_digest(const std::string& name, const Tensor& tensor, const json& expected, double tolerance) {
  const auto found = rule_digest(name, tensor);
  const auto norm = expected[0].get<double>();
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i].get<double>(), tolerance * norm + 1e-30) << name << " digest " << i;
}

std::string listing(const torch::nn::Module& model) {
  std::ostringstream out;
  for (const auto& module : model.named_modules("", true)) {
    std::string line;
    const auto add = [&](const auto& items) {
      for (const auto& item : items) {
        line += " " + item.key() + "=";
        for (int64_t i = 0; i < item.value().dim(); ++i) line += (i ? "x" : "") + std::to_string(item.value().size(i));
      }
    };
    add(module.value()->named_parameters(false));
    add(module.value()->named_buffers(false));
    if (!line.empty()) out << "  " << module.key() << ":" << line << "\n";
  }
  return out.str();
}

TEST(Vision, EveryNameHasTorchvisionsTensors) {
  std::ifstream in(kVisionFixtures + "vision_names.txt");
  std::map<std::string, std::pair<std::string, std::string>> expected;  // name: the counts, the listing
  std::string line, current;
  while (std::getline(in, line)) {
    if (line.starts_with(' ')) {
      expected[current].second += line + "\n";
      continue;
    }
    current = line.substr(0, line.find(' '));
    expected[current].first = line.substr(current.size() + 1);
  }
  ASSERT_EQ(expected.size(), 15u);
  EXPECT_EQ(models::names().size(), expected.size());
  for (const auto& name : models::names()) {
    const auto model = init_module([&] { return models::make(name); }, {.deferred = true});
    int64_t parameters = 0, buffers = 0;
    for (const auto& parameter : model->parameters()) parameters += parameter.numel();
    for (const auto& buffer : model->buffers()) buffers += buffer.numel();
    EXPECT_EQ(std::to_string(parameters) + " " + std::to_string(buffers), expected[name].first) << name;
    EXPECT_TRUE(listing(*model) == expected[name].second) << name << " differs:\n" << listing(*model);
  }
}

TEST(Vision, SeedsGiveTorchvisionsFirstWeights) {
  for (const auto& start : parity()["starts"]) {
    torch::manual_seed(start["seed"].get<uint64_t>());
    const auto model = build(start);
    size_t i = 0;
    for (const auto& item : model->named_parameters()) {
      const auto& row = start["rows"][i++];
      expect_digest(item.key(), item.value(), row, 1e-6);
      const auto flat = item.value().detach().flatten();
      for (int64_t k = 0; k < 3; ++k)
        EXPECT_NEAR(flat[k].item<double>(), row[static_cast<size_t>(k) + 3].get<double>(), 1e-7) << item.key();
    }
    EXPECT_EQ(i, start["rows"].size());
  }
}

class VisionParity : public ::testing::TestWithParam<size_t> {};

TEST_P(VisionParity, OutputsGradientsAndStatisticsAreTorchvisions) {
  const auto& c = parity()["cases"][GetParam()];
  auto model = levin::testing::rule_model([&] { return build(c); });
  const auto images = images_of(c);
  {
    torch::NoGradGuard no_grad;
    model->eval();
    EXPECT_LT(difference(model(images), tensor_of(c["eval_logits"])), 1e-5) << "eval";
  }
  // In float64: normalizing few images amplifies rounding, and in float32 machines differ by more than models do.
  model->to(torch::kDouble);
  model->train();
  const auto logits = model(images.to(torch::kDouble));
  EXPECT_LT(difference(logits, tensor_of(c["logits"])), 1e-6) << "train";
  cross_entropy(logits, labels_of(c)).backward();
  size_t i = 0;
  for (const auto& item : model->named_parameters())
    expect_digest(item.key(), item.value().grad(), c["gradients"][i++], 1e-6);
  EXPECT_EQ(i, c["gradients"].size());
  i = 0;
  for (const auto& item : model->named_buffers()) expect_digest(item.key(), item.value(), c["buffers"][i++], 1e-5);
  EXPECT_EQ(i, c["buffers"].size());
}

INSTANTIATE_TEST_SUITE_P(All, VisionParity, ::testing::Range<size_t>(0, 17), [](const auto& test) {
  return std::to_string(test.param) + "_" + parity()["cases"][test.param]["model"].template get<std::string>();
});

// Whole models with all of their gradients: make_vision_fixtures.py --full DIR, then this with LEVIN_VISION_FULL=DIR.
// It prints the rows of the table in docs/models.md.
TEST(Vision, FullModelsByHand) {
  const char* folder = std::getenv("LEVIN_VISION_FULL");
  if (!folder) GTEST_SKIP() << "by hand: LEVIN_VISION_FULL names no folder";
  for (const auto& name : models::names()) {
    const auto base = std::string(folder) + "/" + name;
    std::ifstream in(base + ".json");
    if (!in) continue;
    const auto c = json::parse(in);
    auto model = levin::testing::rule_model([&] { return build(c); });
    const auto images = images_of(c);
    model->eval();
    const double evaluated = [&] {
      torch::NoGradGuard no_grad;
      return difference(model(images), tensor_of(c["eval_logits"]));
    }();
    model->train();
    const auto logits = model(images);
    cross_entropy(logits, labels_of(c)).backward();
    const SafetensorsFile gradients(base + ".safetensors");
    double worst = 0, worst_element = 0;
    int64_t parameters = 0;
    for (auto& item : model->named_parameters()) {
      const auto expected = gradients.read(item.key());
      worst = std::max(worst, difference(item.value().grad(), expected));
      worst_element =
          std::max(worst_element, ((item.value().grad() - expected).abs().max() / expected.abs().max()).item<double>());
      parameters += item.value().numel();
      item.value().mutable_grad().reset();
    }
    printf("| `%s` | %.1f | %.0e | %.0e | %.0e | %.0e |\n", name.c_str(), static_cast<double>(parameters) * 1e-6,
           evaluated, difference(logits, tensor_of(c["logits"])), worst, worst_element);
    fflush(stdout);
    EXPECT_LT(worst, 1e-4) << name;
  }
}

TEST(Registry, UnknownNamesAndForeignOptionsAreOneLine) {
  EXPECT_THAT(error_of([] { models::make("resnet_50"); }),
              ::testing::StartsWith("[models.make] model \"resnet_50\" is not known; did you mean \"resnet50\"?"));
  EXPECT_EQ(error_of([] { models::make("vit_b_16", {.small_images = true}); }),
            "[models.make] vit_b_16 has no zero_init_residual and no small_images: these are of residual networks");
  EXPECT_EQ(error_of([] { models::make("resnet18", {.dropout = 0.1}); }),
            "[models.make] resnet18 has no dropout: this is of vision transformers");
}

}  // namespace
}  // namespace levin
