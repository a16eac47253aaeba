// levin inspect and levin convert.
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/core/files.h"
#include "levin/io/weights/safetensors.h"
#include "levin/optim/adam.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/ranks.h"

namespace levin::testing::weights_cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Answer {
  int status;
  std::string out, err;
};

Answer run_levin(const std::vector<std::string>& words) {
  std::vector<std::string> command{levin_program()};
  command.insert(command.end(), words.begin(), words.end());
  Process child(command);
  const int status = child.wait();
  return {status, child.out(), child.err()};
}

const fs::path kIo = fs::path(source_dir()) / "tests/io/fixtures/weights";
const fs::path kModels = fs::path(source_dir()) / "tests/models/fixtures/naming";

class WeightsCli : public testing::FolderTest {
 protected:
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
};

TEST_F(WeightsCli, InspectShowsATable) {
  const auto shown = run_levin({"inspect", (kIo / "lightning.ckpt").string()});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("net.weight"), HasSubstr("float32"), HasSubstr("[3, 2]"), HasSubstr("24 B"),
                               HasSubstr("2 tensors with 9 elements in 36 B, 1 file of torch"),
                               HasSubstr("root: state_dict"), HasSubstr("epoch: 3")));
  const auto all =
      run_levin({"inspect", (kIo / "lightning.ckpt").string(), "--root", "", "--filter", "opt*", "--stats"});
  EXPECT_THAT(all.out,
              AllOf(HasSubstr("optimizer_states.0.state.0.exp_avg"), HasSubstr("mean"), Not(HasSubstr("net."))));
  const auto vit = run_levin({"inspect", (kModels / "vit_timm.safetensors").string(), "--sort", "name"});
  EXPECT_THAT(vit.out, HasSubstr("naming: vit of timm"));
}

TEST_F(WeightsCli, InspectGivesJson) {
  const auto shown = run_levin({"inspect", (kIo / "linear.pth").string(), "--json", "--stats", "--sort=size"});
  ASSERT_EQ(shown.status, 0) << shown.err;
  const auto json = nlohmann::json::parse(shown.out);
  EXPECT_EQ(json["format"], "torch");
  EXPECT_EQ(json["tensors"][0]["name"], "weight");
  EXPECT_EQ(json["tensors"][0]["shape"], (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(json["tensors"][0]["stats"]["mean"], 2.5);
  EXPECT_EQ(json["tensors"][0]["stats"]["max"], 5.0);
  EXPECT_EQ(json["tensors"][0]["stats"]["nan"], 0);
}

TEST_F(WeightsCli, FilesOfLibTorch) {
  torch::manual_seed(1);
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::ReLU());
  };
  auto net = make(), again = make();
  torch::save(net, at("net.pt"));
  const auto shown = run_levin({"inspect", at("net.pt")});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("0.weight"), HasSubstr("1.num_batches_tracked"), HasSubstr("1 file of libtorch")));
  EXPECT_THAT(
      run_levin({"inspect", (kIo / "traced.pt").string()}).out,
      AllOf(HasSubstr("conv.weight"), HasSubstr("TorchScript: a program: its tensors are read, its code is neither")));
  const auto there = run_levin({"convert", at("net.pt"), at("net.safetensors")});
  EXPECT_EQ(there.status, 0) << there.err;
  const auto back =
      run_levin({"convert", at("net.safetensors"), at("back.pt"), "--to", "libtorch", "--like", at("net.pt")});
  EXPECT_EQ(back.status, 0) << back.err;
  torch::load(again, at("back.pt"));
  for (const auto& item : net->named_parameters())
    EXPECT_TRUE(item.value().equal(*again->named_parameters().find(item.key())));
  for (const auto& item : net->named_buffers())
    EXPECT_TRUE(item.value().equal(*again->named_buffers().find(item.key())));
  EXPECT_EQ(run_levin({"convert", at("net.pt"), at("same.pt"), "--to", "libtorch"}).status, 0);
  torch::load(again, at("same.pt"));
  EXPECT_THAT(run_levin({"convert", at("net.pt"), at("x.pth"), "--like", at("net.pt")}).err,
              HasSubstr("--like goes with --to libtorch"));
  EXPECT_THAT(run_levin({"convert", at("net.pt"), at("parts"), "--to", "libtorch", "--shard-bytes", "1MB"}).err,
              HasSubstr("--to libtorch writes one file"));
}

