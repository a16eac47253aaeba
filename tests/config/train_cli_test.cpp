// The command line of the trainer, as a user meets it: processes of `levin` and of a program of one's own.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/config/yaml.h"
#include "levin/core/files.h"
#include "levin/io/weights/safetensors.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string own_program() {
  return test_program("own_program");
}

std::string without_comments(const std::string& yaml) {
  std::istringstream in(yaml);
  std::string out;
  for (std::string line; std::getline(in, line);)
    if (!line.starts_with('#')) out += line.substr(0, line.find("  #")) + "\n";
  return out;
}

class TrainCli : public FolderTest {
 protected:
  void SetUp() override {
    if (!fs::exists(levin_program())) GTEST_SKIP() << "the program `levin` is not built here";
  }

  /// Words for a short quiet run whose files lie in `runs` below the test's folder.
  std::vector<std::string> boring(const std::string& command, std::vector<std::string> more = {},
                                  const std::string& runs = "runs") const {
    std::vector<std::string> words{levin_program(),
                                   command,
                                   "boring",
                                   "--trainer.accelerator",
                                   "cpu",
                                   "--trainer.default_root_dir",
                                   (folder_ / runs).string(),
                                   "--data.batch_size=8",
                                   "--data.samples=64",
                                   "--trainer.enable_progress_bar",
                                   "false",
                                   "--trainer.log_every_n_steps",
                                   "1",
                                   "--trainer.enable_model_summary=false"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<fs::path> find(const std::string& name, const std::string& runs = "runs") const {
    std::vector<fs::path> found;
    if (!fs::exists(folder_ / runs)) return found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / runs))
      if (entry.path().filename() == name) found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
  }
};

TEST_F(TrainCli, TheConfigBesideTheLogsGivesTheSameRunAgain) {
  Process first(
      boring("fit", {"--trainer.max_epochs", "2", "--seed", "7", "--optimizer", "Adam", "--optimizer.lr", "0.05",
                     "--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.monitor", "val_loss"}));
  ASSERT_EQ(first.wait(), 0) << first.err();
  const auto configs = find("config.yaml");
  ASSERT_EQ(configs.size(), 1u);
  EXPECT_TRUE(fs::exists(configs[0].parent_path() / "metrics.csv"));
  const auto text = read_file(configs[0]);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("\nrecipe: boring"), HasSubstr("\nseed: 7  "), HasSubstr("\n  class: Adam  # [--optimizer]"),
            HasSubstr("\n  batch_size: 8  # batch size per rank [--data.batch_size]\n"),
            HasSubstr("\nlr_scheduler:  #"), HasSubstr("  step_size: 1  "),
            HasSubstr("\n    - class: EarlyStopping  # [--trainer.callbacks]\n      monitor: val_loss  ")));

  Process again({levin_program(), "fit", "--config", configs[0].string(), "--trainer.default_root_dir",
                 (folder_ / "again").string()});
  ASSERT_EQ(again.wait(), 0) << again.err();
  const auto second = find("config.yaml", "again");
  ASSERT_EQ(second.size(), 1u);
  auto expected = without_comments(text);
  const auto runs = (folder_ / "runs").string();
  expected.replace(expected.find(runs), runs.size(), (folder_ / "again").string());
  EXPECT_EQ(without_comments(read_file(second[0])), expected);
  EXPECT_EQ(read_file(second[0].parent_path() / "metrics.csv"), read_file(configs[0].parent_path() / "metrics.csv"));
}

