#pragma once

// Models that ranks train together, against one process on the whole batch.
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/models/folder.h"
#include "levin/models/vit.h"
#include "levin/nn/tie.h"
#include "levin/optim/adam.h"
#include "levin/testing/paths.h"
#include "tests/strategies/training.h"

namespace levin::testing {

/// A model and a loss of it that is a mean over rows.
struct Subject {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Tensor&)> loss;
  /// Eight rows.
  std::function<Tensor(int64_t step)> batch;
};

inline Tensor tokens_of(int64_t step, int64_t rows = 4) {
  torch::manual_seed(100 + step);
  return torch::randint(0, 48, {rows, 8}, torch::kLong);
}

inline Subject language(const std::string& folder) {
  auto model = std::make_shared<models::LanguageModel>(
      models::open_model(std::filesystem::path(source_dir()) / "tests/models/fixtures/language" / folder));
  model->module().train();
  const auto loss = [model](const Tensor& tokens) {
    if (model->decoder) return model->decoder(tokens, models::next_tokens(tokens));
    return torch::nn::functional::cross_entropy(model->encoder(tokens).flatten(0, 1), tokens.flip({1}).flatten());
  };
  return {folder, model->module().shared_from_this(), loss, [](int64_t step) { return tokens_of(step, 8); }};
}

inline Subject vit() {
  torch::manual_seed(1);
  auto model = models::vit({.image_size = 8,
                            .patch_size = 4,
                            .num_layers = 4,
                            .num_heads = 4,
                            .hidden_dim = 16,
                            .mlp_dim = 24,
                            .num_classes = 3});
  for (auto& parameter : model->parameters()) parameter.data().add_(torch::randn_like(parameter) * 0.1);
  const auto loss = [model](const Tensor& images) mutable {
    return (model->forward(images) * torch::linspace(-1, 1, 3)).tanh().mean();
  };
  return {"vit", model.ptr(), loss, [](int64_t step) {
            torch::manual_seed(100 + step);
            return torch::randn({8, 3, 8, 8});
          }};
}

/// A GPT with a tied head and as many blocks: for more stages than the fixtures have blocks.
inline Subject gpt(int64_t layers) {
  torch::manual_seed(1);
  models::Decoder model(models::DecoderOptions{
      .vocab_size = 48, .max_positions = 8, .num_layers = layers, .num_heads = 4, .hidden_dim = 16});
  for (auto& parameter : model->parameters()) parameter.data().add_(torch::randn_like(parameter) * 0.05);
  const auto loss = [model](const Tensor& tokens) mutable { return model(tokens, models::next_tokens(tokens)); };
  return {fmt::format("gpt of {}", layers), model.ptr(), loss, [](int64_t step) { return tokens_of(step, 8); }};
}

/// Folders of language models, "vit", or a GPT ("gpt of 4").
inline Subject subject_of(const std::string& name) {
  if (name == "vit") return vit();
  constexpr std::string_view kGpt = "gpt of ";
  return name.starts_with(kGpt) ? gpt(std::stoll(name.substr(kGpt.size()))) : language(name);
}

/// The fixtures have dropout, which no two layouts draw alike.
inline void without_dropout(Subject& subject) {
  subject.module->eval();
}

struct Outcome {
  std::vector<Tensor> losses, grads, params;
  double norm = 0;
};

struct TrainedOptions {
  int accumulate = 1;
  std::string precision = "32-true";
  /// Largest norm of gradients; 0: they are not clipped.
  double clip = 0;
  /// Ranks sleep at random before forward, backward and the step.
  bool delays = false;
};

/// What ranks have of tensors, whole, on every rank; `params` say where it lies.
inline std::vector<Tensor> whole_tensors(Strategy& strategy, const std::vector<Tensor>& params,
                                         const std::vector<Tensor>& values) {
  std::vector<Tensor> all;
  auto* known = strategy.shards();
  if (!known) {
    for (const auto& value : values) all.push_back(value.detach().clone());
    return all;
  }
  TensorShards places(known->group());
  StateDict state;
  for (size_t i = 0; i < params.size(); ++i) {
    if (const auto* place = known->find(params[i])) places.add(values[i], *place);
    state[fmt::format("{:04}", i)] = values[i];
  }
  for (const auto& [name, value] : full_state_dict(state, places, {.rank0_only = false}))
    all.push_back(value.to_tensor().detach().clone());
  return all;
}

/// Forward and backward of a batch; its loss. A strategy that computes it in micro-batches runs them itself.
inline Tensor run_batch(
    Trainee& trainee, const Subject& subject, const Tensor& batch, double scale,
    const std::function<void()>& pause = [] {}) {
  pause();
  if (const int parts = trainee.sync() ? trainee.sync()->microbatches(batch.size(0)) : 0; parts > 0) {
    const auto micro = batch.tensor_split(parts, 0);
    MicrobatchStep step;
    for (const auto& part : micro) {
      step.rows.push_back(part.size(0));
      step.shapes.push_back(fmt::format("{}", part.sizes()));
    }
    step.forward = [&](size_t i) {
      pause();
      return subject.loss(micro[i]);
    };
    step.scale = [&](const Tensor& loss) { return loss * scale; };
    return trainee.sync()->run_microbatches(step) * scale;
  }
  const auto loss = trainee.forward([&] { return subject.loss(batch); }) * scale;
  pause();
  trainee.backward(loss);
  return loss.detach();
}