/// A net and its optimizer as three ranks of a strategy save them: rows of two, two and one.
class ShardedCli : public WeightsCli {
 protected:
  void SetUp() override {
    WeightsCli::SetUp();
    run_ranks(3, [&](Collective& group) { save(&group); });
    save(nullptr);
  }
  void save(Collective* group) {
    auto net = std::make_shared<torch::nn::Module>();
    const int64_t start = group ? 2 * group->rank() : 0;
    const int64_t rows = !group ? 5 : group->rank() == 2 ? 1 : 2;
    const auto whole = torch::arange(15.0).reshape({5, 3});
    const auto weight = net->register_parameter("weight", whole.narrow(0, start, rows).clone());
    net->register_buffer("count", torch::full({}, 7, at::kLong));
    Optimizer opt = optim::AdamW({weight}, {.lr = 0.5});
    weight.mutable_grad() = torch::ones_like(weight);
    opt.step();
    int64_t epoch = 3;
    const State state{{"model", net}, {"optimizer", opt}, {"epoch", epoch}};
    if (!group) return save_checkpoint(at("one"), state, {.world_size = 3});
    TensorShards shards(*group);
    shards.add(weight, {.sizes = {5, 3}, .start = start});
    shards.add_optimizer(opt);
    save_checkpoint(at("parts"), state, {.world_size = 3, .shards = &shards});
  }
  void refused(const std::vector<std::string>& words, const std::string& why) {
    const auto answer = run_levin(words);
    EXPECT_EQ(answer.status, 1);
    EXPECT_THAT(answer.err, HasSubstr(why));
    EXPECT_EQ(answer.out, "");
    EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1) << answer.err;
  }
};

