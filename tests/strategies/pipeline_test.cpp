// Training with models that are cut into stages, against one process on the whole batch.
#include "levin/strategies/pipeline_parallel.h"

#include <chrono>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/fabric/microbatches.h"
#include "levin/models/decoder.h"
#include "levin/models/text_encoder.h"
#include "levin/models/vit.h"
#include "levin/nn/checkpointing.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/tie.h"
#include "levin/testing/error_of.h"
#include "tests/strategies/training.h"

namespace levin::pipeline_tests {
namespace {

using namespace levin::testing;

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A model and a loss of it that is a mean over rows.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Tensor&)> loss;
  std::function<Tensor(int64_t step, int64_t rows)> batch;
};

Tensor tokens_of(int64_t step, int64_t rows) {
  torch::manual_seed(100 + step);
  return torch::randint(0, 40, {rows, 6}, torch::kLong);
}

Subject decoder(models::DecoderOptions options) {
  torch::manual_seed(1);
  options.vocab_size = 40;
  options.max_positions = 8;
  options.num_heads = 2;
  options.hidden_dim = 16;
  models::Decoder model(options);
  for (auto& parameter : model->parameters()) parameter.data().add_(torch::randn_like(parameter) * 0.05);
  return {model.ptr(), [model](const Tensor& tokens) mutable { return model(tokens, tokens.roll(-1, 1)); }, tokens_of};
}

Subject gpt(int64_t layers) {
  return decoder({.num_layers = layers});
}

Subject llama(int64_t layers) {
  return decoder({.num_layers = layers,
                  .bias = false,
                  .norm = "rms",
                  .activation = "silu_gated",
                  .positions = "rotary",
                  .tied_head = false,
                  .kv_heads = 1});
}

Subject bert(int64_t layers) {
  torch::manual_seed(1);
  models::TextEncoderOptions options;
  options.body = {.vocab_size = 40, .max_positions = 8, .num_layers = layers, .num_heads = 2, .hidden_dim = 16};
  options.body.block = "post";
  options.body.causal = false;
  options.body.final_norm = false;
  options.head = "masked_lm";
  models::TextEncoder model(options);
  for (auto& parameter : model->parameters()) parameter.data().add_(torch::randn_like(parameter) * 0.05);
  return {model.ptr(),
          [model](const Tensor& tokens) mutable {
            return torch::nn::functional::cross_entropy(model(tokens).flatten(0, 1), tokens.flip({1}).flatten());
          },
          tokens_of};
}

Subject vit(int64_t layers) {
  torch::manual_seed(1);
  auto model = models::vit({.image_size = 8,
                            .patch_size = 4,
                            .num_layers = layers,
                            .num_heads = 2,
                            .hidden_dim = 16,
                            .mlp_dim = 24,
                            .num_classes = 3});
  for (auto& parameter : model->parameters()) parameter.data().add_(torch::randn_like(parameter) * 0.1);
  return {model.ptr(),
          [model](const Tensor& images) mutable {
            return (model->forward(images) * torch::linspace(-1, 1, 3)).tanh().mean();
          },
          [](int64_t step, int64_t rows) {
            torch::manual_seed(100 + step);
            return torch::randn({rows, 3, 8, 8});
          }};
}

Subject subject_of(const std::string& name, int64_t layers) {
  return name == "gpt" ? gpt(layers) : name == "llama" ? llama(layers) : name == "bert" ? bert(layers) : vit(layers);
}

struct Setting {
  int64_t rows = 8;
  int steps = 10;
  int accumulate = 1;
  double clip = 0;
  bool delays = false;
  bool checkpoints = false;
};

