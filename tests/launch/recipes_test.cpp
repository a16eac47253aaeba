// The recipes of images and the studies, as a user starts them: tiny, on drawn pictures.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/models/load_weights.h"
#include "levin/models/resnet.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Recipes : public FolderTest {
 protected:
  void SetUp() override {
    if (!fs::exists(program_)) GTEST_SKIP() << "the program `levin` is not built here";
  }

  /// `levin COMMAND RECIPE` with a few batches, files in the test's folder.
  std::vector<std::string> words(const std::string& command, const std::string& recipe,
                                 const std::vector<std::string>& more = {}, const std::string& runs = "runs") const {
    std::vector<std::string> all{program_,
                                 command,
                                 recipe,
                                 "--trainer.accelerator=cpu",
                                 "--trainer.limit_train_batches=3",
                                 "--trainer.limit_val_batches=1",
                                 "--trainer.limit_test_batches=1",
                                 "--trainer.max_epochs=2",
                                 "--trainer.default_root_dir=" + (folder_ / runs).string(),
                                 "--data.batch_size=8",
                                 "--data.eval_batch_size=16"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  fs::path only(const std::string& name, const std::string& runs = "runs") const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / runs))
      if (entry.path().filename() == name) found.push_back(entry.path());
    EXPECT_EQ(found.size(), 1u) << name;
    return found.empty() ? fs::path() : found[0];
  }

  std::string program_ = levin_program();
};

const std::vector<std::string> kSmallVit{"--model.num_layers=1", "--model.num_heads=2", "--model.hidden_dim=8",
                                         "--model.mlp_dim=8"};
const std::vector<std::string> kDrawn{"--data.drawn=200", "--data.val_size=32"};

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(Recipes, ShippedConfigsAreUnderstood) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(source_dir() + "/examples/configs")) {
    Process child({program_, "fit", "--config", entry.path().string(), "--print-config"});
    EXPECT_EQ(child.wait(), 0) << child.err();
    const auto text = text_of(entry.path());
    const auto begin = text.find("recipe: ");
    ASSERT_NE(begin, std::string::npos) << entry.path();
    EXPECT_THAT(child.out(), HasSubstr("\n" + text.substr(begin, text.find('\n', begin) - begin) + "  #"));
    ++count;
  }
  EXPECT_EQ(count, 9);
}

TEST_F(Recipes, VisionTransformerOnCifar) {
  Process child(words("fit", "vit_cifar10", joined(kSmallVit, kDrawn)));
  ASSERT_EQ(child.wait(), 0) << child.err();
  EXPECT_THAT(child.err(), AllOf(HasSubstr("bf16-mixed"), HasSubstr("val_acc")));
  EXPECT_THAT(text_of(only("metrics.csv")), HasSubstr("val_acc"));
}

TEST_F(Recipes, ResidualNetworkOnCifarInSixteenBits) {
  for (const std::string precision : {"bf16-mixed", "16-mixed"}) {
    Process child(words("fit", "resnet50_cifar10",
                        joined(kDrawn, {"--model.name=resnet18", "--model.small_images=false", "--data.batch_size=2",
                                        "--data.eval_batch_size=2", "--trainer.limit_train_batches=1",
                                        "--trainer.max_epochs=1", "--trainer.precision=" + precision}),
                        precision));
    ASSERT_EQ(child.wait(), 0) << child.err();
    EXPECT_THAT(child.err(), AllOf(HasSubstr(precision), HasSubstr("val_acc")));
  }
}

