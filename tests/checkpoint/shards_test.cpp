#include "levin/checkpoint/shards.h"

#include "levin/core/files.h"
#include "levin/io/weights/safetensors.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/ranks.h"
#include "sharded.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;
using testing::run_ranks;

class ShardsTest : public testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    whole_.train(3);
    save_checkpoint(folder_ / "whole", whole_.state(), {.world_size = 4});
    expected_ = whole_.state().state_dict();
  }

  /// Loads what is in `from` on that many ranks, compares every rank's rows, and saves it again to `to`.
  void pass(int world, const std::string& from, const std::string& to, ShardedModule::Rows rows = even_rows,
            bool full = false) {
    run_ranks(world, [&](Collective& group) {
      ShardedModule here(&group, rows);
      auto state = here.state();
      load_checkpoint(folder_ / from, state, {.shards = here.shards.get()});
      here.shards->refresh();
      EXPECT_EQ(difference(state.state_dict(), expected_, here.shards.get()), "");
      EXPECT_EQ(here.epoch, 3);
      if (!to.empty())
        save_checkpoint(folder_ / to, state, {.world_size = 4, .shards = here.shards.get(), .full = full});
    });
  }

  /// Loads into a module that is not sharded.
  void expect_whole(const std::string& from) {
    ShardedModule again(nullptr);
    auto state = again.state();
    const auto left = load_checkpoint(folder_ / from, state);
    EXPECT_TRUE(left.empty());
    EXPECT_EQ(difference(state.state_dict(), expected_), "") << from;
    EXPECT_EQ(again.epoch, 3);
    EXPECT_EQ(difference(load_checkpoint(folder_ / from), load_checkpoint(folder_ / "whole")), "") << from;
  }

  void expect_same_files(const std::string& from) {
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"})
      EXPECT_EQ(read_file(folder_ / from / name), read_file(folder_ / "whole" / name)) << from << " " << name;
    EXPECT_FALSE(checkpoint_info(folder_ / from).sharded);
    verify_checkpoint(folder_ / from);
  }

  std::vector<std::string> files(const std::string& name) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / name)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  ShardedModule whole_{nullptr};
  StateDict expected_;
};

TEST_F(ShardsTest, WhatFourRanksSaveAnyNumberLoads) {
  pass(4, "whole", "four");
  EXPECT_EQ(files("four"),
            (std::vector<std::string>{"manifest.json", "model.rank-0.safetensors", "model.rank-1.safetensors",
                                      "model.rank-2.safetensors", "model.rank-3.safetensors", "model.whole.safetensors",
                                      "optimizer.rank-0.safetensors", "optimizer.rank-1.safetensors",
                                      "optimizer.rank-2.safetensors", "optimizer.rank-3.safetensors",
                                      "optimizer.whole.safetensors", "state.json"}));
  verify_checkpoint(folder_ / "four");
  const auto info = checkpoint_info(folder_ / "four");
  EXPECT_TRUE(info.sharded);
  EXPECT_EQ(info.world_size, 4);
  EXPECT_EQ(info.keys, (std::vector<std::string>{"model", "optimizer", "epoch"}));
  expect_whole("four");
  pass(2, "four", "two", uneven_rows);
  expect_whole("two");
  pass(3, "two", "three", uneven_rows);
  expect_whole("three");
  pass(4, "three", "");
}

TEST_F(ShardsTest, AShardHasOnlyItsRows) {
  pass(4, "whole", "four");
  const SafetensorsFile second(folder_ / "four/model.rank-1.safetensors");
  EXPECT_EQ(second.at("weight").shape, (std::vector<int64_t>{3, 3}));
  EXPECT_TRUE(torch::equal(second.read("weight"), whole_.net->named_parameters()["weight"].narrow(0, 3, 3)));
  EXPECT_FALSE(second.find("tied"));
  EXPECT_FALSE(second.find("scalar"));
  EXPECT_FALSE(second.find("mean"));
  const SafetensorsFile last(folder_ / "four/model.rank-3.safetensors");
  EXPECT_EQ(last.at("weight").shape, (std::vector<int64_t>{1, 3}));
  EXPECT_FALSE(last.find("few"));
}

