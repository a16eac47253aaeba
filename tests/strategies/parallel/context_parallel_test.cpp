// Training with sequences that several ranks have together, against one process on the whole batch.
#include "levin/strategies/context_parallel.h"

#include <cmath>
#include <csignal>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unistd.h>

#include "levin/devices/memory_counter.h"
#include "levin/models/folder.h"
#include "levin/models/vit.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/tensor/split.h"
#include "levin/testing/error_of.h"
#include "levin/testing/forwarding_collective.h"
#include "levin/testing/paths.h"
#include "tests/strategies/training.h"

namespace levin::context_training_tests {
namespace {

using namespace levin::testing;

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A model and a loss of it.
struct Subject {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Tensor&)> loss;
  std::function<Tensor(int64_t)> batch;
};

/// Lengths that do not divide by the ranks.
Tensor tokens_of(int64_t step) {
  torch::manual_seed(100 + step);
  return torch::randint(0, 48, {4, step % 2 == 0 ? 13 : 12}, torch::kLong);
}

/// Rows of unequal length: padding on the left and on the right, and two texts in one row.
Tensor mask_of(const Tensor& tokens) {
  auto mask = torch::ones_like(tokens);
  mask[0].slice(0, 0, 5) = 0;
  if (tokens.size(0) > 1) mask[1].slice(0, 9) = 0;
  return mask;
}
Tensor texts_of(const Tensor& tokens) {
  auto mask = mask_of(tokens);
  mask[-1].slice(0, 6) = 2;
  return mask;
}

/// Targets of which most are ignored: ranks have unequal numbers of them, and some have none.
Tensor few_targets(const Tensor& tokens) {
  auto targets = models::next_tokens(tokens);
  targets.slice(1, 2) = models::kIgnoredToken;
  targets[0][10] = 7;
  return targets;
}

/// "masked" in front: with padding; "texts": with several texts in a row.
Subject language(const std::string& name) {
  const bool masked = name.starts_with("masked "), texts = name.starts_with("texts ");
  const auto folder = name.substr(masked || texts ? name.find(' ') + 1 : 0);
  auto model = std::make_shared<models::LanguageModel>(
      models::open_model(std::filesystem::path(source_dir()) / "tests/models/fixtures/language" / folder));
  const auto loss = [model, masked, texts](const Tensor& tokens) {
    const auto mask = masked ? mask_of(tokens) : texts ? texts_of(tokens) : Tensor();
    if (model->decoder && model->decoder->head) {
      const auto targets = masked ? few_targets(tokens) : models::next_tokens(tokens);
      return model->decoder(tokens, targets, mask);
    }
    const auto logits = model->decoder ? model->decoder(tokens, Tensor(), mask) : model->encoder(tokens, mask);
    // A loss of the program's own, of what the model gives.
    return (logits * torch::linspace(-1, 1, logits.size(-1))).tanh().sum() / tokens.size(0);
  };
  return {name, model->module().shared_from_this(), loss, tokens_of};
}

Subject vit() {
  torch::manual_seed(1);
  auto model = models::vit({.image_size = 8,
                            .patch_size = 2,
                            .num_layers = 2,
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
            return torch::randn({4, 3, 8, 8});
          }};
}

Subject subject_of(const std::string& name) {
  return name == "vit" ? vit() : language(name);
}

/// Ranks are late by turns.
struct Delay : Interceptor {
  explicit Delay(int rank) : random(static_cast<unsigned>(rank) + 1) {}
  void around(Call& call) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 3));
    call.proceed();
  }
  std::minstd_rand random;
};

struct Outcome {
  std::vector<Tensor> losses, grads, params;
  double norm = 0;
};

