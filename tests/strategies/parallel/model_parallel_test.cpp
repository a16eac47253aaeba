// Models that are split over tp and sharded over the other ranks, against one process on the whole batch.
#include "levin/strategies/model_parallel.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"
#include "tests/strategies/parallel/parallel_training.h"

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
  /// Says again what others say.
  bool repeats = false;
};

class ModelParallelTraining : public ::testing::TestWithParam<MeshCase> {};

TEST_P(ModelParallelTraining, EqualsOneProcess) {
  const auto& given = GetParam();
  if (given.repeats && !all_meshes()) GTEST_SKIP() << "LEVIN_ALL_MESHES is not set";
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
        MeshCase{"shard2_tp2", 4, {.mesh = {.dp_shard = 2, .tp = 2}}, {"gpt2", "llama", "bert_masked", "vit"}, 2},
        MeshCase{"shard2_tp2_clipped_accumulated_delayed",
                 4,
                 {.mesh = {.dp_shard = 2, .tp = 2}},
                 {"gpt2"},
                 3,
                 {.accumulate = 2, .clip = 0.5, .delays = true}},
        MeshCase{"replicate2_shard2_tp2", 8, {.mesh = {.dp_replicate = 2, .dp_shard = 2, .tp = 2}}, {"gpt2"}, 1},
        // Two heads of keys over four ranks.
        MeshCase{"shard2_tp4_sequence",
                 8,
                 {.mesh = {.dp_shard = -1, .tp = 4}, .sequence_parallel = true, .fsdp = kCheckpointed},
                 {"llama"},
                 1},
        MeshCase{"shard2_cp2", 4, {.mesh = {.dp_shard = 2, .cp = 2}}, {"gpt2"}, 2},
        MeshCase{"cp2_tp2", 4, {.mesh = {.cp = 2, .tp = 2}}, {"llama"}, 2},
        MeshCase{"shard2_cp2_tp2", 8, {.mesh = {.dp_shard = 2, .cp = 2, .tp = 2}}, {"llama"}, 1},
        MeshCase{"pp2_tp2", 4, {.mesh = {.pp = 2, .tp = 2}}, {"gpt2", "bert_masked", "vit"}, 2},
        MeshCase{"pp2_shard2", 4, {.mesh = {.pp = 2, .dp_shard = 2}}, {"gpt2", "llama", "mixtral"}, 2},
        // Gradients of weights come apart, and are reduced behind those of the last micro-batch.
        MeshCase{"pp2_shard2_zb1p",
                 4,
                 {.mesh = {.pp = 2, .dp_shard = 2}, .pipeline = {.schedule = "zb1p"}},
                 {"gpt2", "bert_masked"},
                 2,
                 {.accumulate = 2, .clip = 0.5, .delays = true}},
        MeshCase{"pp2_shard2_zbv",
                 4,
                 {.mesh = {.pp = 2, .dp_shard = 2}, .pipeline = {.schedule = "zbv", .microbatches = 3}},
                 {"gpt of 4", "vit"},
                 2},
        MeshCase{"pp2_shard2_zb1p_checkpointed",
                 4,
                 {.mesh = {.pp = 2, .dp_shard = 2}, .fsdp = kCheckpointed, .pipeline = {.schedule = "zb1p"}},
                 {"llama"},
                 2},
        MeshCase{"pp2_replicate2_interleaved",
                 4,
                 {.mesh = {.pp = 2, .dp_replicate = 2}, .pipeline = {.schedule = "interleaved"}},
                 {"gpt of 4"},
                 2},
        MeshCase{"pp2_replicate2_gpipe",
                 4,
                 {.mesh = {.pp = 2, .dp_replicate = 2}, .pipeline = {.schedule = "gpipe"}},
                 {"llama"},
                 3,
                 {.accumulate = 2, .clip = 0.5, .delays = true}},
        MeshCase{"pp2_shard2_tp2_zb1p",
                 8,
                 {.mesh = {.pp = 2, .dp_shard = 2, .tp = 2}, .pipeline = {.schedule = "zb1p"}},
                 {"llama"},
                 1},
        // As "tensor_parallel" and "fsdp".
        MeshCase{"tp2", 2, {.mesh = {.tp = 2}}, {"gpt2"}, 3, {}, true},
        MeshCase{"shard4", 4, {}, {"llama"}, 3, {}, true}),
    [](const auto& each) { return each.param.name; });

