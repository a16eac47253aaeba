// The Trainer on a GPU: the weights of Fabric's loop in every precision, metrics that stay on the device, exact resume.
#include <filesystem>

#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/levin.h"
#include "levin/testing/gpu.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

Tensor data(int64_t n, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn({n, 16}, generator, at::kFloat);
}

/// Two layers with dropout between them.
struct Net : TrainModule {
  Net()
      : first(register_module("first", torch::nn::Linear(16, 64))),
        drop(register_module("drop", torch::nn::Dropout(0.2))),
        last(register_module("last", torch::nn::Linear(64, 1))) {}
  Tensor loss_of(const Tensor& x) { return last(drop(torch::relu(first(x)))).squeeze(1).sub(x.sum(1)).pow(2).mean(); }
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    const auto loss = loss_of(batch["x"]);
    EXPECT_TRUE(loss.is_cuda());
    log("loss", loss, {.on_step = true, .on_epoch = true});
    return loss;
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    log("val_loss", loss_of(batch["x"]));
    return {};
  }
  Optimizers configure_optimizers() override { return optim::AdamW(parameters(), {.lr = 1e-2}); }

  torch::nn::Linear first;
  torch::nn::Dropout drop;
  torch::nn::Linear last;
};

DataLoader<Batch> loader() {
  return make_loader(TensorDataset({{"x", data(256, 1)}}), {.batch_size = 16, .shuffle = true});
}

std::vector<Tensor> weights(const torch::nn::Module& module) {
  std::vector<Tensor> all;
  for (const auto& p : module.parameters()) all.push_back(p.detach().cpu().clone());
  return all;
}

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(a[i].equal(b[i])) << i << ": " << (a[i].to(at::kFloat) - b[i].to(at::kFloat)).abs().max().item<float>();
}

struct TrainerGpu : testing::GpuTest, ::testing::WithParamInterface<const char*> {};
using TrainerGpuResume = testing::GpuTest;

TEST_P(TrainerGpu, EqualsFabric) {
  torch::manual_seed(1);
  Net net;
  const auto start = weights(net);
  torch::manual_seed(2);
  Trainer trainer({.accelerator = "cuda",
                   .devices = 1,
                   .precision = GetParam(),
                   .logger = false,
                   .max_epochs = 2,
                   .enable_checkpointing = false,
                   .enable_progress_bar = false,
                   .enable_model_summary = false,
                   .gradient_clip_val = 1.0});
  trainer.fit(net, loader());
  EXPECT_EQ(trainer.global_step(), 32);
  EXPECT_TRUE(trainer.metric("loss_epoch").has_value());

  auto other = std::make_shared<Net>();
  {
    at::NoGradGuard no_grad;
    auto parameters = other->parameters();
    for (size_t i = 0; i < start.size(); ++i) parameters[i].copy_(start[i]);
  }
  torch::manual_seed(2);
  Fabric fabric({.accelerator = "cuda", .devices = 1, .precision = GetParam()});
  auto first = fabric.setup(other);
  auto optimizer = fabric.setup_optimizers(optim::AdamW(other->parameters(), {.lr = 1e-2}));
  auto batches = fabric.setup_dataloaders(loader());
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto& batch : batches) {
      const auto loss = first.call(&Net::loss_of, batch["x"]);
      optimizer.zero_grad();
      fabric.backward(loss);
      fabric.clip_gradients(optimizer, {.max_norm = 1.0, .error_if_nonfinite = false});
      optimizer.step();
    }
  expect_equal(weights(net), weights(*other));
}

/// Without a loss for every second batch.
struct Skipping : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    if (at.batch_idx % 2 == 0) return {};
    return Net::training_step(batch, at);
  }
};

TEST_P(TrainerGpu, ASkippedBatchLeavesTheWeightsAsTheyAre) {
  const auto fit = [](Net& net, int64_t batches) {
    Trainer trainer({.accelerator = "cuda",
                     .devices = 1,
                     .precision = GetParam(),
                     .logger = false,
                     .max_epochs = 1,
                     .limit_train_batches = batches,
                     .enable_checkpointing = false,
                     .enable_progress_bar = false,
                     .enable_model_summary = false});
    trainer.fit(net, loader());
    return trainer.global_step();
  };
  Skipping net;
  const auto start = weights(net);
  EXPECT_EQ(fit(net, 1), 1);
  expect_equal(weights(net), start);
  EXPECT_EQ(fit(net, 16), 16);  // the first scales of 16-mixed may overflow
  EXPECT_FALSE(weights(net)[0].equal(start[0]));
}
INSTANTIATE_TEST_SUITE_P(Precisions, TrainerGpu, ::testing::Values("32-true", "16-mixed", "bf16-mixed"));

TEST_F(TrainerGpuResume, IsExact) {
  const testing::TemporaryFolder folder;
  const auto& root = folder.path();
  const auto options = [&](int64_t epochs, int64_t steps) {
    return TrainerOptions{.accelerator = "cuda",
                          .devices = 1,
                          .logger = "csv",
                          .max_epochs = epochs,
                          .max_steps = steps,
                          .log_every_n_steps = 5,
                          .enable_checkpointing = false,
                          .enable_progress_bar = false,
                          .enable_model_summary = false,
                          .default_root_dir = root};
  };
  struct SaveAt : Callback {
    std::filesystem::path path;
    void on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) override {
      if (run.global_step() == 21) run.save_checkpoint(path);
    }
  };
  const auto val = make_loader(TensorDataset({{"x", data(64, 5)}}), {.batch_size = 16});
  torch::manual_seed(3);
  Net whole;
  auto with_save = options(3, -1);
  SaveAt save;
  save.path = root / "at_21.ckpt";
  with_save.callbacks = {std::move(save)};
  Trainer(with_save).fit(whole, loader(), val);

  const auto log = root / "levin_logs/version_0/metrics.csv";
  const auto rows = read_file(log);

  torch::manual_seed(99);
  Net resumed;
  Trainer second(options(3, -1));
  second.fit(resumed, loader(), val, {.ckpt_path = (root / "at_21.ckpt").string()});
  expect_equal(weights(whole), weights(resumed));
  EXPECT_EQ(read_file(log), rows);
}

}  // namespace
}  // namespace levin