/// Steps of SGD with momentum; gradients are those of the first one.
Outcome trained(Collective& group, Subject subject, const ContextParallelOptions& options, int steps,
                bool delayed = false, int accumulate = 1) {
  subject.module->eval();  // the fixtures have dropout, which no two layouts draw alike
  if (group.rank() > 0)    // the values of rank 0 count
    for (auto& parameter : unique_parameters(*subject.module)) parameter.data().add_(1);
  const auto delay = std::make_shared<Delay>(group.rank());
  if (delayed)
    for (auto& module : subject.module->modules())
      if (auto* unit = dynamic_cast<Unit*>(module.get())) unit->attach(delay, Order::kInnermost).keep();
  Trainee trainee(group, group.size() == 1 ? StrategyChoice("single_device") : StrategyChoice(options),
                  *subject.module);
  const auto params = unique_parameters(*subject.module);
  torch::optim::SGD optimizer(params, torch::optim::SGDOptions(0.05).momentum(0.9));
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    const auto place = trainee.strategy().data_place();
    const auto own = subject.batch(step).chunk(place.size, 0)[static_cast<size_t>(place.rank)];
    auto mean = torch::zeros({});
    const auto parts = own.chunk(accumulate, 0);
    for (size_t i = 0; i < parts.size(); ++i) {
      trainee.set_sync(i + 1 == parts.size());
      const auto loss = trainee.forward([&] { return subject.loss(parts[i]); }) / accumulate;
      trainee.backward(loss);
      mean += loss.detach();
    }
    if (place.size > 1) {
      group.all_reduce(mean, ReduceOp::kMean);
    }
    outcome.losses.push_back(mean);
    if (step == 0) {
      outcome.norm = trainee.strategy().grad_norm(params, 2).item<double>();
      for (const auto& param : params) outcome.grads.push_back(param.grad().clone());
    }
    optimizer.step();
    clear_grads(params);
  }
  outcome.params = values(params);
  return outcome;
}

void expect_close(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const auto scale = std::max(1.0, wanted[i].abs().max().item<double>());
    ASSERT_EQ(got[i].sizes(), wanted[i].sizes()) << what << " " << i;
    EXPECT_LT((got[i] - wanted[i]).abs().max().item<double>() / scale, 1e-5) << what << " " << i;
  }
}

std::shared_ptr<Collective> one_rank() {
  return join_group({}, at::kCPU);
}

struct TrainingCase {
  std::string name;
  int ranks;
  ContextParallelOptions options;
  /// Folders of language models, or "vit".
  std::vector<std::string> models;
  int steps = 10;
  bool delayed = false;
};

class ContextTraining : public ::testing::TestWithParam<TrainingCase> {};

TEST_P(ContextTraining, EqualsOneProcess) {
  const auto& [case_name, ranks, options, names, steps, delayed] = GetParam();
  std::vector<Outcome> expected;
  for (const auto& name : names) expected.push_back(trained(*one_rank(), subject_of(name), {}, steps));
  run_ranks(ranks, [&, &given = options, &all = names, count = steps, late = delayed](Collective& group) {
    for (size_t i = 0; i < all.size(); ++i) {
      const auto got = trained(group, subject_of(all[i]), given, count, late);
      expect_close(got.losses, expected[i].losses, all[i] + " loss");
      expect_close(got.grads, expected[i].grads, all[i] + " gradient");
      expect_close(got.params, expected[i].params, all[i] + " parameter");
      EXPECT_NEAR(got.norm, expected[i].norm, 1e-5 * std::max(1.0, expected[i].norm)) << all[i];
    }
  });
}

// Learned positions (gpt2), rotary and heads of keys (llama), ALiBi (bloom), a window (mistral), a soft cap besides
// (gemma2), both ways (bert), positions by ids (roberta), classes of whole sequences.
INSTANTIATE_TEST_SUITE_P(
    Ranks, ContextTraining,
    ::testing::Values(
        TrainingCase{"ring2", 2, {}, {"llama"}},
        TrainingCase{"ring2_models", 2, {}, {"gpt2", "bloom", "bert_masked", "vit"}, all_meshes() ? 10 : 2},
        TrainingCase{
            "ring2_others",
            2,
            {},
            {"mistral", "gemma2", "qwen3", "roberta_masked", "bert_sequence", "llama_sequence", "llama_dynamic"},
            all_meshes() ? 2 : 1},
        TrainingCase{
            "ring2_masks",
            2,
            {},
            {"masked llama", "texts llama", "masked gpt2", "texts bloom", "masked mistral", "masked bert_masked"},
            all_meshes() ? 2 : 1},
        TrainingCase{"ring3_late", 3, {}, {"llama", "mistral", "bert_masked", "texts bloom"}, 1, /*delayed=*/true},
        TrainingCase{"ring4", 4, {}, {"llama", "vit"}, 2},
        TrainingCase{"gathered3", 3, {.rotate = ContextRotation::kAllGather}, {"llama", "bert_masked"}, 2},
        // By heads: four, and two of keys; ALiBi's slopes are of the rank's heads.
        TrainingCase{
            "heads2", 2, {.rotate = ContextRotation::kAllToAll}, {"llama", "texts bloom", "mistral", "vit"}, 1},
        TrainingCase{"unbalanced3", 3, {.balance = false}, {"mistral"}, 2},
        TrainingCase{"data2_context2", 4, {.size = 2}, {"gpt2", "bert_masked"}, 2, /*delayed=*/true}),
    [](const auto& each) { return each.param.name; });