TEST(ModelParallel, TenStepsInMixedPrecision) {
  const auto expected = trained(*one_rank(), language("llama"), "single_device", 10);
  run_ranks(4, [&](Collective& group) {
    const ModelParallelOptions options{.mesh = {.dp_shard = 2, .tp = 2}};
    expect_close(trained(group, language("llama"), options, 10), expected, "float32");
    const int steps = all_meshes() ? 10 : 2;
    const auto mixed = trained(group, language("llama"), options, steps, {.precision = "bf16-mixed"});
    const std::vector<Tensor> losses(expected.losses.begin(), expected.losses.begin() + steps);
    expect_close(mixed.losses, losses, "bfloat16 loss", 2e-2);
    if (all_meshes()) expect_close(mixed.params, expected.params, "bfloat16 parameter", 5e-2);
  });
}

/// Gradients of every micro-batch count, those of embeddings and head, too, which a stage has besides its units.
TEST(ModelParallel, StagesInMixedPrecisionHaveAllGradients) {
  const auto check = [](const std::string& model, const std::vector<std::string>& schedules, int shards) {
    const auto expected = trained(*one_rank(), subject_of(model), "single_device", 1);
    run_ranks(2 * shards, [&](Collective& group) {
      for (const auto& schedule : schedules) {
        const ModelParallelOptions options{.mesh = {.pp = 2, .dp_shard = shards},
                                           .pipeline = {.schedule = schedule, .microbatches = 4}};
        const auto mixed = trained(group, subject_of(model), options, 1, {.precision = "bf16-mixed"});
        ASSERT_EQ(mixed.grads.size(), expected.grads.size());
        for (size_t i = 0; i < mixed.grads.size(); ++i) {
          const auto& wanted = expected.grads[i];
          EXPECT_LT((mixed.grads[i] - wanted).norm().item<double>(), 0.05 * wanted.norm().item<double>())
              << model << " " << schedule << " " << i;
        }
      }
    });
  };
  check("llama", {"gpipe", "1f1b", "zb1p"}, 1);
  check("gpt of 4", {"zbv"}, 1);  // a tied head
  check("llama", {"1f1b", "zb1p"}, 2);
}

/// Saved under pp x dp_shard x tp, and continued under other meshes: losses and parameters are those of one process.
TEST(ModelParallel, CheckpointsLoadUnderAnyMesh) {
  const TemporaryFolder root;
  const std::string model = "gpt of 8";
  std::vector<Tensor> losses;
  const auto expected = train_part(*one_rank(), "single_device", 0, 2, {}, {}, model, &losses);
  const auto mesh = [](int pp, int shard, int tp) {
    return ModelParallelOptions{.mesh = {.pp = pp, .dp_shard = shard, .tp = tp}};
  };
  // The second step, of what 2x2x2 has saved behind the first one.
  const auto continues = [&](Collective& group, const StrategyChoice& choice, const std::string& what,
                             const std::filesystem::path& to = {}) {
    std::vector<Tensor> seen;
    expect_close(train_part(group, choice, 1, 2, root / "222", to, model, &seen), expected, what);
    expect_close(seen, {losses[1]}, what + " loss");
  };
  run_ranks(8, [&](Collective& group) {
    std::vector<Tensor> seen;
    train_part(group, mesh(2, 2, 2), 0, 1, {}, root / "222", model, &seen);
    expect_close(seen, {losses[0]}, "2x2x2 loss");
    continues(group, mesh(8, 1, 1), "8x1x1", root / "811");
    continues(group, mesh(1, 4, 2), "1x4x2", root / "142");
  });
  EXPECT_TRUE(checkpoint_info(root / "222").sharded);
  continues(*one_rank(), mesh(1, 1, 1), "1x1x1");
  continues(*one_rank(), "single_device", "one process");
  for (const auto* saved : {"811", "142"})
    expect_close(train_part(*one_rank(), "single_device", 2, 2, root / saved, {}, model), expected, saved);
}