TEST_F(ShardsTest, ReplicasWriteNothing) {
  run_ranks(4, [&](Collective& group) {
    ShardedModule here(&group, even_rows, /*copies=*/2);
    auto state = here.state();
    load_checkpoint(folder_ / "whole", state, {.shards = here.shards.get()});
    save_checkpoint(folder_ / "hybrid", state, {.shards = here.shards.get()});
  });
  EXPECT_TRUE(fs::exists(folder_ / "hybrid/model.rank-1.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "hybrid/model.rank-2.safetensors"));
  expect_whole("hybrid");
}

TEST_F(ShardsTest, ConsolidatedIsWhatOneProcessWrites) {
  pass(3, "whole", "three", uneven_rows);
  consolidate_checkpoint(folder_ / "three", folder_ / "one");
  expect_same_files("one");
  expect_whole("one");
  EXPECT_EQ(checkpoint_info(folder_ / "one").saved_at, checkpoint_info(folder_ / "three").saved_at);
  EXPECT_EQ(checkpoint_info(folder_ / "one").world_size, 4);
  // Its own place will do, and so will a checkpoint that is whole already.
  consolidate_checkpoint(folder_ / "three", folder_ / "three");
  consolidate_checkpoint(folder_ / "three", folder_ / "three");
  expect_same_files("three");
  consolidate_checkpoint(folder_ / "three", folder_ / "weights", {.keys = {"model"}});
  EXPECT_EQ(files("weights"), (std::vector<std::string>{"manifest.json", "model.safetensors", "state.json"}));
  EXPECT_THAT(error_of([&] { consolidate_checkpoint(folder_ / "three", folder_ / "x", {.keys = {"modle"}}); }),
              HasSubstr("did you mean \"model\"?"));
}

TEST_F(ShardsTest, AFullSaveIsWhatOneProcessWrites) {
  pass(4, "whole", "full", even_rows, /*full=*/true);
  expect_same_files("full");
  pass(2, "full", "again", uneven_rows, /*full=*/true);
  expect_same_files("again");
}

TEST_F(ShardsTest, TheFullStateIsGatheredToRankZeroOrToAll) {
  run_ranks(3, [&](Collective& group) {
    ShardedModule here(&group, uneven_rows);
    auto state = here.state();
    load_checkpoint(folder_ / "whole", state, {.shards = here.shards.get()});
    auto model = full_state_dict(*here.net, *here.shards);
    auto optimizer = full_state_dict(here.opt.state_dict(), *here.shards);
    if (group.rank() == 0) {
      EXPECT_EQ(difference(model, expected_.at("model").to_dict()), "");
      EXPECT_EQ(difference(optimizer, expected_.at("optimizer").to_dict()), "");
      EXPECT_EQ(optimizer.at("param_groups").to_list().size(), 1U);
      EXPECT_TRUE(model.at("weight").to_tensor().is_same(model.at("tied").to_tensor()));
      // A copy: training that continues does not change it.
      here.net->named_buffers()["mean"].zero_();
      EXPECT_FALSE(model.at("mean").to_tensor().eq(0).any().item<bool>());
    } else {
      EXPECT_TRUE(model.empty());
      EXPECT_TRUE(optimizer.empty());
    }
    model = full_state_dict(*here.net, *here.shards, {.rank0_only = false});
    EXPECT_TRUE(
        testing::same_bytes(model.at("half").to_tensor(), expected_.at("model").to_dict().at("half").to_tensor()));
  });
}

TEST_F(ShardsTest, OtherDtypesAreConverted) {
  run_ranks(2, [&](Collective& group) {
    ShardedModule here(&group);
    here.net->to(at::kDouble);
    State state{{"model", here.net}};
    load_checkpoint(folder_ / "whole", state, {.leftover = false, .shards = here.shards.get()});
    const auto whole = expected_.at("model").to_dict().at("weight").to_tensor().to(at::kDouble);
    EXPECT_TRUE(torch::equal(here.net->named_parameters()["weight"], whole.narrow(0, group.rank() * 5, 5)));
  });
}

TEST_F(ShardsTest, AMismatchIsToldInFullShapesByAllRanks) {
  const auto results = run_ranks(2,
                                 [&](Collective& group) {
                                   ShardedModule here(&group);
                                   auto more = std::make_shared<torch::nn::Module>();
                                   const auto part = more->register_parameter("weight", torch::zeros({6, 3}));
                                   more->register_parameter("extra", torch::zeros({2}));
                                   here.shards->add(part, {.sizes = {12, 3}, .start = 6 * group.rank()});
                                   State state{{"model", more}};
                                   load_checkpoint(folder_ / "whole", state, {.shards = here.shards.get()});
                                 },
                                 {.errors_expected = true});
  for (const auto& line : testing::errors_of(results)) {
    EXPECT_THAT(line, HasSubstr("missing: model.extra; unexpected: model.tied, model.bias"));
    EXPECT_THAT(line, HasSubstr("wrong shape: model.weight ([10, 3] in the file, [12, 3] in the module)"));
    EXPECT_EQ(line, results[0].error);
  }
}

TEST_F(ShardsTest, WhatOneRankCannotLoadNoneLoads) {
  const auto results = run_ranks(3, [&](Collective& group) -> std::string {
    ShardedModule here(&group);
    if (group.rank() == 1) here.net->register_buffer("mine", torch::zeros({2}));
    State state{{"model", here.net}};
    const auto line = error_of([&] { load_checkpoint(folder_ / "whole", state, {.shards = here.shards.get()}); });
    EXPECT_TRUE(here.net->named_parameters()["bias"].eq(0).all().item<bool>());
    return line;
  });
  for (const auto& result : results) {
    EXPECT_THAT(result.text, HasSubstr("missing: model.mine"));
    EXPECT_THAT(result.text, HasSubstr("(rank 1)"));
  }
}

TEST_F(ShardsTest, RawWeightsLoadIntoShards) {
  pass(4, "whole", "four");
  run_ranks(2, [&](Collective& group) {
    for (const char* from : {"four", "whole", "whole/model.safetensors"}) {
      ShardedModule here(&group, uneven_rows);
      load_raw(folder_ / from, here.net, {.shards = here.shards.get()});
      EXPECT_EQ(difference(module_state_dict(*here.net), expected_.at("model").to_dict(), here.shards.get()), "")
          << from;
    }
    // A dict may hold wholes, or the parts themselves.
    ShardedModule here(&group, uneven_rows);
    load_module_state_dict(*here.net, expected_.at("model").to_dict(), {.shards = here.shards.get()});
    ShardedModule again(&group, uneven_rows);
    load_module_state_dict(*again.net, module_state_dict(*here.net), {.shards = again.shards.get()});
    EXPECT_EQ(difference(module_state_dict(*again.net), expected_.at("model").to_dict(), again.shards.get()), "");
  });
}

TEST_F(ShardsTest, ATreeIsReadForItsTargets) {
  pass(3, "whole", "three");
  run_ranks(2, [&](Collective& group) {
    ShardedModule here(&group, uneven_rows);
    ShardTargets targets(*here.shards);
    targets.add({"model"}, *here.net);
    targets.add({"optimizer"}, here.opt);
    const auto tree = load_checkpoint(folder_ / "three", targets);
    EXPECT_EQ(tree.at("epoch").to_int(), 3);
    load_module_state_dict(*here.net, tree.at("model").to_dict());
    here.opt.load_state_dict(tree.at("optimizer").to_dict());
    here.shards->refresh();
    EXPECT_EQ(difference(here.opt.state_dict(), expected_.at("optimizer").to_dict(), here.shards.get()), "");
    EXPECT_EQ(difference(module_state_dict(*here.net), expected_.at("model").to_dict(), here.shards.get()), "");
  });
}

TEST_F(ShardsTest, SlotsThatAreMadeByTheFirstStepAreKnown) {
  run_ranks(4, [&](Collective& group) {
    ShardedModule here(&group);
    auto state = here.state();
    save_checkpoint(folder_ / "fresh", state, {.shards = here.shards.get()});
    for (auto& p : here.opt.params()) p.mutable_grad() = torch::full_like(p, 1 + group.rank());
    here.opt.step();
    save_checkpoint(folder_ / "stepped", state, {.shards = here.shards.get()});
    ShardedModule again(&group);
    auto loaded = again.state();
    load_checkpoint(folder_ / "stepped", loaded, {.shards = again.shards.get()});
    // A rank without rows of a parameter has made no slots for it; others have, and it gets empty ones.
    std::map<std::string, Tensor> now;
    each_tensor_of(loaded.state_dict(), "", [&](const auto& at, const Tensor& tensor) { now.emplace(at, tensor); });
    EXPECT_EQ(now.size(), 30U);
    each_tensor_of(state.state_dict(), "", [&](const auto& at, const Tensor& tensor) {
      EXPECT_TRUE(now.contains(at) && testing::same_bytes(tensor.detach(), now.at(at).detach())) << at;
    });
  });
  EXPECT_TRUE(load_checkpoint(folder_ / "fresh").at("optimizer").to_dict().at("state").to_dict().empty());
  const auto state = load_checkpoint(folder_ / "stepped").at("optimizer").to_dict().at("state").to_dict();
  const auto average = state.at("1").to_dict().at("exp_avg").to_tensor();  // of bias
  EXPECT_EQ(average.sizes(), (at::IntArrayRef{10}));
  EXPECT_TRUE(average[9].item<float>() > 3.5F * average[0].item<float>());
  EXPECT_EQ(state.at("4").to_dict().at("exp_avg").to_tensor().dim(), 0);  // of scalar
}

/// Full parameters, sharded state: what a stage-one optimizer shows.
struct ShardedOptimizer : OptimizerImpl {
  std::vector<Tensor> all;
  StateDict state;

  std::string name() const override { return "Sharded"; }
  void step() override {}
  void zero_grad(bool) override {}
  size_t num_groups() const override { return 1; }
  std::vector<Tensor>& params(size_t) override { return all; }
  double* find_hyper(size_t, std::string_view) override { return nullptr; }
  StateDict state_dict() const override { return state; }
  void load_state_dict(const StateDict& loaded) override { state = loaded; }
};

TEST_F(ShardsTest, StatesMayBeShardedWhereParametersAreNot) {
  const auto average = torch::randn({5, 2});
  const auto body = [&](Collective& group, bool save) {
    const auto [start, rows] = even_rows(5, group.rank(), group.size());
    auto impl = std::make_shared<ShardedOptimizer>();
    impl->all = {torch::zeros({5, 2})};
    TensorShards shards(group);
    shards.add_slots(impl->all[0], {.sizes = {5, 2}, .start = start, .rows = rows});
    Optimizer opt(impl);
    shards.add_optimizer(opt);
    State state{{"optimizer", opt}};
    if (save) {
      impl->state = {{"state", StateDict{{"0", StateDict{{"step", torch::tensor(2.0F)},
                                                         {"avg", average.narrow(0, start, rows).clone()}}}}}};
      save_checkpoint(folder_ / "slots", state, {.shards = &shards});
    } else {
      load_checkpoint(folder_ / "slots", state, {.shards = &shards});
      const auto& loaded = impl->state.at("state").to_dict().at("0").to_dict();
      EXPECT_TRUE(torch::equal(loaded.at("avg").to_tensor(), average.narrow(0, start, rows)));
      EXPECT_EQ(loaded.at("step").to_tensor().dim(), 0);
    }
  };
  run_ranks(2, [&](Collective& group) { body(group, true); });
  EXPECT_EQ(difference(
                load_checkpoint(folder_ / "slots"),
                {{"optimizer",
                  StateDict{{"state", StateDict{{"0", StateDict{{"step", torch::tensor(2.0F)}, {"avg", average}}}}}}}}),
            "");
  run_ranks(3, [&](Collective& group) { body(group, false); });
}

TEST_F(ShardsTest, SlotsOfAnotherShapeAreRefused) {
  const auto results = run_ranks(2, [&](Collective& group) -> std::string {
    auto impl = std::make_shared<ShardedOptimizer>();
    impl->all = {torch::zeros({3, 2})};
    impl->state = {{"state", StateDict{{"0", StateDict{{"col", torch::zeros({2})}}}}}};
    TensorShards shards(group);
    shards.add(impl->all[0], {.sizes = {6, 2}, .start = 3 * group.rank()});
    Optimizer opt(impl);
    shards.add_optimizer(opt);
    State state{{"optimizer", opt}};
    return error_of([&] { save_checkpoint(folder_ / "c", state, {.shards = &shards}); });
  });
  for (const auto& result : results)
    EXPECT_THAT(result.text,
                HasSubstr("Sharded keeps \"col\" of shape [2] for parameter 0, of which this rank has 3 rows of"));
  EXPECT_FALSE(fs::exists(folder_ / "c"));
}

TEST_F(ShardsTest, OneProcessMayHaveAMapToo) {
  run_ranks(1, [&](Collective& group) {
    ShardedModule here(&group);
    auto state = here.state();
    load_checkpoint(folder_ / "whole", state, {.shards = here.shards.get()});
    save_checkpoint(folder_ / "alone", state, {.shards = here.shards.get()});
    save_checkpoint(folder_ / "alone full", state, {.world_size = 4, .shards = here.shards.get(), .full = true});
  });
  expect_whole("alone");
  expect_same_files("alone full");
}

}  // namespace
}  // namespace levin