TEST_F(ShardedCli, ConvertsForTorchLoad) {
  EXPECT_EQ(run_levin({"convert", at("parts"), at("net.pt"), "--to", "libtorch"}).status, 0);
  const auto converted = run_levin({"convert", at("parts"), at("adam.pt"), "--to", "libtorch", "--root", "optimizer"});
  EXPECT_EQ(converted.status, 0) << converted.err;
  auto net = std::make_shared<torch::nn::Module>();
  const auto weight = net->register_parameter("weight", torch::zeros({5, 3}));
  net->register_buffer("count", torch::zeros({}, at::kLong));
  torch::optim::AdamW adam({weight}, torch::optim::AdamWOptions(0.1));
  torch::load(net, at("net.pt"));
  torch::load(adam, at("adam.pt"));
  EXPECT_EQ(static_cast<torch::optim::AdamWOptions&>(adam.param_groups()[0].options()).lr(), 0.5);
  const auto& state = static_cast<torch::optim::AdamWParamState&>(*adam.state().at(weight.unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 1);
  EXPECT_TRUE(state.exp_avg().allclose(torch::full({5, 3}, 0.1)));
  refused({"convert", at("parts"), at("x.pt"), "--to", "libtorch", "--root", "optimizer", "--dtype", "float16"},
          "the state of an optimizer is converted as it is; leave --dtype out");
}

TEST_F(ShardedCli, InspectShowsFullShapesAndTheRanksThatHoldThem) {
  const auto shown = run_levin({"inspect", at("parts"), "--verify"});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(
      shown.out,
      AllOf(ContainsRegex("model.weight +float32 +\\[5, 3\\] +60 B +model.rank-\\{0-2\\}"),
            ContainsRegex("model.count +int64 +\\[\\] +8 B +model.whole"),
            ContainsRegex("optimizer.state.0.exp_avg +float32 +\\[5, 3\\] +60 B +optimizer.rank-\\{0-2\\}"),
            ContainsRegex("optimizer.rank-2.safetensors +[0-9]+ B +2\n"),
            HasSubstr("5 tensors with 47 elements in 192 B, 9 files of a sharded checkpoint\nsaved by 3 ranks at 20"),
            HasSubstr("optimizer: 3 tensors with 31 elements in 124 B: step, exp_avg, exp_avg_sq of 1 parameter"),
            HasSubstr("\nepoch: 3\n"), HasSubstr("all checksums are right")));
  const auto json = nlohmann::json::parse(run_levin({"inspect", at("parts"), "--json", "--root", "model"}).out);
  EXPECT_EQ(json["sharded"], true);
  EXPECT_EQ(json["tensors"][0]["name"], "weight");
  EXPECT_EQ(json["tensors"][0]["shape"], (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(json["tensors"][0]["parts"][2]["file"], "model.rank-2.safetensors");
  EXPECT_EQ(json["tensors"][0]["parts"][2]["start"], (std::vector<int64_t>{4, 0}));
  EXPECT_EQ(nlohmann::json::parse(run_levin({"inspect", at("one"), "--json"}).out)["state"]["epoch"], 3);
}

TEST_F(ShardedCli, DamageIsToldInALineThatNamesTheFile) {
  const auto part = at("parts/model.rank-1.safetensors");
  const auto good = read_file(part);
  auto bad = good;
  bad.back() ^= 1;
  write_file(part, bad);
  refused({"inspect", at("parts"), "--verify"}, "tensor \"model.weight\" in \"model.rank-1.safetensors\" has checksum");
  refused({"convert", at("parts"), at("x"), "--to", "checkpoint"}, "\"model.rank-1.safetensors\" has checksum");
  write_file(part, good.substr(0, good.size() - 1));
  refused({"inspect", at("parts")}, "damaged: \"model.rank-1.safetensors\" has");
  fs::remove(part);
  refused({"inspect", at("parts")}, "incomplete: cannot read \"model.rank-1.safetensors\"");
  fs::remove(at("parts/manifest.json"));
  refused({"inspect", at("parts")}, "incomplete: it has no manifest.json");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2) << "nothing is left behind";
}

TEST_F(ShardedCli, ConvertConsolidatesWhatRanksWroteInShards) {
  auto answer = run_levin({"convert", at("parts"), at("w.safetensors")});
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_EQ(read_file(at("w.safetensors")), read_file(at("one/model.safetensors")));
  answer = run_levin({"convert", at("parts"), at("whole"), "--to", "checkpoint"});
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("whole: 5 tensors, 192 B, a checkpoint with model, optimizer, epoch\n"));
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"})
    EXPECT_EQ(read_file(folder_ / "whole" / name), read_file(folder_ / "one" / name)) << name;
  answer = run_levin({"convert", at("parts"), at("all.safetensors"), "--root", "", "--dtype", "bfloat16"});
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_EQ(SafetensorsFile(at("all.safetensors")).at("optimizer.state.0.exp_avg").dtype, "BF16");
  refused({"convert", at("parts"), at("whole"), "--to", "checkpoint"}, "is there already; --overwrite replaces it");
  refused({"convert", at("parts"), at("w"), "--to", "checkpoint", "--dtype", "float16"}, "leave --dtype out");
  refused({"convert", at("parts"), at("x.safetensors"), "--root", "modle"}, "did you mean \"model\"?");
  // Nothing else is left beside them.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 5);
}

TEST_F(WeightsCli, ConvertMovesBetweenFormatsAndNames) {
  auto done =
      run_levin({"convert", (kModels / "vit_timm.safetensors").string(), at("hf.pth"), "--naming", "huggingface"});
  ASSERT_EQ(done.status, 0) << done.err;
  done =
      run_levin({"convert", at("hf.pth"), at("back.safetensors"), "--naming", "timm", "--from-naming", "huggingface"});
  ASSERT_EQ(done.status, 0) << done.err;
  const auto json = [&](const std::string& path) {
    return nlohmann::json::parse(run_levin({"inspect", path, "--json", "--stats", "--sort", "name"}).out)["tensors"];
  };
  EXPECT_EQ(json(at("back.safetensors")), json((kModels / "vit_timm.safetensors").string()));

  done = run_levin({"convert", (kModels / "vit_lightning.ckpt").string(), at("shards"), "--shard-bytes", "2kB",
                    "--dtype", "bfloat16", "--strip-prefix", "net.", "--add-prefix", "vit.", "--select",
                    "net.encoder.*", "--select", "!*bias"});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_TRUE(fs::exists(folder_ / "shards/model.safetensors.index.json"));
  const auto shards = json(at("shards"));
  for (const auto& tensor : shards) {
    EXPECT_TRUE(tensor["name"].get<std::string>().starts_with("vit.encoder."));
    EXPECT_EQ(tensor["dtype"], "bfloat16");
  }
}

TEST_F(WeightsCli, ConvertTurnsTheMatricesOfDecoders) {
  const auto json = [&](const std::string& path) {
    return nlohmann::json::parse(run_levin({"inspect", path, "--json", "--stats", "--sort", "name"}).out)["tensors"];
  };
  for (const std::string name : {"gpt2", "llama"}) {
    const auto source = (kModels.parent_path() / "gpt" / (name + ".safetensors")).string();
    auto done = run_levin({"convert", source, at(name + "_levin.safetensors"), "--naming", "levin"});
    ASSERT_EQ(done.status, 0) << done.err;
    EXPECT_EQ(json(at(name + "_levin.safetensors"))[0]["name"],
              "blocks.0.attention." + std::string(name == "gpt2" ? "out.bias" : "out.weight"));
    done =
        run_levin({"convert", at(name + "_levin.safetensors"), at(name + ".safetensors"), "--naming", "huggingface"});
    ASSERT_EQ(done.status, 0) << done.err;
    EXPECT_EQ(json(at(name + ".safetensors")), json(source));
  }
}

TEST_F(WeightsCli, ConvertRefusesInOneLineAndLeavesNothingBehind) {
  const auto source = (kIo / "linear.pth").string();
  const auto refused = [&](std::vector<std::string> words, const std::string& why) {
    words.insert(words.begin(), "convert");
    const auto answer = run_levin(words);
    EXPECT_EQ(answer.status, 1);
    EXPECT_THAT(answer.err, HasSubstr(why));
    EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1) << answer.err;
  };
  refused({source}, "DST is missing (levin convert SRC DST [FLAGS])");
  refused({source, at("x.safetensors"), "--dtpye", "float16"}, "did you mean \"--dtype\"?");
  refused({source, at("x.safetensors"), "--dtype", "float61"}, "did you mean \"float16\"?");
  refused({source, at("x.safetensors"), "--shard-bytes", "many"}, "is not a number of bytes");
  refused({source, at("x.safetensors"), "--naming", "timm"}, "not of a vit or resnet");
  refused({source, at("x.safetensors"), "--select", "nothing*"}, "none of them was selected");
  refused({source, at("x")}, "say --to safetensors or --to pth");
  refused({(kIo / "module.pt").string(), at("x.safetensors")}, "asks for torch.nn.modules.linear.Linear");
  EXPECT_TRUE(fs::is_empty(folder_)) << "nothing is left behind";
  ASSERT_EQ(run_levin({"convert", source, at("x.safetensors")}).status, 0);
  refused({source, at("x.safetensors")}, "is there already; --overwrite replaces it");
  EXPECT_EQ(run_levin({"convert", source, at("x.safetensors"), "--overwrite", "--dtype", "float16"}).status, 0);
  refused({source, at(""), "--shard-bytes", "1GB"}, "is there already");
}

}  // namespace
}  // namespace levin::testing::weights_cli
