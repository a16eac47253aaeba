// Experts that are spread over some of the ranks of a mesh, against one process on the whole batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/nn/experts/experts.h"
#include "levin/optim/lamb.h"
#include "levin/strategies/model_parallel.h"
#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"
#include "tests/strategies/parallel/parallel_training.h"

namespace levin::expert_mesh_tests {
namespace {

using namespace levin::testing;

using ::testing::HasSubstr;

/// With the losses of routers, whose batch is that of all ranks; `balance` 0 where micro-batches are others than those
/// of one process.
Subject mixture(const std::string& folder, double balance, double z_loss) {
  auto model = std::make_shared<models::LanguageModel>(
      models::open_model(std::filesystem::path(source_dir()) / "tests/models/fixtures/language" / folder));
  model->decoder->options.balance_loss = balance;
  model->decoder->options.router_z_loss = z_loss;
  const auto loss = [model](const Tensor& tokens) {
    model->module().train();
    return model->decoder(tokens, models::next_tokens(tokens));
  };
  return {folder, model->module().shared_from_this(), loss, [](int64_t step) { return tokens_of(step, 8); }};
}

struct Setting {
  std::string model;
  ModelParallelOptions options;
  int steps = 2;
  TrainedOptions how = {};
  double balance = 0.05, z_loss = 0.01;
};

struct MeshCase {
  std::string name;
  int ranks;
  std::vector<Setting> settings;
};

class ExpertMeshTraining : public ::testing::TestWithParam<MeshCase> {};

TEST_P(ExpertMeshTraining, EqualsOneProcess) {
  const auto& given = GetParam();
  const auto subject = [](const Setting& each) { return mixture(each.model, each.balance, each.z_loss); };
  std::vector<Outcome> expected;
  for (const auto& each : given.settings)
    expected.push_back(trained(*one_rank(), subject(each), "single_device", each.steps, {.clip = each.how.clip}));
  run_ranks(given.ranks, [&](Collective& group) {
    for (size_t i = 0; i < given.settings.size(); ++i) {
      const auto& each = given.settings[i];
      expect_close(trained(group, subject(each), each.options, each.steps, each.how), expected[i],
                   each.model + " over " + each.options.mesh.text());
    }
  });
}

const FsdpOptions kCheckpointed{.activation_checkpointing_policy = policy::repeated()};

// Five experts (qwen3_moe, which has a dense layer too) and three (olmoe) are not as many on each rank.
INSTANTIATE_TEST_SUITE_P(
    Meshes, ExpertMeshTraining,
    ::testing::Values(MeshCase{"two_ranks",
                               2,
                               {{"mixtral", {.mesh = {.dp_shard = 2, .ep = 2}}, 10},
                                {"qwen3_moe", {.mesh = {.cp = 2, .ep = 2}}},
                                {"mixtral", {.mesh = {.dp_shard = 2, .ep = 2}, .fsdp = {.cpu_offload = true}}},
                                {"mixtral", {.mesh = {.tp = 2}, .sequence_parallel = true}},
                                {"olmoe", {.mesh = {.tp = 2}}, 4}}},
                      MeshCase{"four_ranks",
                               4,
                               {{"mixtral", {.mesh = {.dp_shard = 4, .ep = 2}}, 3},
                                {"qwen3_moe", {.mesh = {.dp_shard = -1, .ep = 2}}},
                                {"mixtral",
                                 {.mesh = {.dp_shard = 4, .ep = 2}, .fsdp = kCheckpointed},
                                 3,
                                 {.accumulate = 2, .clip = 0.5, .delays = true},
                                 0},
                                {"mixtral", {.mesh = {.dp_replicate = 2, .dp_shard = 2, .ep = 2}}, 3, {.clip = 0.5}},
                                {"qwen2_moe", {.mesh = {.dp_shard = 2, .cp = 2, .ep = 4}}},
                                {"olmoe", {.mesh = {.tp = 4}}}}},  // two heads of keys over four ranks
                      MeshCase{"with_tensor_and_pipeline_parallel",
                               4,
                               {{"mixtral", {.mesh = {.dp_shard = 2, .tp = 2, .ep = 2}}, 10, {.clip = 0.5}},
                                {"olmoe", {.mesh = {.dp_shard = 2, .tp = 2, .ep = 2}}},
                                {"qwen2_moe", {.mesh = {.dp_shard = 2, .tp = 2, .ep = 2}, .sequence_parallel = true}},
                                {"mixtral", {.mesh = {.pp = 2, .dp_shard = 2, .ep = 2}}, 2, {.clip = 0.5}, 0, 0},
                                {"mixtral",
                                 {.mesh = {.pp = 2, .dp_shard = 2, .ep = 2}, .pipeline = {.schedule = "gpipe"}},
                                 2,
                                 {.accumulate = 2},
                                 0,
                                 0},
                                {"mixtral",
                                 {.mesh = {.pp = 2, .dp_shard = 2, .ep = 2}, .pipeline = {.schedule = "zb1p"}},
                                 2,
                                 {.accumulate = 2, .clip = 0.5},
                                 0,
                                 0}}},
                      MeshCase{"eight_ranks",
                               8,
                               {{"mixtral", {.mesh = {.dp_shard = 4, .tp = 2, .ep = 2}}, 1, {.clip = 0.5}},
                                {"qwen3_moe", {.mesh = {.pp = 2, .dp_shard = 2, .tp = 2, .ep = 2}}, 1, {}, 0, 0}}}),
    [](const auto& each) { return each.param.name; });

TEST(ExpertMesh, CheckpointsLoadUnderAnyMesh) {
  const TemporaryFolder root;
  const auto part = [&](Collective& group, const StrategyChoice& choice, int first, int last, const std::string& from,
                        const std::string& to) {
    return train_part(group, choice, first, last, from.empty() ? "" : root / from, to.empty() ? "" : root / to,
                      "mixtral");
  };
  const auto mesh = [](ParallelSizes sizes) { return ModelParallelOptions{.mesh = sizes}; };
  const auto expected = part(*one_rank(), "single_device", 0, 4, "", "");
  run_ranks(4, [&](Collective& group) {
    part(group, mesh({.dp_shard = 4, .ep = 2}), 0, 2, "", "shard4_ep2");
    const auto resumed = [&](const StrategyChoice& choice, const std::string& from, const std::string& to) {
      expect_close(part(group, choice, from == "shard4_ep2" ? 2 : 4, 4, from, to), expected, from + " " + to);
    };
    resumed(mesh({.dp_shard = 4, .ep = 4}), "shard4_ep2", "shard4_ep4");
    resumed(mesh({.dp_shard = 2, .tp = 2, .ep = 2}), "shard4_ep2", "tp2_ep2");
    resumed(mesh({.pp = 2, .dp_shard = 2, .ep = 2}), "tp2_ep2", "pp2_ep2");
    resumed(mesh({.dp_shard = 4}), "pp2_ep2", "");
    resumed(ExpertParallelOptions{.size = 2}, "tp2_ep2", "");
  });
  EXPECT_TRUE(checkpoint_info(root / "shard4_ep2").sharded);
  expect_close(part(*one_rank(), "single_device", 2, 4, "shard4_ep2", ""), expected, "one process");
  for (const auto* from : {"shard4_ep4", "tp2_ep2", "pp2_ep2"})
    expect_close(part(*one_rank(), "single_device", 4, 4, from, ""), expected, from);
}

/// A rank has of a layer what the mesh says, and folders are read into and written from it.
TEST(ExpertMesh, RanksHaveTheirPartOfExperts) {
  const TemporaryFolder root;
  const auto folder = std::filesystem::path(source_dir()) / "tests/models/fixtures/language/mixtral";
  run_ranks(4, [&](Collective& group) {
    for (const bool opened_split : {false, true}) {
      ModelParallelStrategy strategy({.mesh = {.dp_shard = 2, .tp = 2, .ep = 2}});
      strategy.connect({&group, [](auto*) {}}, at::kCPU);
      auto model =
          models::open_model(folder, {.ranks = opened_split ? strategy.mesh().shared_group("tp") : TensorRanks()});
      if (opened_split) strategy.adopt_split(model.split);
      const auto sync = strategy.setup_module(model.module());
      const auto& experts = model.decoder->blocks[0]->experts;
      EXPECT_EQ(experts->gate.sizes(), (std::vector<int64_t>{2, 6, 16}));  // 2 of 4 experts, 6 of 12 wide
      EXPECT_EQ(experts->down.sizes(), (std::vector<int64_t>{2, 16, 6}));
      models::save_model(model, root / (opened_split ? "split" : "whole"), {.shards = strategy.shards()});
    }
  });
  const auto wanted = models::open_model(folder).module().parameters();
  for (const auto* name : {"whole", "split"}) {
    const auto got = models::open_model(root / name).module().parameters();
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(got[i], wanted[i])) << name << " " << i;
  }
}

TEST(ExpertMesh, WhatCannotBeIsOneLine) {
  EXPECT_THAT(error_of([] { (void)ParallelSizes{.dp_shard = 2, .tp = 2, .ep = 4}.over(4); }),
              HasSubstr("ep 4 does not divide dp_shard 2 x cp 1 = 2"));
  const auto refused = [](const std::string& model, const ModelParallelOptions& options, const std::string& reason) {
    run_ranks(4, [&](Collective& group) {
      auto subject = language(model);
      EXPECT_THAT(error_of([&] { Trainee(group, options, *subject.module); }), HasSubstr(reason));
    });
  };
  refused("llama", {.mesh = {.dp_shard = 4, .ep = 2}}, "the model has no experts");
  refused("olmoe", {.mesh = {.dp_shard = 4, .ep = 4}}, "has 3 experts, which 4 ranks cannot share");
  run_ranks(4, [&](Collective& group) {
    auto subject = language("mixtral");
    Trainee trainee(group, "model_parallel:ep=2", *subject.module);
    EXPECT_THAT(trainee.strategy().why_not_captured(), HasSubstr("exchange tokens"));
    EXPECT_THAT(
        error_of([&] { (void)trainee.strategy().setup_optimizer(optim::Lamb(unique_parameters(*subject.module))); }),
        HasSubstr("some of the experts (ep); use AdamW or SGD"));
  });
}

}  // namespace
}  // namespace levin::expert_mesh_tests