/// A folder is opened on every rank, or read split over tp, and written again from the mesh.
TEST(ModelParallel, FoldersAreReadIntoAndWrittenFromAnyMesh) {
  const TemporaryFolder root;
  const auto folders = std::filesystem::path(source_dir()) / "tests/models/fixtures/language";
  const std::vector<std::string> names{"gpt2", "llama"};
  const std::vector<std::pair<std::string, ParallelSizes>> meshes{{"shard2_tp2", {.dp_shard = 2, .tp = 2}},
                                                                  {"pp2_tp2", {.pp = 2, .tp = 2}},
                                                                  {"pp2_shard2", {.pp = 2, .dp_shard = 2}},
                                                                  {"shard2_cp2", {.dp_shard = 2, .cp = 2}}};
  const auto saved = [&](const std::string& name, const std::string& mesh, bool split) {
    return root / (name + "_" + mesh + (split ? "_split" : ""));
  };
  run_ranks(4, [&](Collective& group) {
    for (const auto& name : names)
      for (const auto& [mesh, sizes] : meshes)
        for (const bool split : {false, true}) {
          if (split && sizes.tp == 1) continue;
          ModelParallelStrategy strategy({.mesh = sizes});
          strategy.connect({&group, [](auto*) {}}, at::kCPU);
          auto model =
              models::open_model(folders / name, {.ranks = split ? strategy.mesh().shared_group("tp") : TensorRanks()});
          if (split) strategy.adopt_split(model.split);
          const auto sync = strategy.setup_module(model.module());
          models::save_model(model, saved(name, mesh, split), {.shards = strategy.shards()});
        }
  });
  for (const auto& name : names)
    for (const auto& [mesh, sizes] : meshes)
      for (const bool split : {false, true}) {
        if (split && sizes.tp == 1) continue;
        const auto before = models::open_model(folders / name), after = models::open_model(saved(name, mesh, split));
        const auto wanted = before.module().parameters(), got = after.module().parameters();
        ASSERT_EQ(got.size(), wanted.size());
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(torch::equal(got[i], wanted[i])) << name << mesh << " " << i;
      }
}

/// Bytes that groups of torch gather and reduce: those of sharding. What ranks of tp send takes another way.
struct Volume {
  static inline std::atomic<int64_t> gathered = 0, reduced = 0;
  static int64_t bytes_of(const c10::IValue& value) {
    if (value.isTensor()) return static_cast<int64_t>(value.toTensor().nbytes());
    int64_t bytes = 0;
    for (const auto& tensor : value.toTensorVector()) bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }
  static std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call) {
    const std::string name = call.name();
    if (name == "c10d::_allgather_base_") gathered += bytes_of(call.inputs()[0]);
    if (name == "c10d::allreduce_") reduced += bytes_of(call.inputs()[0]);  // Gloo scatters nothing
    return nullptr;
  }
};

TEST(ModelParallel, ABlockIsGatheredTwiceAndReducedOnce) {
  run_ranks(4, [&](Collective& group) {
    const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&Volume::on_call).needsInputs(true));
    const auto sent = [&](int64_t layers) {
      torch::manual_seed(3);
      auto model = models::decoder({.vocab_size = 64,
                                    .max_positions = 16,
                                    .num_layers = layers,
                                    .num_heads = 4,
                                    .hidden_dim = 128,
                                    .norm = "rms",
                                    .activation = "silu_gated",
                                    .positions = "rotary",
                                    .tied_head = false});
      Trainee trainee(group, ModelParallelOptions{.mesh = {.dp_shard = 2, .tp = 2}}, *model);
      int64_t numel = 0;
      for (const auto& param : model->blocks[0]->parameters()) numel += 2 * param.numel();  // of both shards
      const auto ids = tokens_of(0);
      for (int step = 0; step < 2; ++step) {  // in the first one the order of units is learned
        Volume::gathered = Volume::reduced = 0;
        trainee.backward(trainee.forward([&] { return model(ids, models::next_tokens(ids)); }));
      }
      return std::array{Volume::gathered.load(), Volume::reduced.load(), numel};
    };
    const auto less = sent(2), more = sent(3);
    // Parameters are padded to whole lines.
    const auto block = static_cast<double>(less[2] * 4);
    EXPECT_NEAR(static_cast<double>(more[0] - less[0]), 2 * block, 0.04 * block);
    EXPECT_NEAR(static_cast<double>(more[1] - less[1]), block, 0.02 * block);
    at::removeCallback(handle);
  });
}

TEST(ModelParallel, ARankThatFailsEndsAllWithItsLine) {
  RanksOptions options;
  options.errors_expected = true;
  const auto results = run_ranks(
      4,
      [&](Collective& group) {
        auto subject = language("gpt2");
        Trainee trainee(group, ModelParallelOptions{.mesh = {.dp_shard = 2, .tp = 2}}, *subject.module);
        for (int step = 0; step < 3; ++step) {
          if (step == 1 && group.rank() == 3) std::_Exit(7);
          trainee.backward(trainee.forward([&] { return subject.loss(subject.batch(step)); }));
        }
      },
      options);
  for (int rank = 0; rank < 3; ++rank) {
    const auto& result = results[static_cast<size_t>(rank)];
    EXPECT_THAT(result.error, HasSubstr("rank 3")) << rank;
    EXPECT_EQ(result.error.find('\n'), std::string::npos) << rank;
    EXPECT_LT(result.seconds, 50) << rank;
  }
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