TEST(ContextParallel, CheckpointedBlocksAndAccumulatedGradientsAreTheSame) {
  const auto alone = trained(*one_rank(), language("llama"), {}, 3, false, /*accumulate=*/2);
  run_ranks(2, [&](Collective& group) {
    auto subject = language("llama");
    const auto checkpoints = attach_checkpointing(*subject.module, policy::by_class<models::DecoderBlock>());
    const auto got = trained(group, std::move(subject), {}, 3, false, /*accumulate=*/2);
    expect_close(got.grads, alone.grads, "gradient");
    expect_close(got.params, alone.params, "parameter");
  });
}

models::DecoderOptions small(int64_t layers) {
  return {.vocab_size = 64,
          .max_positions = 64,
          .num_layers = layers,
          .num_heads = 4,
          .hidden_dim = 32,
          .norm = "rms",
          .activation = "silu_gated",
          .positions = "rotary",
          .tied_head = false,
          .kv_heads = 2};
}

/// Heads over two ranks, tokens over two others.
TEST(ContextParallel, GoesWithTensorParallel) {
  const auto run = [](Collective& group, bool spread, bool sequence) {
    torch::manual_seed(3);
    auto model = models::decoder(small(2));
    std::unique_ptr<Mesh> mesh;
    if (spread) {
      mesh = std::make_unique<Mesh>(std::shared_ptr<Collective>(&group, [](Collective*) {}),
                                    std::vector<std::pair<std::string, int>>{{"context", 2}, {"tensor", 2}});
      split_tensors(*model, {.size = 2, .sequence_parallel = sequence}, mesh->shared_group("tensor"));
      split_context(*model, {}, mesh->shared_group("context"));
    }
    torch::manual_seed(4);
    const auto ids = torch::randint(0, 64, {2, 16}, torch::kLong);
    const auto loss = model(ids, models::next_tokens(ids));
    loss.backward();
    auto grad = model->blocks[0]->mlp->up->weight.grad().clone();
    if (spread) {
      mesh->group("context").all_reduce(grad, ReduceOp::kMean);
      grad = mesh->group("tensor").all_gather(grad).flatten(0, 1);
    }
    return std::vector<Tensor>{loss.detach(), grad};
  };
  const auto expected = run(*one_rank(), false, false);
  run_ranks(4, [&](Collective& group) {
    for (const bool sequence : {false, true}) expect_close(run(group, true, sequence), expected, "tensor x context");
  });
}

/// The loss of the load of experts is over all tokens of the batch, not over those of a rank.
TEST(ContextParallel, TheLoadOfExpertsIsThatOfTheSequence) {
  const auto run = [](Collective& group) {
    auto options = small(2);
    options.experts = {.count = 4, .per_token = 2, .width = 16};
    options.mlp_bias = false;
    options.balance_loss = 0.5;
    torch::manual_seed(3);
    auto model = models::decoder(options);
    if (group.size() > 1) split_context(*model, {}, {&group, [](Collective*) {}});
    torch::manual_seed(4);
    const auto ids = torch::randint(0, 64, {2, 16}, torch::kLong);
    const auto loss = model(ids, models::next_tokens(ids));
    loss.backward();
    std::vector<Tensor> seen{loss.detach()};
    for (const auto& parameter : model->parameters()) {
      seen.push_back(parameter.grad().clone());
      group.all_reduce(seen.back(), ReduceOp::kMean);
    }
    return seen;
  };
  const auto expected = run(*one_rank());
  run_ranks(2, [&](Collective& group) { expect_close(run(group), expected, "loss and gradients"); });
}