TEST_F(TrainCli, PrintConfigGivesItselfBack) {
  Process first({levin_program(), "fit", "vit_fashion_mnist", "--model.num_layers", "2", "--print-config"},
                {"LEVIN_TRAINER_MAX_EPOCHS=9", "LEVIN_TRAINER_PRECISION=bf16-mixed"});
  ASSERT_EQ(first.wait(), 0) << first.err();
  EXPECT_THAT(first.out(), AllOf(HasSubstr("max_epochs: 9"), HasSubstr("[LEVIN_TRAINER_MAX_EPOCHS]"),
                                 HasSubstr("num_layers: 2"), HasSubstr("[recipe vit_fashion_mnist:5]")));
  const auto path = folder_ / "run.yaml";
  write_file(path, first.out());
  Process second({levin_program(), "fit", "--config=" + path.string(), "--print_config"});
  ASSERT_EQ(second.wait(), 0) << second.err();
  EXPECT_EQ(without_comments(second.out()), without_comments(first.out()));
  Process flag({levin_program(), "fit", "--config", path.string(), "--print-config", "--trainer.max-epochs=3"},
               {"LEVIN_TRAINER_MAX_EPOCHS=9"});
  ASSERT_EQ(flag.wait(), 0) << flag.err();
  EXPECT_THAT(flag.out(), HasSubstr("max_epochs: 3"));
  // The file of one command is good for the others.
  Process test({levin_program(), "test", "--config", path.string(), "--print-config"});
  EXPECT_EQ(test.wait(), 0) << test.err();
}

TEST_F(TrainCli, TheProfilerAndItsOptions) {
  Process child(
      boring("fit", {"--trainer.max_epochs", "1", "--trainer.profiler", "pytorch", "--trainer.profiler.schedule.wait",
                     "0", "--trainer.profiler.schedule.active=2", "--trainer.profiler.record_shapes", "true",
                     "--trainer.profiler.filename", "run", "--trainer.profiler.gzip=false"}));
  ASSERT_EQ(child.wait(), 0) << child.err();
  const auto configs = find("config.yaml");
  ASSERT_EQ(configs.size(), 1u);
  EXPECT_THAT(read_file(configs[0]), HasSubstr("class: pytorch  # [--trainer.profiler]"));
  std::string trace, table;
  for (const auto& entry : fs::directory_iterator(configs[0].parent_path())) {
    const auto name = entry.path().filename().string();
    if (name.ends_with(".pt.trace.json")) trace = read_file(entry.path());
    if (name == "fit-run-0.txt") table = read_file(entry.path());
  }
  EXPECT_THAT(trace, AllOf(HasSubstr("ProfilerStep#1"), HasSubstr("ProfilerStep#2"), HasSubstr("Input Dims")));
  EXPECT_THAT(table, HasSubstr("Self CPU time total"));
}

TEST_F(TrainCli, MistakesAreOneLineBeforeAnythingStarts) {
  const auto yaml = folder_ / "run.yaml";
  write_file(yaml, "recipe: boring\ntrainer:\n  max_epoch: 3\n");
  const auto run = levin_program();
  for (const auto& [words, line] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{run, "fit", "borring"}, "error: [levin fit] recipe \"borring\" is not known; did you mean \"boring\"?"},
           {boring("fit", {"--trainer.max_epoch", "3"}),
            "error: [levin fit boring] flag \"--trainer.max_epoch\" is not known; did you mean "
            "\"--trainer.max_epochs\"?"},
           {boring("fit", {"--optimizer.lr", "-1"}), "error: [levin fit boring] --optimizer.lr: SGD: lr=-1 must be"},
           {boring("fit", {"--trainer.callbacks", "Nothing"}), "--trainer.callbacks \"Nothing\" is not known"},
           {boring("fit", {"--trainer.profiler", "simpel"}), "did you mean \"simple\"?"},
           {boring("fit", {"--trainer.profiler", "pytorch", "--trainer.profiler.schedule.active", "0"}),
            "--trainer.profiler.schedule.active: "},
           {{run, "fit", "--config", yaml.string()},
            yaml.string() + ":3: key of \"trainer\" \"max_epoch\" is not known; did you mean \"max_epochs\"?"},
           {boring("validate", {"more"}), "\"more\" is not expected here"}}) {
    Process child(words);
    EXPECT_EQ(child.wait(), 1) << line;
    EXPECT_THAT(child.err(), AllOf(::testing::StartsWith("error: ["), HasSubstr(line)));
    EXPECT_EQ(std::count(child.err().begin(), child.err().end(), '\n'), 1) << child.err();
  }
  Process variable(boring("fit"), {"LEVIN_TRAINER_MAX_EPOCH=3"});
  EXPECT_EQ(variable.wait(), 1);
  EXPECT_THAT(variable.err(), HasSubstr("did you mean \"LEVIN_TRAINER_MAX_EPOCHS\"?"));
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

