#include "levin/models/load_weights.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/io/weights/torch_file.h"
#include "levin/models/vit.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"

namespace levin::load_weights_tests {
namespace {

namespace fs = std::filesystem;
using models::load_weights;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const fs::path kNaming = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/naming";

models::ViTOptions tiny() {
  return {.image_size = 16,
          .patch_size = 8,
          .num_layers = 2,
          .num_heads = 2,
          .hidden_dim = 8,
          .mlp_dim = 16,
          .num_classes = 5};
}

std::vector<Tensor> copies(const torch::nn::Module& module) {
  std::vector<Tensor> result;
  for (const auto& tensor : module.parameters()) result.push_back(tensor.detach().clone());
  return result;
}

void expect_untouched(const torch::nn::Module& module, const std::vector<Tensor>& before) {
  const auto now = module.parameters();
  for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(now[i].equal(before[i]));
}

class LoadWeights : public testing::FolderTest {
 protected:
};

TEST_F(LoadWeights, EveryNamingGivesTheOutputsOfTheOriginal) {
  const WeightFile reference(kNaming / "vit_outputs.safetensors");
  const torch::NoGradGuard no_grad;
  for (const std::string name : {"torchvision", "timm", "huggingface"}) {
    SCOPED_TRACE(name);
    auto model = models::vit(tiny());
    model->eval();
    const auto report = load_weights(*model, kNaming / ("vit_" + name + ".safetensors"));
    EXPECT_EQ(report.naming, name == "torchvision" ? "" : name);
    EXPECT_EQ(report.loaded.size(), model->parameters().size());
    EXPECT_THAT(report.missing, IsEmpty());
    EXPECT_THAT(report.unexpected, IsEmpty());
    EXPECT_TRUE(torch::allclose(model(reference.read("images")), reference.read("logits"), 1e-5, 2e-6));
    load_weights(*model, kNaming / ("vit_" + name + ".safetensors"), {.naming = name});
  }
}

TEST_F(LoadWeights, StrictMismatchIsOneLineAndChangesNothing) {
  auto model = models::vit(tiny());
  const auto before = copies(*model);
  EXPECT_THAT(error_of([&] { load_weights(*model, kNaming / "vit_lightning.ckpt"); }),
              ::testing::AllOf(HasSubstr("32 missing: class_token"), HasSubstr("32 unexpected: net.class_token"),
                               HasSubstr("strip_prefix \"net.\" would fit")));
  EXPECT_EQ(load_weights(*models::vit(tiny()), kNaming / "vit_lightning.ckpt", {.strip_prefix = "net."}).loaded.size(),
            32u);

  auto other = tiny();
  other.num_classes = 7;
  auto head = models::vit(other);
  const auto head_before = copies(*head);
  EXPECT_THAT(
      error_of([&] { load_weights(*head, kNaming / "vit_timm.safetensors"); }),
      ::testing::AllOf(HasSubstr("2 of another shape: heads.head.weight ([5, 8] in the file, [7, 8] in the module)"),
                       HasSubstr("put \"heads.*\" into ignore")));
  expect_untouched(*head, head_before);
  const auto report = load_weights(*head, kNaming / "vit_timm.safetensors", {.ignore = {"heads.*"}});
  EXPECT_THAT(report.ignored, ElementsAre("heads.head.weight", "heads.head.bias"));
  EXPECT_EQ(report.loaded.size(), 30u);
  EXPECT_TRUE(head->head->weight.equal(head_before[head_before.size() - 2]));

  EXPECT_THAT(error_of([&] { load_weights(*model, kNaming / "resnet_basic_torchvision.safetensors"); }),
              HasSubstr("does not fit the module (32 tensors): 32 missing"));
  EXPECT_THAT(error_of([&] { load_weights(*model, kNaming / "vit_timm.safetensors", {.naming = "tim"}); }),
              HasSubstr("did you mean \"timm\"?"));
  EXPECT_THAT(error_of([&] { load_weights(*model, kNaming / "vit_timm.safetensors", {.naming = "same"}); }),
              HasSubstr("32 unexpected"));
  expect_untouched(*model, before);
}

TEST_F(LoadWeights, NotStrictTakesWhatFits) {
  torch::nn::Linear net(2, 3);
  write_torch_file(folder_ / "part.pth", {{"weight", torch::ones({3, 2}, torch::kHalf)}, {"extra", torch::ones(1)}});
  EXPECT_THAT(error_of([&] { load_weights(*net, folder_ / "part.pth"); }),
              HasSubstr("1 missing: bias; 1 unexpected: extra"));
  const auto bias = net->bias.detach().clone();
  const auto report = load_weights(*net, folder_ / "part.pth", {.strict = false});
  EXPECT_THAT(report.loaded, ElementsAre("weight"));
  EXPECT_THAT(report.missing, ElementsAre("bias"));
  EXPECT_THAT(report.unexpected, ElementsAre("extra"));
  EXPECT_EQ(report.converted, 1);
  EXPECT_EQ(net->weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(net->weight.equal(torch::ones({3, 2})));
  EXPECT_TRUE(net->bias.equal(bias));
  write_torch_file(folder_ / "wrong.pth", {{"weight", torch::ones({2, 3})}, {"bias", torch::zeros(3)}});
  EXPECT_THAT(error_of([&] { load_weights(*net, folder_ / "wrong.pth", {.strict = false}); }),
              HasSubstr("1 of another shape: weight ([2, 3] in the file, [3, 2] in the module)"));
  EXPECT_TRUE(net->bias.equal(bias));
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    first = register_parameter("first", torch::zeros({2, 2}));
    register_parameter("second", first);
  }
  Tensor first;
};

TEST_F(LoadWeights, OfATiedTensorOneNameIsEnough) {
  TiedImpl tied;
  write_torch_file(folder_ / "one.pth", {{"second", torch::ones({2, 2})}});
  EXPECT_THAT(load_weights(tied, folder_ / "one.pth").loaded, ElementsAre("second"));
  EXPECT_TRUE(tied.first.equal(torch::ones({2, 2})));
  models::save_weights(tied, folder_ / "tied.pth");
  const TorchFile file(folder_ / "tied.pth");
  EXPECT_EQ(file.at("first").storage, file.at("second").storage);
  load_weights(tied, folder_ / "tied.pth");
}

TEST_F(LoadWeights, PositionsOfAnotherGridAreStretchedWhenAsked) {
  auto options = tiny();
  options.image_size = 32;
  auto model = models::vit(options);
  const auto before = copies(*model);
  for (const char* name : {"vit_torchvision.safetensors", "vit_huggingface.safetensors"}) {
    EXPECT_THAT(error_of([&] { load_weights(*model, kNaming / name); }), HasSubstr("interpolate_positions stretches"));
    expect_untouched(*model, before);
    const auto report = load_weights(*models::vit(options), kNaming / name, {.interpolate_positions = true});
    EXPECT_THAT(report.interpolated, ElementsAre("encoder.pos_embedding"));
  }
  load_weights(*model, kNaming / "vit_timm.safetensors", {.interpolate_positions = true});
  const auto expected = WeightFile(kNaming / "vit_outputs.safetensors").read("positions_32");
  EXPECT_TRUE(torch::allclose(model->encoder->pos_embedding, expected, 1e-6, 1e-7));
  EXPECT_THAT(error_of([] {
                models::interpolate_positions(torch::ones({1, 6, 2}), 10);
              }),
              HasSubstr("5 patches are not a square"));
}

TEST_F(LoadWeights, SavesWhatItLoads) {
  auto model = models::vit(tiny());
  load_weights(*model, kNaming / "vit_torchvision.safetensors");
  for (const char* name : {"vit_torchvision_saved.safetensors", "vit_torchvision_saved.pth"}) {
    models::save_weights(*model, folder_ / name);
    auto again = models::vit(tiny());
    EXPECT_EQ(load_weights(*again, folder_ / name).loaded.size(), 32u);
    expect_untouched(*again, copies(*model));
  }
  EXPECT_THAT(error_of([&] { models::save_weights(*model, folder_ / "x.safetensor"); }),
              HasSubstr("did you mean \".safetensors\"?"));
  const auto python = testing::python_with("torchvision, safetensors");
  if (!python) GTEST_SKIP() << "no Python with torchvision and safetensors (LEVIN_PEER_PYTHON names one)";
  const auto script = (kNaming / "../../read_saved.py").lexically_normal();
  const auto ran = testing::run_program({*python, script.string(), (kNaming / "vit_outputs.safetensors").string(),
                                         (folder_ / "vit_torchvision_saved.safetensors").string(),
                                         (folder_ / "vit_torchvision_saved.pth").string()});
  EXPECT_EQ(ran.status, 0) << ran.text();
  EXPECT_THAT(ran.text(), HasSubstr("2 files: equal"));
}

}  // namespace
}  // namespace levin::load_weights_tests