/// Counts what is sent.
class Counting : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  void run(std::string_view operation, const std::function<void(c10d::ProcessGroup&)>& body) override {
    constexpr std::string_view kRotate = "rotate ";
    constexpr std::string_view kToAll = "all_to_all of ";
    if (operation.starts_with(kRotate)) {
      ++rotated;
      bytes += std::stoll(std::string(operation.substr(kRotate.size())));
    } else if (operation.starts_with(kToAll)) {
      bytes += std::stoll(std::string(operation.substr(kToAll.size()))) / size() * (size() - 1);
    }
    ForwardingCollective::run(operation, body);
  }
  Tensor all_gather(const Tensor& tensor) override {
    bytes += static_cast<int64_t>(tensor.nbytes()) * (size() - 1);
    return ForwardingCollective::all_gather(tensor);
  }
  Tensor reduce_scatter(const Tensor& input, ReduceOp op) override {
    bytes += static_cast<int64_t>(input.nbytes()) / size() * (size() - 1);
    return ForwardingCollective::reduce_scatter(input, op);
  }
  int64_t rotated = 0, bytes = 0;
};

/// A layer sends the keys and values of a rank n - 1 times forward, and with their gradients n - 1 times backward.
TEST(ContextParallel, ALayerSendsKeysAndValuesAroundTheRing) {
  run_ranks(3, [&](Collective& group) {
    for (const auto rotate : {ContextRotation::kRing, ContextRotation::kAllGather}) {
      const auto sent = [&](int64_t layers) {
        const auto counting = std::make_shared<Counting>(group);
        torch::manual_seed(3);
        auto model = models::decoder(small(layers));
        split_context(*model, {.rotate = rotate}, counting);
        const auto ids = torch::randint(0, 64, {2, 24}, torch::kLong);
        const auto loss = model(ids, models::next_tokens(ids));
        const auto forward = *counting;
        counting->rotated = counting->bytes = 0;
        loss.backward();
        return std::pair{forward, *counting};
      };
      const auto [forward_1, backward_1] = sent(1);
      const auto [forward_3, backward_3] = sent(3);
      const int64_t share = 2 /*k, v*/ * 2 /*rows*/ * 8 /*tokens*/ * 2 /*heads*/ * 8 /*width*/ * 4 /*bytes*/;
      EXPECT_EQ(forward_3.bytes - forward_1.bytes, 2 * 2 * share);
      EXPECT_EQ(backward_3.bytes - backward_1.bytes, 2 * 2 * 2 * share);
      const bool ring = rotate == ContextRotation::kRing;
      EXPECT_EQ(forward_1.rotated, ring ? 2 : 0);
      EXPECT_EQ(backward_1.rotated, ring ? 4 : 0);
    }
  });
}

/// By heads a rank sends queries, keys and values of its tokens, and gets results: all but its own heads of them.
TEST(ContextParallel, ALayerSendsHeadsOfItsTokens) {
  run_ranks(2, [&](Collective& group) {
    const auto sent = [&](int64_t layers) {
      const auto counting = std::make_shared<Counting>(group);
      auto model = models::decoder(small(layers));
      split_context(*model, {.rotate = ContextRotation::kAllToAll}, counting);
      const auto ids = torch::ones({2, 24}, torch::kLong);
      const auto loss = model(ids, models::next_tokens(ids));
      const auto forward = counting->bytes;
      loss.backward();
      return std::pair{forward, counting->bytes - forward};
    };
    const auto one = sent(1), three = sent(3);
    // Queries and results have four heads, keys and values two.
    const int64_t bytes = 2 /*rows*/ * 12 /*tokens*/ * (4 + 2 + 2 + 4) * 8 /*width*/ * 4 /*bytes*/ / 2 /*ranks*/;
    EXPECT_EQ(three.first - one.first, 2 * bytes);
    EXPECT_EQ(three.second - one.second, 2 * bytes);
  });
}

/// Bytes that forward keeps for backward.
int64_t kept(Collective& group) {
  MemoryCounter counter;
  auto model = models::decoder(small(4));
  if (group.size() > 1) split_context(*model, {}, {&group, [](Collective*) {}});
  const auto parameters = counter.allocated();
  const auto ids = torch::arange(4 * 64).remainder(64).view({4, 64});
  const auto loss = model(ids, models::next_tokens(ids));
  return counter.allocated() - parameters;
}