/// Losses, then gradients of the first step, then parameters; what is not on this rank is empty.
std::vector<Tensor> trained(Collective& group, Subject subject, const StrategyChoice& choice, const Setting& setting) {
  subject.module->eval();  // without dropout
  if (group.rank() > 0)    // the values of rank 0 count
    for (auto& parameter : unique_parameters(*subject.module)) parameter.data().add_(1);
  std::vector<Attachment> checkpoints;
  if (setting.checkpoints)
    checkpoints = attach_checkpointing(*subject.module, policy::repeated());
  const auto params = unique_parameters(*subject.module);
  torch::optim::SGD optimizer(params, torch::optim::SGDOptions(0.05).momentum(0.9));
  Trainee trainee(group, choice, *subject.module);
  auto* strategy = dynamic_cast<PipelineStrategy*>(&trainee.strategy());
  std::mt19937 random(static_cast<unsigned>(group.rank()) + 7);
  if (strategy && setting.delays)
    strategy->runner()->set_observer([&](const PipelineAction&) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3 == 0 ? random() % 4000 : 0));
    });
  std::vector<Tensor> losses, grads;
  for (int step = 0; step < setting.steps; ++step) {
    const auto batch = subject.batch(step, setting.rows);
    const auto place = trainee.strategy().data_place();
    const auto own = batch.chunk(place.size, 0)[static_cast<size_t>(place.rank)];
    auto mean = torch::zeros({});
    const auto windows = own.chunk(setting.accumulate, 0);
    for (size_t i = 0; i < windows.size(); ++i) {
      trainee.set_sync(i + 1 == windows.size());
      const auto rows = windows[i].size(0);
      const int parts = trainee.sync() ? trainee.sync()->microbatches(rows) : 0;
      if (parts == 0) {
        const auto loss = trainee.forward([&] { return subject.loss(windows[i]); }) / setting.accumulate;
        trainee.backward(loss);
        mean += loss.detach();
        continue;
      }
      const auto counts = levin::detail::rows_of_parts(rows, parts);
      const auto micro = levin::detail::split_rows(windows[i], counts);
      MicrobatchStep work{.rows = counts, .shapes = {}, .forward = {}, .scale = {}};
      for (const auto& part : micro) work.shapes.push_back(levin::detail::shapes_of(part));
      work.forward = [&](size_t part) { return trainee.forward([&] { return subject.loss(micro[part]); }); };
      work.scale = [&](const Tensor& loss) { return loss / setting.accumulate; };
      mean += trainee.sync()->run_microbatches(work) / setting.accumulate;
    }
    if (place.size > 1) group.all_reduce(mean, ReduceOp::kMean);
    losses.push_back(mean);
    if (step == 0)
      for (const auto& param : params) grads.push_back(param.grad().defined() ? param.grad().clone() : torch::empty({0}));
    if (setting.clip > 0) {
      const auto norm = trainee.strategy().grad_norm(params, 2);
      losses.push_back(norm);
      for (const auto& param : params)
        if (param.grad().defined()) param.grad().mul_(std::min(1.0, setting.clip / norm.item<double>()));
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<Tensor> result{torch::stack(losses)};
  for (const auto& grad : grads) result.push_back(grad);
  for (const auto& param : params) result.push_back(param.detach().clone());
  return result;
}

/// What the ranks have together. Tensors that several have must be equal.
std::vector<Tensor> merged(const std::vector<RankResult>& ranks) {
  std::vector<Tensor> whole = ranks.front().tensors;
  for (const auto& rank : ranks)
    for (size_t i = 0; i < whole.size() && i < rank.tensors.size(); ++i) {
      if (rank.tensors[i].numel() == 0) continue;
      if (whole[i].numel() > 0) {
        EXPECT_TRUE(torch::allclose(whole[i], rank.tensors[i], 1e-6, 1e-7)) << "ranks differ in tensor " << i;
      }
      whole[i] = rank.tensors[i];
    }
  return whole;
}

void expect_same(const std::vector<Tensor>& whole, const std::vector<Tensor>& expected, const std::string& what) {
  ASSERT_EQ(whole.size(), expected.size()) << what;
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole[i].sizes(), expected[i].sizes()) << what << ", tensor " << i;
    EXPECT_TRUE(torch::allclose(whole[i], expected[i], 1e-5, 1e-5))
        << what << ", tensor " << i << ": " << (whole[i] - expected[i]).abs().max().item<double>();
  }
}

std::vector<Tensor> alone(const std::string& name, int64_t layers, const Setting& setting = {}) {
  return run_ranks(1, [&](Collective& group) {
    return trained(group, subject_of(name, layers), StrategyChoice("single_device"), setting);
  })[0].tensors;
}

void expect_equal_training(const std::string& name, int64_t layers, int ranks, const PipelineOptions& options,
                           const Setting& setting, const std::vector<Tensor>& expected) {
  const auto results = run_ranks(
      ranks, [&](Collective& group) { return trained(group, subject_of(name, layers), options, setting); });
  expect_same(merged(results), expected,
              fmt::format("{} {} over {} ranks, {} micro-batches", name, options.schedule, ranks,
                          options.microbatches));
}

TEST(Pipeline, TrainsAGptOverTwoRanks) {
  const auto expected = alone("gpt", 4);
  for (const auto* schedule : {"gpipe", "1f1b"})
    expect_equal_training("gpt", 4, 2, {.schedule = schedule, .microbatches = 4}, {}, expected);
}

}  // namespace
}  // namespace levin::pipeline_tests