TEST_F(TrainCli, ResumesFromTheLastCheckpointAndUsesIt) {
  Process first(boring("fit", {"--trainer.max_epochs", "1"}));
  ASSERT_EQ(first.wait(), 0) << first.err();
  ASSERT_EQ(find("metrics.csv").size(), 1u);
  const auto before = read_file(find("metrics.csv")[0]);
  Process more(boring("fit", {"--trainer.max_epochs", "2", "--ckpt_path", "last"}));
  ASSERT_EQ(more.wait(), 0) << more.err();
  EXPECT_THAT(more.err(), HasSubstr("resumes from"));
  // The second run continues in the version folder of the first, where its log ended: 8 batches an epoch.
  const auto rows = find("metrics.csv");
  ASSERT_EQ(rows.size(), 1u);
  const auto after = read_file(rows[0]);
  EXPECT_THAT(after, ::testing::StartsWith(before));
  EXPECT_EQ(std::count(before.begin(), before.end(), '\n'), 1 + 8 + 1);
  EXPECT_EQ(std::count(after.begin(), after.end(), '\n'), 1 + 2 * (8 + 1));

  Process test(boring("test", {"--ckpt_path", "last"}));
  ASSERT_EQ(test.wait(), 0) << test.err();
  EXPECT_THAT(test.out(), HasSubstr("test_loss"));
  const auto output = folder_ / "out" / "predictions.safetensors";
  Process predict(boring("predict", {"--ckpt_path", "last", "--output", output.string()}));
  ASSERT_EQ(predict.wait(), 0) << predict.err();
  const SafetensorsFile file(output);
  EXPECT_EQ(file.read("prediction").sizes(), (std::vector<int64_t>{64, 2}));
}

TEST_F(TrainCli, TwoRanks) {
  Process child(boring("fit", {"--trainer.devices", "2"}));
  ASSERT_EQ(child.wait(), 0) << child.err();
  ASSERT_EQ(find("config.yaml").size(), 1u);
  EXPECT_THAT(read_file(find("config.yaml")[0]), HasSubstr("  devices: 2  # "));
}

TEST_F(TrainCli, HelpIsGroupedAndFitsEightyColumns) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"recipes"},
                                                {"fit", "--help"},
                                                {"fit", "boring", "--help"},
                                                {"predict", "vit_fashion_mnist", "-h"},
                                                {"fit", "boring", "--help", "trainer"},
                                                {"fit", "boring", "--help", "OneCycleLR"},
                                                {"--help"},
                                                {"run", "--help"},
                                                {"pack", "--help"},
                                                {"data", "bench", "--help"},
                                                {"memory", "--help"},
                                                {"new", "--help"},
                                                {"inspect", "-h"},
                                                {"convert", "--help"},
                                                {"completion", "--help"}}) {
    auto command = words;
    command.insert(command.begin(), levin_program());
    Process child(command);
    ASSERT_EQ(child.wait(), 0) << child.err();
    std::istringstream in(child.out());
    for (std::string line; std::getline(in, line);) EXPECT_LE(line.size(), 80u) << line;
    if (words.size() == 3 && words[1] == "boring") {
      const auto& text = child.out();
      const auto model = text.find("\nModel:\n"), data = text.find("\nData:\n"), trainer = text.find("\nTrainer:\n");
      EXPECT_LT(model, data);
      EXPECT_LT(data, text.find("\nOptimizer:\n"));
      EXPECT_LT(text.find("\nOptimizer:\n"), trainer);
      EXPECT_LT(trainer, text.size());
      EXPECT_THAT(text,
                  AllOf(HasSubstr("--data.batch_size N"), HasSubstr("[0.1]"), HasSubstr("--optimizer.momentum X")));
    }
  }
}