TEST_F(Recipes, ResidualNetworkOnAFolderOfJpegs) {
  const auto images = (folder_ / "images").string();
  for (const std::string runs : {"drawn", "again"}) {
    Process child(words("fit", "resnet50_images",
                        {"--data.folder=" + images, "--data.val=" + images, "--data.drawn=100", "--data.image_size=32",
                         "--data.num_workers=" + std::string(runs == "drawn" ? "0" : "1"), "--model.name=resnet18",
                         "--model.channels_last=" + std::string(runs == "drawn" ? "false" : "true"),
                         "--data.batch_size=2", "--data.eval_batch_size=2", "--trainer.limit_train_batches=1",
                         "--trainer.max_epochs=1", "--trainer.precision=32-true"},
                        runs));
    ASSERT_EQ(child.wait(), 0) << child.err();
    EXPECT_THAT(child.err(), HasSubstr("val_acc"));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(images), fs::directory_iterator()), 10);
  Process child(words("fit", "resnet50_images"));
  EXPECT_EQ(child.wait(), 1);
  EXPECT_THAT(child.err(), HasSubstr("data.folder must name the training images"));
}

TEST_F(Recipes, MissingDataIsOneLineThatSaysWhereToPutIt) {
  Process child(words("fit", "vit_cifar10", kSmallVit), {"HOME=" + folder_.string(), "LEVIN_DATA"});
  EXPECT_EQ(child.wait(), 1);
  const auto last = child.err().substr(child.err().rfind("error:"));
  EXPECT_EQ(std::count(last.begin(), last.end(), '\n'), 1) << last;
  EXPECT_THAT(last, HasSubstr("cifar10"));
}

TEST_F(Recipes, FineTuningIsComparedWithScratch) {
  const auto few = joined(kSmallVit, {"--data.train_size=32", "--data.val_size=16", "--data.repeats=2"});
  Process child(words("fit", "finetune_fashion_mnist", few));
  ASSERT_EQ(child.wait(), 0) << child.err();
  EXPECT_THAT(child.out(),
              AllOf(HasSubstr("Learning classes 0 2 4 6 8 first"), ContainsRegex("\nfrom scratch +6 +[0-9.]+ % "),
                    ContainsRegex("\nfine-tuned +6 +[0-9.]+ % "),
                    ContainsRegex("Fine-tuning (gains|loses) [0-9.]+ points in the same number of steps")));
  EXPECT_THAT(text_of(only("curves.svg")),
              AllOf(HasSubstr("<svg"), HasSubstr("from scratch"), HasSubstr("fine-tuned"), Not(HasSubstr("nan"))));
  EXPECT_THAT(text_of(only("curves.png")), ::testing::StartsWith("\x89PNG"));
  EXPECT_THAT(text_of(only("metrics.csv")), AllOf(HasSubstr("scratch_val_acc"), HasSubstr("finetuned_val_acc")));

  // From a checkpoint of before there is nothing to learn first.
  const auto checkpoint = only("pretrained.ckpt");
  Process from(
      words("fit", "finetune_fashion_mnist", joined(few, {"--model.checkpoint=" + checkpoint.string()}), "from"));
  ASSERT_EQ(from.wait(), 0) << from.err();
  EXPECT_THAT(from.out(),
              AllOf(HasSubstr("Beginning with " + checkpoint.string()), Not(HasSubstr("Learning classes")),
                    Not(HasSubstr("has learned from images of the same classes")), ContainsRegex("\nfine-tuned +6 ")));
  // The models are those of another recipe.
  Process test(words("test", "vit_fashion_mnist", joined(kSmallVit, {"--ckpt_path=" + only("finetuned.ckpt").string()}),
                     "test"));
  ASSERT_EQ(test.wait(), 0) << test.err();
  EXPECT_THAT(test.out(), HasSubstr("test_acc"));
}

TEST_F(Recipes, ACheckpointThatHasSeenTheClassesIsSaidToHave) {
  Process before(words("fit", "vit_fashion_mnist", kSmallVit));
  ASSERT_EQ(before.wait(), 0) << before.err();
  Process child(words("fit", "finetune_fashion_mnist",
                      joined(kSmallVit, {"--data.train_size=32", "--data.val_size=16", "--data.repeats=2",
                                         "--model.checkpoint=" + (folder_ / "runs").string()}),
                      "study"));
  ASSERT_EQ(child.wait(), 0) << child.err();
  EXPECT_THAT(child.out(), HasSubstr("has learned from images of the same classes"));
}

