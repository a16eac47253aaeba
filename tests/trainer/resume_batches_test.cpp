// A run that resumes inside an epoch with batches of another size, with another number of ranks or with another window
// of accumulation: no sample is trained twice, none is left out, and the epoch ends once.
#include <numeric>
#include <set>
#include <sstream>

#include "levin/checkpoint/checkpoint.h"
#include "levin/data/combined.h"
#include "levin/data/stream.h"
#include "levin/testing/probe.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/on_exception_checkpoint.h"
#include "levin/trainer/callbacks/weight_averaging.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

Ids ids_in(const Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

Ids count_to(int64_t end) {
  Ids ids(static_cast<size_t>(end));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

DataLoader<Batch> numbered(int64_t samples, int64_t batch_size, bool drop_last = false) {
  return make_loader(TensorDataset({{"x", at::ones({samples, 32})}, {"id", torch::arange(samples)}}),
                     {.batch_size = batch_size, .drop_last = drop_last});
}

/// Remembers what it is trained on; the rate falls to a tenth with every epoch.
struct Remembering : Net {
  explicit Remembering() : Net(false, Json{{"type", "StepLR"}, {"options", {{"step_size", 1}}}}) {}
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    if (trained.size() <= static_cast<size_t>(trainer().current_epoch())) trained.resize(trainer().current_epoch() + 1);
    auto& ids = trained[trainer().current_epoch()];
    for (const int64_t id : ids_in(batch["id"])) {
      if (id == fails_at) throw std::runtime_error("as asked");
      ids.push_back(id);
    }
    return Net::training_step(batch, at);
  }
  void on_validation_start() override {
    if (trainer().sanity_checking()) return;
    if (dies_in_validation) throw std::runtime_error("as asked");
    validated.push_back(trainer().current_epoch());
  }
  Optimizers configure_optimizers() override {
    auto all = Net::configure_optimizers();
    rates = all.configs().front().optimizer;
    return all;
  }
  /// By epoch.
  std::vector<Ids> trained;
  Ids validated;
  int64_t fails_at = -1;
  bool dies_in_validation = false;
  Optimizer rates;
};

struct Kept {
  TemporaryFolder folder;
  fs::path path() const { return folder.path() / "kept"; }
};

TEST(ResumeBatches, OfAnotherSizeContinueAtTheSameSample) {
  for (const auto& [first, then] : {std::pair(4, 2), std::pair(2, 4), std::pair(4, 8), std::pair(4, 4)}) {
    const Kept kept;
    Remembering before, after;
    auto options = quiet({SaveAt(kept.path(), 8 / first)}, 2);
    options.max_steps = 8 / first;
    Trainer(options).fit(before, numbered(24, first), numbered(2, 2));
    ASSERT_EQ(before.trained, std::vector<Ids>{count_to(8)});

    Trainer trainer(quiet({}, 2));
    trainer.fit(after, numbered(24, then), numbered(2, 2), {.ckpt_path = kept.path().string()});
    auto whole = before.trained.at(0);
    whole.insert(whole.end(), after.trained.at(0).begin(), after.trained.at(0).end());
    EXPECT_EQ(whole, count_to(24)) << first << " then " << then;
    EXPECT_EQ(after.batches.front(), 8 / then) << first << " then " << then;
    EXPECT_EQ(after.trained.at(1), count_to(24)) << first << " then " << then;
    EXPECT_EQ(after.validated, (Ids{0, 1})) << first << " then " << then;
    EXPECT_NEAR(after.rates.lr(), 1e-3, 1e-12) << first << " then " << then;
    EXPECT_EQ(trainer.progress().total_batches, 24 / then * 2) << first << " then " << then;
  }
}

TEST(ResumeBatches, ThatDoNotReachTheSampleBeginThere) {
  const Kept kept;
  Remembering before, after;
  Trainer(quiet({SaveAt(kept.path(), 2)}, 1)).fit(before, numbered(24, 4));
  Trainer(quiet({}, 2)).fit(after, numbered(24, 3), numbered(2, 2), {.ckpt_path = kept.path().string()});
  auto rest = count_to(24);
  rest.erase(rest.begin(), rest.begin() + 8);
  EXPECT_EQ(after.trained, (std::vector<Ids>{rest, count_to(24)}));
  EXPECT_EQ(after.validated, (Ids{0, 1}));
  EXPECT_NEAR(after.rates.lr(), 1e-3, 1e-12);
}

// 5 samples are left: one batch of 8 less than an epoch of these has.
TEST(ResumeBatches, ThatAreFewerThanOfAWholeEpochEndIt) {
  const Kept kept;
  Remembering before, after;
  Trainer(quiet({SaveAt(kept.path(), 4)}, 1)).fit(before, numbered(17, 3));
  Trainer trainer(quiet({}, 2));
  trainer.fit(after, numbered(17, 8), numbered(2, 2), {.ckpt_path = kept.path().string()});
  EXPECT_EQ(after.trained, (std::vector<Ids>{{12, 13, 14, 15, 16}, count_to(17)}));
  EXPECT_EQ(after.validated, (Ids{0, 1}));
  EXPECT_NEAR(after.rates.lr(), 1e-3, 1e-12);
}

TEST(ResumeBatches, AfterTheLastOneTheEpochIsOver) {
  // 3 batches, of which the last is short; 12 samples are in no batches of 5.
  for (const int64_t then : {4, 5, 1}) {
    const Kept kept;
    Remembering before, after;
    before.dies_in_validation = true;
    EXPECT_THROW(Trainer(quiet({SaveAt(kept.path(), 3)}, 1)).fit(before, numbered(10, 4), numbered(2, 2)),
                 std::runtime_error);
    Trainer(quiet({}, 2)).fit(after, numbered(10, then), numbered(2, 2), {.ckpt_path = kept.path().string()});
    EXPECT_EQ(after.trained, (std::vector<Ids>{{}, count_to(10)})) << then;
    EXPECT_EQ(after.validated, (Ids{0, 1})) << then;
    EXPECT_NEAR(after.rates.lr(), 1e-3, 1e-12) << then;
  }
}

/// Earlier versions wrote neither whether the last batch was done nor what the loader had counted.
TEST(ResumeBatches, OfAnEarlierVersionContinue) {
  for (const int64_t at : {2, 3}) {
    const Kept kept, old;
    Remembering before, after;
    before.dies_in_validation = true;
    EXPECT_THROW(Trainer(quiet({SaveAt(kept.path(), at)}, 1)).fit(before, numbered(10, 4), numbered(2, 2)),
                 std::runtime_error);
    auto state = load_checkpoint(kept.path());
    auto& fit = state["loops"].to_dict()["fit"].to_dict();
    ASSERT_TRUE(fit.erase("batches_done") && fit.erase("loader_batch"));
    save_checkpoint(old.path(), state);
    Trainer(quiet({}, 2)).fit(after, numbered(10, 4), numbered(2, 2), {.ckpt_path = old.path().string()});
    EXPECT_EQ(after.trained, (std::vector<Ids>{at == 3 ? Ids{} : Ids{8, 9}, count_to(10)})) << at;
    EXPECT_EQ(after.validated, (Ids{0, 1})) << at;
    EXPECT_NEAR(after.rates.lr(), 1e-3, 1e-12) << at;
  }
}

TEST(ResumeBatches, WhereNoneIsLeftTheEpochEnds) {
  const Kept kept;
  Remembering before, after;
  Trainer(quiet({SaveAt(kept.path(), 4)}, 1)).fit(before, numbered(10, 2, /*drop_last=*/true));
  Trainer(quiet({}, 2))
      .fit(after, numbered(10, 4, /*drop_last=*/true), numbered(2, 2), {.ckpt_path = kept.path().string()});
  EXPECT_EQ(after.trained, (std::vector<Ids>{{}, count_to(8)}));
  EXPECT_EQ(after.validated, (Ids{0, 1}));
  EXPECT_NEAR(after.rates.lr(), 1e-3, 1e-12);
}

/// Samples of which nobody knows how many come.
struct Numbers {
  int64_t count = 10;
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<Batch> next() {
    if (at == count) return {};
    return Batch{{"x", at::ones({32})}, {"id", torch::tensor(at++)}};
  }
};

TEST(ResumeBatches, OfAStreamTheLastOneStaysTheLast) {
  const Kept kept;
  Remembering before, after;
  before.dies_in_validation = true;
  const auto stream = [](int64_t size) { return make_loader(Numbers(), {.batch_size = size}); };
  EXPECT_THROW(Trainer(quiet({SaveAt(kept.path(), 5)}, 1)).fit(before, stream(2), numbered(2, 2)), std::runtime_error);
  Trainer(quiet({}, 2)).fit(after, stream(2), numbered(2, 2), {.ckpt_path = kept.path().string()});
  EXPECT_EQ(after.trained, (std::vector<Ids>{{}, count_to(10)}));
  EXPECT_EQ(after.validated, (Ids{0, 1}));
  EXPECT_NEAR(after.rates.lr(), 1e-3, 1e-12);
}

TEST(ResumeBatches, OfAStreamContinueAtTheSameSample) {
  const Kept kept;
  Remembering before, after;
  const auto stream = [](int64_t size) { return make_loader(Numbers(), {.batch_size = size}); };
  Trainer(quiet({SaveAt(kept.path(), 2)}, 1)).fit(before, stream(2));
  Trainer trainer(quiet({}, 1));
  trainer.fit(after, stream(1), numbered(2, 2), {.ckpt_path = kept.path().string()});
  EXPECT_EQ(after.trained, (std::vector<Ids>{{4, 5, 6, 7, 8, 9}}));
  EXPECT_EQ(after.batches.front(), 4);
  EXPECT_EQ(trainer.progress().total_batches, 10);
}

LEVIN_PROBE(resume_on_ranks) {
  const fs::path folder = arguments.at(0);
  auto options = quiet({}, 1);
  options.strategy = "ddp";
  options.devices = 2;
  Remembering net;
  Trainer(options).fit(net, numbered(24, 2), numbered(2, 1), {.ckpt_path = arguments.at(1)});
  testing::write_answer(
      folder, fmt::format("{} {} {}", fmt::join(net.trained.at(0), ","), net.batches.front(), net.validated.size()));
}

TEST(ResumeBatches, OfMoreRanksContinueAtTheSameSample) {
  const Kept kept;
  Remembering before;
  Trainer(quiet({SaveAt(kept.path(), 4)}, 1)).fit(before, numbered(24, 2));
  ASSERT_EQ(testing::launch_probe("resume_on_ranks", 2, {kept.folder.path().string(), kept.path().string()}), 0);
  EXPECT_EQ(testing::read_answers(kept.folder.path(), 2),
            (std::vector<std::string>{"8,10,12,14,16,18,20,22 2 1", "9,11,13,15,17,19,21,23 2 1"}));
}

LEVIN_PROBE(train_on_ranks) {
  const fs::path folder = arguments.at(0), kept = arguments.at(1);
  const bool resumes = arguments.at(3) == "resume";
  auto options = quiet({}, 1);
  if (!resumes) options.callbacks = {SaveAt(kept, 3)};
  options.max_steps = resumes ? -1 : 3;
  options.strategy = "ddp";
  options.devices = std::stoi(arguments.at(2));
  Remembering net;
  const auto ckpt_path = resumes ? kept.string() : std::string();
  if (arguments.at(4) == "stream")
    Trainer(options).fit(net, make_loader(Numbers{.count = 40}, {.batch_size = 2}), {}, {.ckpt_path = ckpt_path});
  else
    Trainer(options).fit(net, numbered(40, 2), {}, {.ckpt_path = ckpt_path});
  testing::write_answer(folder, fmt::format("{}", fmt::join(net.trained.at(0), " ")));
}

TEST(ResumeBatches, OfAnyRanksContinueAtTheSameSample) {
  for (const auto& [data, first, then] :
       {std::tuple("dataset", 3, 2), std::tuple("dataset", 1, 4), std::tuple("stream", 3, 4)}) {
    const Kept kept;
    const auto run = [&](int ranks, const char* what) {
      const std::vector<std::string> arguments{kept.folder.path().string(), kept.path().string(), std::to_string(ranks),
                                               what, data};
      EXPECT_EQ(testing::launch_probe("train_on_ranks", ranks, arguments), 0) << data << first << then;
      std::multiset<int64_t> ids;
      for (const auto& answer : testing::read_answers(kept.folder.path(), ranks)) {
        std::istringstream text(answer);
        for (int64_t id = 0; text >> id;) ids.insert(id);
      }
      return ids;
    };
    auto seen = run(first, "begin");
    EXPECT_EQ(seen.size(), static_cast<size_t>(6 * first));
    seen.merge(run(then, "resume"));
    for (int64_t id = 0; id < 40; ++id) EXPECT_GE(seen.count(id), 1U) << data << first << then << " " << id;
    // The last step is filled up, as at the end of every epoch.
    EXPECT_LT(seen.size(), static_cast<size_t>(40 + then)) << data << first << then;
  }
}

// The window is as large as asked for from where the run resumes, and comes again as a whole when it fails.
TEST(ResumeBatches, InALargerWindowOfAccumulation) {
  const Kept kept;
  Remembering first, second, third;
  Trainer(quiet({SaveAt(kept.path(), 1)}, 1)).fit(first, numbered(8, 1));
  second.fails_at = 4;
  const auto failed =
      std::make_shared<OnExceptionCheckpoint>(OnExceptionCheckpointOptions{.dirpath = kept.folder.path() / "failed"});
  auto options = quiet({failed}, 1);
  options.accumulate_grad_batches = 2;
  Trainer trainer(options);
  EXPECT_THROW(trainer.fit(second, numbered(8, 1), {}, {.ckpt_path = kept.path().string()}), std::runtime_error);
  EXPECT_EQ(second.trained, (std::vector<Ids>{{1, 2, 3}}));
  EXPECT_EQ(trainer.global_step(), 2);
  options.callbacks.clear();
  Trainer(options).fit(third, numbered(8, 1), {}, {.ckpt_path = failed->ckpt_path().string()});
  EXPECT_EQ(third.trained, (std::vector<Ids>{{3, 4, 5, 6, 7}}));
}

struct Pairs : TrainModuleOf<CombinedBatch<Batch>> {
  Pairs() { layer = register_module("layer", torch::nn::Linear(32, 2)); }
  StepOutput training_step(const CombinedBatch<Batch>& batch, const StepInfo&) override {
    const auto id = batch["a"]["id"].item<int64_t>();
    if (id == fails_at) throw std::runtime_error("as asked");
    trained.push_back(id);
    return layer(batch["b"]["x"]).mean();
  }
  Optimizers configure_optimizers() override { return optim::SGD(layer->parameters(), {.lr = 0.1}); }
  torch::nn::Linear layer{nullptr};
  Ids trained;
  int64_t fails_at = -1;
};

TEST(ResumeBatches, OfCombinedLoadersAfterAnException) {
  const Kept kept;
  const auto both = [] { return combine({{"a", numbered(6, 1)}, {"b", numbered(3, 1)}}); };
  const auto failed =
      std::make_shared<OnExceptionCheckpoint>(OnExceptionCheckpointOptions{.dirpath = kept.folder.path() / "failed"});
  Pairs first, second;
  first.fails_at = 2;
  EXPECT_THROW(Trainer(quiet({failed}, 1)).fit(first, both()), std::runtime_error);
  Trainer(quiet({}, 1)).fit(second, both(), {}, {.ckpt_path = failed->ckpt_path().string()});
  EXPECT_EQ(first.trained, (Ids{0, 1}));
  EXPECT_EQ(second.trained, (Ids{2, 3, 4, 5}));
}

/// Its metric says which weights were validated.
struct Summed : Net {
  StepOutput validation_step(const Batch&, const StepInfo&) override {
    log("sum", plain->weight.detach().sum());
    return {};
  }
};

double sum_of(const StateDict& model) {
  return model.at("layer.weight").to_tensor().sum().item<double>();
}

// Validation after the first batch of a window of two: the value is that of the weights before the step.
TrainerOptions validated_in_a_window(const ModelCheckpointOptions& options, std::vector<CallbackRef> callbacks = {}) {
  callbacks.emplace_back(ModelCheckpoint(options));
  auto result = quiet(std::move(callbacks), 1);
  result.enable_checkpointing = true;
  result.accumulate_grad_batches = 2;
  result.val_check_interval = 3;
  return result;
}

TEST(BestCheckpoint, HasTheWeightsThatWereValidated) {
  for (const bool weights_only : {false, true})
    for (const bool averages : {false, true}) {
      const auto averaging = [&] {
        return averages ? std::vector<CallbackRef>{EMAWeightAveraging({.decay = 0.5})} : std::vector<CallbackRef>{};
      };
      const TemporaryFolder folder, other;
      Trainer trainer(validated_in_a_window({.dirpath = folder.path(),
                                             .monitor = "sum",
                                             .save_weights_only = weights_only,
                                             .save_on_train_epoch_end = false},
                                            averaging()));
      Summed net;
      trainer.fit(net, loader(5, 1), loader(2, 1));
      const auto* best = trainer.callback<ModelCheckpoint>();
      ASSERT_TRUE(best->best_model_score());
      const auto kept = load_checkpoint(best->best_model_path());
      EXPECT_NEAR(sum_of(kept.at("model").to_dict()), *best->best_model_score(), 1e-5) << averages;
      if (weights_only) continue;
      EXPECT_GT(std::abs(sum_of(kept.at("resume_model").to_dict()) - *best->best_model_score()), 1e-3) << averages;

      Summed resumed;
      Trainer(validated_in_a_window({.dirpath = other.path(), .monitor = "sum"}, averaging()))
          .fit(resumed, loader(5, 1), loader(2, 1), {.ckpt_path = best->best_model_path().string()});
      expect_equal(resumed, net, averages ? "averaged" : "resumed");
      EXPECT_EQ(resumed.batches, (Ids{4}));
    }
}

ModelCheckpointOptions by_loss(const fs::path& folder) {
  return {.dirpath = folder, .monitor = "val_loss", .save_on_train_epoch_end = false};
}

LEVIN_PROBE(best_of_shards) {
  const fs::path folder = arguments.at(0);
  auto options = validated_in_a_window(by_loss(folder / "shards"));
  options.strategy = "fsdp";
  options.devices = 2;
  Net net, resumed;
  Trainer trainer(options);
  trainer.fit(net, loader(10, 1), loader(2, 1));
  const auto best = trainer.callback<ModelCheckpoint>()->best_model_path();
  options.callbacks = {ModelCheckpoint(by_loss(folder / "resumed"))};
  Trainer again(options);
  again.fit(resumed, loader(10, 1), loader(2, 1), {.ckpt_path = best.string()});
  expect_equal(resumed, net, "resumed");
  testing::write_answer(folder, best.string());
}

TEST(BestCheckpoint, OfShardsHasTheWeightsThatWereValidated) {
  const TemporaryFolder folder;
  ASSERT_EQ(testing::launch_probe("best_of_shards", 2, {folder.path().string()}), 0);
  Net net;
  Trainer trainer(validated_in_a_window(by_loss(folder.path() / "one")));
  trainer.fit(net, loader(10, 2), loader(2, 1));
  const auto one = load_checkpoint(trainer.callback<ModelCheckpoint>()->best_model_path());
  const auto shards = load_checkpoint(testing::read_answers(folder.path(), 2).at(0));
  for (const char* key : {"model", "resume_model"})
    EXPECT_TRUE(at::allclose(shards.at(key).to_dict().at("layer.weight").to_tensor(),
                             one.at(key).to_dict().at("layer.weight").to_tensor(), 1e-5, 1e-6))
        << key;
}

}  // namespace
}  // namespace levin::tuning_test
