// Ranks whose loaders have different lengths, or of which one alone is told to stop: a line on all of them, no hang.

#include <cstdlib>

#include <gmock/gmock.h>

#include "levin/testing/probe.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

using ::testing::HasSubstr;

/// Runs a probe as two ranks; the error that each of them got.
std::vector<std::string> errors_of_ranks(const std::string& probe) {
  const TemporaryFolder folder;
  testing::launch_probe(probe, 2, {folder.path().string()});
  return testing::read_answers(folder.path(), 2);
}

int own_rank() {
  return std::getenv("RANK") ? std::atoi(std::getenv("RANK")) : 0;
}

struct Small : TrainModule {
  Small() { layer = register_module("layer", torch::nn::Linear(4, 1)); }
  StepOutput training_step(const Batch& batch, const StepInfo&) override { return layer(batch["x"]).mean(); }
  Optimizers configure_optimizers() override { return optim::SGD(layer->parameters(), {.lr = 0.1}); }
  torch::nn::Linear layer{nullptr};
};

std::vector<Batch> batches(size_t count) {
  std::vector<Batch> all;
  for (size_t i = 0; i < count; ++i) all.push_back(Batch{{"x", at::ones({2, 4})}});
  return all;
}

/// Batches of which nobody knows how many there are.
struct Stream {
  std::vector<Batch> all;
  auto begin() { return all.begin(); }
  auto end() { return all.end(); }
};

template <class L>
void fit_and_answer(const std::filesystem::path& folder, L loader, std::vector<CallbackRef> callbacks = {},
                    bool distributed = false) {
  auto options = quiet(std::move(callbacks), 2, folder);
  options.strategy = "ddp";
  options.devices = 2;
  options.use_distributed_sampler = distributed;
  std::string error = "no error";
  Small net;
  Trainer trainer(options);
  try {
    trainer.fit(net, std::move(loader));
  } catch (const std::exception& e) {
    error = e.what();
  }
  testing::write_answer(folder, error);
}

LEVIN_PROBE(uneven_lengths) {
  fit_and_answer(arguments.at(0), batches(own_rank() == 0 ? 5 : 3));
}

TEST(UnevenRanks, LengthsThatAreKnownAreCompared) {
  for (const auto& error : errors_of_ranks("uneven_lengths"))
    EXPECT_THAT(error, HasSubstr("rank 1's train_dataloader has 3 batches, rank 0's has 5"));
}

/// Ten samples in two batches a rank, whatever is asked for.
auto shared(int64_t size, LoaderOptions options) {
  options.batch_size = 3;
  return make_loader(TensorDataset({{"x", at::ones({size, 4})}}), options);
}
void fit_shared(const std::string& folder, const DataLoader<Batch>& loader) {
  fit_and_answer(folder, loader, {}, /*distributed=*/true);
}

LEVIN_PROBE(other_seed) {
  fit_shared(arguments.at(0), shared(10, {.shuffle = true, .seed = own_rank() == 0 ? 7u : 8u}));
}
LEVIN_PROBE(other_size) {
  fit_shared(arguments.at(0), shared(own_rank() == 0 ? 10 : 9, {}));
}
LEVIN_PROBE(other_shuffle) {
  fit_shared(arguments.at(0), shared(10, {.shuffle = own_rank() == 0}));
}
LEVIN_PROBE(other_weights) {
  std::vector<double> weights(10, 1.0);
  weights[0] = own_rank() == 0 ? 1.0 : 100.0;
  fit_shared(arguments.at(0), shared(10, {.sampler = Sampler::weighted(weights, 10)}));
}
LEVIN_PROBE(same_order) {
  // A seed without a use may differ.
  fit_shared(arguments.at(0), shared(10, {.seed = own_rank() == 0 ? 7u : 8u}));
}

TEST(UnevenRanks, OrdersOfSamplesAreCompared) {
  for (const auto& [probe, words] :
       {std::pair("other_seed", "rank 1's train_dataloader has seed 8, rank 0's has 7; the"),
        std::pair("other_size", "has a dataset of size 9, rank 0's has 10"),
        std::pair("other_shuffle", "train_dataloader has "),
        std::pair("other_weights", "has another order of its samples than rank 0's"),
        std::pair("same_order", "no error")})
    for (const auto& error : errors_of_ranks(probe)) EXPECT_THAT(error, HasSubstr(words)) << probe;
}

LEVIN_PROBE(uneven_streams) {
  fit_and_answer(arguments.at(0), Stream{batches(own_rank() == 0 ? 5 : 3)});
}

TEST(UnevenRanks, AStreamThatEndsEarlyIsNoticed) {
  for (const auto& error : errors_of_ranks("uneven_streams"))
    EXPECT_THAT(error, HasSubstr("its train_dataloader ended after 3 batches"));
}

LEVIN_PROBE(even_streams) {
  fit_and_answer(arguments.at(0), Stream{batches(3)});
}

TEST(UnevenRanks, StreamsOfTheSameLengthTrain) {
  for (const auto& error : errors_of_ranks("even_streams")) EXPECT_EQ(error, "no error");
}

/// Tells this rank alone to stop, in the middle of an epoch.
struct StopsRank1 : Callback {
  void on_train_batch_end(TrainerContext& ctx, const StepOutput&, const AnyBatch&, int64_t batch_idx) override {
    if (own_rank() == 1 && batch_idx == 1) ctx.stop("enough");
  }
};

LEVIN_PROBE(stop_of_one_rank) {
  fit_and_answer(arguments.at(0), batches(5), {std::make_shared<StopsRank1>()});
}

TEST(UnevenRanks, AStopOfOneRankInTheMiddleOfAnEpochIsNoticed) {
  for (const auto& error : errors_of_ranks("stop_of_one_rank"))
    EXPECT_THAT(error, HasSubstr("it was told to stop after 2 batches of epoch 0"));
}

/// As above, at a place where nothing but the end of the epoch follows.
struct StopsRank1AtTheEnd : Callback {
  void on_train_epoch_end(TrainerContext& ctx) override {
    if (own_rank() == 1) ctx.stop("enough");
  }
};

LEVIN_PROBE(stop_of_one_rank_at_the_end) {
  fit_and_answer(arguments.at(0), batches(3), {std::make_shared<StopsRank1AtTheEnd>()});
}

TEST(UnevenRanks, AStopOfOneRankAtTheEndOfAnEpochStopsAll) {
  for (const auto& error : errors_of_ranks("stop_of_one_rank_at_the_end")) EXPECT_EQ(error, "no error");
}

}  // namespace
}  // namespace levin::tuning_test
