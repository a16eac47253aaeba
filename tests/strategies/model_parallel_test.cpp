// Models that are split over tp and sharded over the other ranks, against one process on the whole batch.
#include "levin/strategies/model_parallel.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"
#include "tests/strategies/parallel_training.h"

namespace levin::model_parallel_tests {
namespace {

using namespace levin::testing;

using ::testing::HasSubstr;

struct MeshCase {
  std::string name;
  int ranks;
  ModelParallelOptions options;
  /// Folders of language models, or "vit".
  std::vector<std::string> models;
  int steps = 4;
  TrainedOptions how = {};
};

class ModelParallelTraining : public ::testing::TestWithParam<MeshCase> {};

TEST_P(ModelParallelTraining, EqualsOneProcess) {
  const auto& given = GetParam();
  std::vector<Outcome> expected;
  for (const auto& name : given.models)
    expected.push_back(trained(*one_rank(), subject_of(name), "single_device", given.steps, {.clip = given.how.clip}));
  run_ranks(given.ranks, [&](Collective& group) {
    for (size_t i = 0; i < given.models.size(); ++i)
      expect_close(trained(group, subject_of(given.models[i]), given.options, given.steps, given.how), expected[i],
                   given.models[i]);
  });
}

const FsdpOptions kCheckpointed{.activation_checkpointing_policy = policy::repeated()};

INSTANTIATE_TEST_SUITE_P(
    Meshes, ModelParallelTraining,
    ::testing::Values(
        MeshCase{"shard2_tp2", 4, {.mesh = {.dp_shard = 2, .tp = 2}}, {"gpt2", "llama", "bert_masked", "vit"}, 4},
        MeshCase{"shard2_tp2_clipped_accumulated_delayed",
                 4,
                 {.mesh = {.dp_shard = 2, .tp = 2}},
                 {"gpt2"},
                 3,
                 {.accumulate = 2, .clip = 0.5, .delays = true}},
        MeshCase{"replicate2_shard2_tp2", 8, {.mesh = {.dp_replicate = 2, .dp_shard = 2, .tp = 2}}, {"gpt2"}, 2},
        // Two heads of keys over four ranks.
        MeshCase{"shard2_tp4_sequence",
                 8,
                 {.mesh = {.dp_shard = -1, .tp = 4}, .sequence_parallel = true, .fsdp = kCheckpointed},
                 {"llama"},
                 2},
        MeshCase{"shard2_cp2", 4, {.mesh = {.dp_shard = 2, .cp = 2}}, {"llama"}, 3},
        MeshCase{"cp2_tp2", 4, {.mesh = {.cp = 2, .tp = 2}}, {"gpt2", "llama"}, 3},
        MeshCase{"shard2_cp2_tp2", 8, {.mesh = {.dp_shard = 2, .cp = 2, .tp = 2}}, {"llama"}, 2},
        MeshCase{"tp2", 2, {.mesh = {.tp = 2}}, {"gpt2"}, 3}, MeshCase{"shard4", 4, {}, {"llama"}, 3}),
    [](const auto& info) { return info.param.name; });

TEST(ModelParallel, TenStepsInMixedPrecision) {
  const auto expected = trained(*one_rank(), language("llama"), "single_device", 10);
  run_ranks(4, [&](Collective& group) {
    const ModelParallelOptions options{.mesh = {.dp_shard = 2, .tp = 2}};
    expect_close(trained(group, language("llama"), options, 10), expected, "float32");
    const auto mixed = trained(group, language("llama"), options, 10, {.precision = "bf16-mixed"});
    expect_close(mixed.losses, expected.losses, "bfloat16 loss", 2e-2);
    expect_close(mixed.params, expected.params, "bfloat16 parameter", 5e-2);
  });
}

TEST(ModelParallel, CheckpointsLoadUnderAnyMesh) {
  const TemporaryFolder root;
  const auto expected = train_part(*one_rank(), "single_device", 0, 4, {}, {});
  const auto mesh = [](int replicate, int shard, int tp) {
    return ModelParallelOptions{.mesh = {.dp_replicate = replicate, .dp_shard = shard, .tp = tp}};
  };
  run_ranks(8, [&](Collective& group) { train_part(group, mesh(2, 2, 2), 0, 2, {}, root / "222"); });
  EXPECT_TRUE(checkpoint_info(root / "222").sharded);
  expect_close(train_part(*one_rank(), "single_device", 2, 4, root / "222", {}), expected, "one process");
  run_ranks(8, [&](Collective& group) {
    expect_close(train_part(group, mesh(8, 1, 1), 2, 4, root / "222", {}), expected, "8x1x1");
    // Four ranks have two heads of keys among them.
    expect_close(train_part(group, mesh(1, 2, 4), 2, 4, root / "222", root / "124"), expected, "1x2x4");
  });
  run_ranks(4, [&](Collective& group) {
    expect_close(train_part(group, mesh(1, 2, 2), 4, 4, root / "124", {}), expected, "1x2x2");
  });
  expect_close(train_part(*one_rank(), mesh(1, 1, 1), 4, 4, root / "124", {}), expected, "1x1x1");
}

TEST(ModelParallel, WhatDoesNotFitIsOneLine) {
  run_ranks(4, [&](Collective& group) {
    const auto refused = [&](const ModelParallelOptions& options) {
      auto subject = language("gpt2");
      return error_of([&] { Trainee(group, options, *subject.module); });
    };
    EXPECT_EQ(refused({.mesh = {.dp_shard = 3, .tp = 2}}), "[mesh] dp_shard 3 x tp 2 = 6, and there are 4 ranks");
    EXPECT_THAT(refused({.mesh = {.tp = 4}}), HasSubstr("has 3 heads, which 4 ranks cannot share: each needs one"));
    EXPECT_THAT(error_of([] { (void)make_strategy(ModelParallelOptions{.fsdp = {.sharding_strategy = "hybrid"}}); }),
                HasSubstr("is what the mesh says"));
  });
}

}  // namespace
}  // namespace levin::model_parallel_tests