TEST(ContextParallel, ActivationsAreDividedByTheRanks) {
  const auto alone = static_cast<double>(kept(*one_rank()));
  run_ranks(4, [&](Collective& group) {
    const auto own = static_cast<double>(kept(group));
    EXPECT_LT(own, alone * 0.27);
    EXPECT_GT(own, alone * 0.2);
  });
}

TEST(ContextParallel, LogitsAreThoseOfTheWholeSequence) {
  const auto folder = std::filesystem::path(source_dir()) / "tests/models/fixtures/language/llama";
  const auto logits = [&](Collective& group) {
    const at::NoGradGuard no_grad;
    auto model = models::open_model(folder);
    if (group.size() > 1) split_context(*model.decoder, {}, {&group, [](Collective*) {}});
    return std::vector<Tensor>{model.decoder(tokens_of(0)), model.decoder->hidden_states(tokens_of(1))};
  };
  const auto expected = logits(*one_rank());
  run_ranks(3, [&](Collective& group) { expect_close(logits(group), expected, "logits"); });
}

TEST(ContextParallel, WhatDoesNotFitIsRefusedInOneLine) {
  run_ranks(2, [&](Collective& group) {
    const auto refused = [&](auto& model, const ContextParallelOptions& options) {
      return error_of([&] { Trainee(group, options, *model); });
    };
    SmallNet plain;
    EXPECT_THAT(refused(plain, {}), HasSubstr("no module of SmallNet says how its sequence is spread"));
    auto model = models::decoder(small(1));
    EXPECT_THAT(refused(model, {.size = 3}), HasSubstr("context 3 needs a multiple of 3 ranks, and there are 2"));
    auto big_bird = models::open_model(std::filesystem::path(source_dir()) / "tests/models/fixtures/language/big_bird");
    EXPECT_THAT(refused(big_bird.encoder, {}), HasSubstr("\"blocks.0.attention\" attends by blocks"));
    split_context(*model, {}, {&group, [](Collective*) {}});
    EXPECT_THAT(error_of([&] {
                  model(torch::zeros({1, 3}, torch::kLong));
                }),
                HasSubstr("3 tokens cannot be spread over 2 ranks: balanced they are cut into 2 x 2 = 4 chunks"));
    auto options = small(1);
    options.attention_dropout = 0.5;
    auto dropping = models::decoder(options);
    split_context(*dropping, {}, {&group, [](Collective*) {}});
    EXPECT_THAT(error_of([&] {
                  dropping(torch::zeros({1, 8}, torch::kLong));
                }),
                HasSubstr("attention_dropout 0.5 is not possible"));
  });
}

/// Every surviving rank says what is wrong.
void expect_line(const std::function<void(Collective&)>& body, const std::string& line) {
  RanksOptions options;
  options.errors_expected = true;
  const auto results = run_ranks(2, body, options);
  for (const auto& result : results) {
    EXPECT_LT(result.seconds, 50);
    if (result.signal == 0) {
      EXPECT_THAT(result.error, HasSubstr(line));
    }
  }
}

TEST(ContextParallel, RanksWithOtherBatchesAreFound) {
  const auto forward = [](Collective& group, const Tensor& ids) {
    auto model = models::decoder(small(1));
    split_context(*model, {}, {&group, [](Collective*) {}});
    model(ids, models::next_tokens(ids));
  };
  expect_line(
      [&](Collective& group) {
        forward(group, torch::zeros({1, 8 + group.rank()}, torch::kLong));
      },
      "a forward of [1, 9]");
  expect_line(
      [&](Collective& group) {
        forward(group, torch::full({1, 8}, group.rank(), torch::kLong));
      },
      "whose sum is 8");
}

struct Dies : Interceptor {
  void around(Call&) override { ::kill(::getpid(), SIGKILL); }
};

TEST(ContextParallel, AKilledRankEndsTheOthers) {
  expect_line(
      [&](Collective& group) {
        auto model = models::decoder(small(2));
        split_context(*model, {}, {&group, [](Collective*) {}});
        if (group.rank() == 1) model->blocks[1]->attach(std::make_shared<Dies>(), Order::kInnermost).keep();
        const auto ids = torch::zeros({1, 8}, torch::kLong);
        model(ids, models::next_tokens(ids));
      },
      "rank 1");
}

}  // namespace
}  // namespace levin::context_training_tests