TEST_F(Recipes, WeightsOfAFileAreComparedWithScratch) {
  const auto file = folder_ / "weights.pth";
  models::save_weights(*models::resnet18(), file);  // of a thousand classes: the head stays the model's own
  const auto named = joined(kDrawn, {"--model.name=resnet18", "--model.image_size=32", "--trainer.precision=32-true",
                                     "--trainer.max_epochs=1"});
  Process child(words("fit", "finetune_cifar10", joined(named, {"--model.weights=" + file.string()})));
  ASSERT_EQ(child.wait(), 0) << child.err();
  EXPECT_THAT(child.out(), AllOf(ContainsRegex("\nfine-tuned +3 +[0-9.]+ % "), HasSubstr("weights.pth")));
  only("curves.svg");

  for (const auto& [more, line] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "[levin fit] model.weights must name the weights to fine-tune from"},
           {{"--model.weights=" + file.string(), "--model.name=resnet34"}, "missing"}}) {
    Process wrong(words("fit", "finetune_cifar10", joined(named, more), "wrong"));
    EXPECT_EQ(wrong.wait(), 1);
    EXPECT_THAT(wrong.err(), HasSubstr(line));
    EXPECT_THAT(wrong.out(), Not(HasSubstr("From scratch")));
  }
}

TEST_F(Recipes, PredictShowsWhatItDoesNotSave) {
  const auto predict = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{program_, "predict", "boring", "--trainer.accelerator=cpu",
                                 "--trainer.default_root_dir=" + (folder_ / "predicted").string()};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  };
  const auto shown = predict({});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("Predictions (not saved: --output FILE.safetensors saves them)\n"),
                               ContainsRegex("  prediction  Float \\[256, 2\\]  -?[0-9.]+, -?[0-9.]+, ")));
  const auto saved = predict({"--output", (folder_ / "out.safetensors").string()});
  EXPECT_EQ(saved.status, 0) << saved.err;
  EXPECT_THAT(saved.out, AllOf(HasSubstr("Predictions: "), Not(HasSubstr("not saved"))));
  const auto written = predict({"--trainer.callbacks+=SafetensorsPredictionWriter",
                                "--trainer.callbacks.output_dir=" + (folder_ / "written").string()});
  EXPECT_EQ(written.status, 0) << written.err;
  EXPECT_THAT(written.out, Not(HasSubstr("not saved")));
}

TEST_F(Recipes, StudiesAreTrainedOnly) {
  for (const std::string command : {"validate", "test", "predict"}) {
    Process child(words(command, "finetune_fashion_mnist", kSmallVit));
    EXPECT_EQ(child.wait(), 1);
    EXPECT_THAT(child.err(), HasSubstr("[levin " + command + "] a study is for `levin fit` alone"));
  }
  Process resumed(words("fit", "finetune_fashion_mnist", joined(kSmallVit, {"--ckpt_path=last"})));
  EXPECT_EQ(resumed.wait(), 1);
  EXPECT_THAT(resumed.err(), HasSubstr("ckpt_path \"last\" is for one"));
}

TEST_F(Recipes, WrongDataOptionsAreOneLine) {
  for (const auto& [flag, line] : std::vector<std::pair<std::string, std::string>>{
           {"--data.classes=3,11", "[recipe] data.classes: there is no label 11, they are 0 to 9"},
           {"--data.train_size=10000000", "[recipe] data.train_size 10000000 is more than the "},
           {"--data.repeats=0", "[recipe] data.repeats must be at least 1, got 0"},
           {"--data.val_size=10000000", "[recipe] data.val_size 10000000 must leave some of the "}}) {
    Process child(words("fit", "vit_fashion_mnist", joined(kSmallVit, {flag})));
    EXPECT_EQ(child.wait(), 1) << flag;
    EXPECT_THAT(child.err(), HasSubstr("error: " + line));
  }
}

}  // namespace
}  // namespace levin::testing