TEST_F(TrainCli, ShellsComplete) {
  const auto completed = [&](const std::string& words, int at, const std::string& program = levin_program()) {
    const auto name = fs::path(program).filename().string();
    Process child({"/bin/bash", "-c",
                   fmt::format("source <({} completion bash); COMP_WORDS=({} {}); COMP_CWORD={}; _{}_complete; "
                               "echo \"${{COMPREPLY[*]}}\"",
                               program, name, words, at, name)});
    EXPECT_EQ(child.wait(), 0) << child.err();
    EXPECT_EQ(child.err(), "");
    return " " + child.out().substr(0, child.out().size() - 1) + " ";
  };
  EXPECT_EQ(completed("f", 1), " fit ");
  EXPECT_EQ(completed("fit v", 2), " vit_fashion_mnist vit_cifar10 ");
  EXPECT_EQ(completed("fit boring --trainer.max_e", 3), " --trainer.max_epochs ");
  EXPECT_EQ(completed("fit boring --trainer.accelerator c", 4), " cpu cuda ");
  EXPECT_EQ(completed("fit boring --trainer.accelerator = c", 5), " cpu cuda ");
  EXPECT_EQ(completed("fit boring --optimizer Ad", 4), " AdamW Adam AdamW8bit Adam8bit Adagrad Adafactor ");
  EXPECT_EQ(completed("fit boring --optimizer SGD --optimizer.n", 5), " --optimizer.nesterov ");
  EXPECT_EQ(completed("fit boring --optimizer Lion --optimizer.n", 5), "  ");
  EXPECT_THAT(completed("fit boring --model.", 3),
              AllOf(HasSubstr(" --model.in_features "), Not(HasSubstr("num_heads"))));
  EXPECT_THAT(completed("fit vit_fashion_mnist --model.", 3), HasSubstr(" --model.num_heads "));
  EXPECT_EQ(completed("completion z", 2), " zsh ");
  EXPECT_EQ(completed("data b", 2), " bench ");
  EXPECT_EQ(completed("memory --opt", 2), " --optimizer ");
  EXPECT_EQ(completed("memory --model vit_b", 3), " vit_b_16 vit_b_32 ");
  EXPECT_EQ(completed("convert a b --dtype bf", 5), " bfloat16 ");
  EXPECT_EQ(completed("convert a b --dtype f", 5), " float32 float16 ");
  EXPECT_EQ(completed("convert a b --ov", 4), " --overwrite ");
  EXPECT_EQ(completed("run --rdzv-backend c", 3), " c10d ");
  EXPECT_EQ(completed("fit --model.", 2, own_program()), " --model.inputs --model.lr ");
}

TEST_F(TrainCli, AProgramOfOnesOwnHasAllOfIt) {
  const auto own = own_program();
  const std::vector<std::string> quiet{"--trainer.logger",
                                       "false",
                                       "--trainer.enable_checkpointing",
                                       "false",
                                       "--trainer.enable_progress_bar=false",
                                       "--trainer.enable_model_summary=false"};
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {own, "fit"});
    words.insert(words.end(), quiet.begin(), quiet.end());
    return words;
  };
  Process plain(run({}));
  EXPECT_EQ(plain.wait(), 0) << plain.err();
  EXPECT_THAT(plain.out(), HasSubstr("optimizer SGD lr 0.1 epochs 2"));
  Process option(run({"--model.lr", "0.25", "--trainer.max_epochs", "1"}));
  EXPECT_EQ(option.wait(), 0) << option.err();
  EXPECT_THAT(option.out(), HasSubstr("optimizer SGD lr 0.25 epochs 1"));
  Process chosen(run({"--optimizer", "Adam", "--optimizer.lr", "0.5"}));
  EXPECT_EQ(chosen.wait(), 0) << chosen.err();
  EXPECT_THAT(chosen.out(), HasSubstr("optimizer Adam lr 0.5"));
  Process wrong({own, "fit", "--model.inptus", "3"});
  EXPECT_EQ(wrong.wait(), 1);
  EXPECT_THAT(wrong.err(),
              HasSubstr("[own_program fit] flag \"--model.inptus\" is not known; did you mean \"--model.inputs\"?"));
  Process command({own, "fitt"});
  EXPECT_EQ(command.wait(), 1);
  EXPECT_THAT(command.err(), HasSubstr("did you mean \"fit\"?"));
  Process help({own, "fit", "--help"});
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.out(),
              AllOf(HasSubstr("--model.inputs N"), HasSubstr("max_epochs N"), Not(HasSubstr("recipe NAME"))));
}

}  // namespace
}  // namespace levin::testing