/// Steps of SGD with momentum; gradients are those of the first step, all tensors whole.
inline Outcome trained(Collective& group, Subject subject, const StrategyChoice& choice, int steps,
                       const TrainedOptions& options = {}) {
  without_dropout(subject);
  const auto params = unique_parameters(*subject.module);
  if (group.rank() > 0)  // the values of rank 0 count
    for (const auto& parameter : params) parameter.data().add_(1);
  Trainee trainee(group, choice, *subject.module, at::kCPU, options.precision);
  torch::optim::SGD optimizer(params, torch::optim::SGDOptions(0.05).momentum(0.9));
  std::mt19937 random(static_cast<unsigned>(group.rank()));
  const auto pause = [&] {
    if (options.delays) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 12));
  };
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    const auto place = trainee.strategy().data_place();
    const auto own = subject.batch(step).chunk(place.size, 0)[static_cast<size_t>(place.rank)];
    auto mean = torch::zeros({});
    const auto parts = own.chunk(options.accumulate, 0);
    for (size_t i = 0; i < parts.size(); ++i) {
      trainee.set_sync(i + 1 == parts.size());
      mean += run_batch(trainee, subject, parts[i], 1.0 / options.accumulate, pause);
    }
    if (place.size > 1) group.all_reduce(mean, ReduceOp::kMean);
    outcome.losses.push_back(mean);
    const auto norm = trainee.strategy().grad_norm(params, 2).item<double>();
    if (step == 0) {
      outcome.norm = norm;
      std::vector<Tensor> grads;
      for (const auto& param : params)
        grads.push_back(param.grad().defined() ? param.grad() : torch::zeros_like(param));
      outcome.grads = whole_tensors(trainee.strategy(), params, grads);
    }
    if (options.clip > 0)
      for (const auto& param : params)
        if (param.grad().defined()) param.grad().mul_(std::min(1.0, options.clip / (norm + 1e-6)));
    pause();
    optimizer.step();
    clear_grads(params);
  }
  outcome.params = whole_tensors(trainee.strategy(), params, params);
  return outcome;
}

inline void expect_close(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted, const std::string& what,
                         double tolerance = 1e-5) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const auto scale = std::max(1.0, wanted[i].abs().max().item<double>());
    ASSERT_EQ(got[i].sizes(), wanted[i].sizes()) << what << " " << i;
    EXPECT_LT((got[i] - wanted[i]).abs().max().item<double>() / scale, tolerance) << what << " " << i;
  }
}

inline void expect_close(const Outcome& got, const Outcome& wanted, const std::string& what, double tolerance = 1e-5) {
  expect_close(got.losses, wanted.losses, what + " loss", tolerance);
  expect_close(got.grads, wanted.grads, what + " gradient", tolerance);
  expect_close(got.params, wanted.params, what + " parameter", tolerance);
  EXPECT_NEAR(got.norm, wanted.norm, tolerance * std::max(1.0, wanted.norm)) << what;
}

inline std::shared_ptr<Collective> one_rank() {
  return join_group({}, at::kCPU);
}

/// Loads when `from` is there, trains steps [first, last) of AdamW, saves when `to` is there; the full parameters.
/// `losses`: of each step, the mean over all ranks.
inline std::vector<Tensor> train_part(Collective& group, const StrategyChoice& choice, int first, int last,
                                      const std::filesystem::path& from, const std::filesystem::path& to,
                                      const std::string& model = "llama", std::vector<Tensor>* losses = nullptr) {
  auto subject = subject_of(model);
  without_dropout(subject);
  const auto params = unique_parameters(*subject.module);
  Trainee trainee(group, choice, *subject.module);
  // A small eps would make whole steps of the last bits of gradients that are almost zero.
  Optimizer optimizer = optim::AdamW(params, {.lr = 1e-2, .eps = 1e-3});
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  auto* shards = trainee.strategy().shards();
  const State state{{"model", subject.module}, {"optimizer", optimizer}};
  if (!from.empty()) load_checkpoint(from, state, {.shards = shards});
  for (int step = first; step < last; ++step) {
    const auto place = trainee.strategy().data_place();
    const auto own = subject.batch(step).chunk(place.size, 0)[static_cast<size_t>(place.rank)];
    auto loss = run_batch(trainee, subject, own, 1);
    if (losses) {
      if (place.size > 1) group.all_reduce(loss, ReduceOp::kMean);
      losses->push_back(loss);
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  if (!to.empty() && (shards || group.rank() == 0))
    save_checkpoint(to, state, {.world_size = group.size(), .shards = shards});
  std::vector<Tensor> whole;
  const auto all =
      shards ? full_state_dict(*subject.module, *shards, {.rank0_only = false}) : module_state_dict(*subject.module);
  for (const auto& [name, value] : all) whole.push_back(value.to_tensor().detach().clone());
  return whole;
}

}  // namespace levin::testing
