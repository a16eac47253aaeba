// Training with models that are cut into stages, against one process on the whole batch.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/models/decoder.h"
#include "levin/models/text_encoder.h"
#include "levin/models/vit.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/tie.h"
#include "levin/optim/adam.h"
#include "levin/strategies/pipeline_parallel.h"
#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"
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
  int64_t rows = 12;
  int steps = 2;
  int accumulate = 1;
  bool clips = false;
  bool delays = false;
  bool checkpoints = false;
};

/// What one process does: losses (and norms), gradients of the first step, and parameters, by name.
struct Outcome {
  std::vector<Tensor> losses, grads, params;
};

/// What is not on this rank is empty.
Outcome trained(Collective& group, Subject subject, const StrategyChoice& choice, const Setting& setting) {
  subject.module->eval();  // without dropout
  if (group.rank() > 0)    // the values of rank 0 count
    for (auto& parameter : unique_parameters(*subject.module)) parameter.data().add_(1);
  std::vector<Attachment> checkpoints;
  if (setting.checkpoints) checkpoints = attach_checkpointing(*subject.module, policy::repeated());
  const auto params = unique_parameters(*subject.module);
  torch::optim::SGD optimizer(params, torch::optim::SGDOptions(0.05).momentum(0.9));
  Trainee trainee(group, choice, *subject.module);
  auto* strategy = dynamic_cast<PipelineStrategy*>(&trainee.strategy());
  std::mt19937 random(static_cast<unsigned>(group.rank()) + 7);
  if (strategy && setting.delays)
    strategy->runner()->set_observer([&](const PipelineAction&) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3 == 0 ? random() % 2000 : 0));
    });
  Outcome outcome;
  for (int step = 0; step < setting.steps; ++step) {
    const auto batch = subject.batch(step, setting.rows);
    const auto place = trainee.strategy().data_place();
    const auto own = batch.chunk(place.size, 0)[static_cast<size_t>(place.rank)];
    auto mean = torch::zeros({});
    const auto windows = own.chunk(setting.accumulate, 0);
    for (size_t i = 0; i < windows.size(); ++i) {
      trainee.set_sync(i + 1 == windows.size());
      mean += trainee.step(windows[i], subject.loss, 1.0 / setting.accumulate) / setting.accumulate;
    }
    if (place.size > 1) group.all_reduce(mean, ReduceOp::kMean);
    outcome.losses.push_back(mean);
    if (step == 0)
      for (const auto& param : params)
        outcome.grads.push_back(param.grad().defined() ? param.grad().clone() : torch::empty({0}));
    if (setting.clips) {
      const auto norm = trainee.strategy().grad_norm(params, 2);
      outcome.losses.push_back(norm);
      for (const auto& param : params)
        if (param.grad().defined()) param.grad().mul_(std::min(1.0, 0.1 / norm.item<double>()));
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  outcome.params = values(params);
  return outcome;
}

void expect_near(const Tensor& ours, const Tensor& wanted, const std::string& what) {
  ASSERT_EQ(ours.sizes(), wanted.sizes()) << what;
  EXPECT_TRUE(torch::allclose(ours, wanted, 1e-5, 1e-5)) << what << ": " << (ours - wanted).abs().max().item<double>();
}

/// What this rank has equals what one process has, and every parameter is somewhere.
void expect_same(Collective& group, const Outcome& ours, const Outcome& wanted, const std::string& what) {
  for (size_t i = 0; i < wanted.losses.size(); ++i)
    expect_near(ours.losses.at(i), wanted.losses[i], fmt::format("{}, loss {}", what, i));
  auto held = torch::zeros({static_cast<int64_t>(wanted.params.size())});
  for (size_t i = 0; i < wanted.params.size(); ++i) {
    if (ours.params.at(i).numel() == 0) continue;
    held[static_cast<int64_t>(i)] = 1;
    expect_near(ours.grads[i], wanted.grads[i], fmt::format("{}, gradient {}", what, i));
    expect_near(ours.params[i], wanted.params[i], fmt::format("{}, parameter {}", what, i));
  }
  group.all_reduce(held, ReduceOp::kMax);
  EXPECT_EQ(held.min().item<float>(), 1) << what;
}

Outcome alone(const std::string& name, int64_t layers, const Setting& setting = {}) {
  return trained(*join_group({}, at::kCPU), subject_of(name, layers), StrategyChoice("single_device"), setting);
}

const std::vector<std::string> kModels{"gpt", "llama", "bert", "vit"};

class PipelineOver : public ::testing::TestWithParam<int> {};

TEST_P(PipelineOver, EveryScheduleTrainsAsOneProcessDoes) {
  const int ranks = GetParam();
  const int64_t layers = 2 * ranks;
  std::map<std::string, Outcome> wanted;
  for (const auto& model : kModels) wanted[model] = alone(model, layers);
  run_ranks(ranks, [&](Collective& group) {
    int turn = 0, number = 0;
    for (const auto& schedule : pipeline_schedule_names()) {
      ++number;
      for (int microbatches = 1; microbatches <= 12; ++microbatches) {
        // Of every five counts one, another one for each schedule and number of ranks.
        if (!all_meshes() && (microbatches + number + ranks) % 5 != 0) continue;
        const PipelineOptions options{.schedule = schedule, .microbatches = microbatches};
        const auto& model = kModels[static_cast<size_t>(turn++) % kModels.size()];
        const auto what = fmt::format("{} {} {}", model, schedule, microbatches);
        const int rounds = std::max(1, microbatches / ranks);
        if (schedule == "interleaved" && microbatches % rounds != 0) {
          EXPECT_THAT(error_of([&] { trained(group, subject_of(model, layers), options, {}); }),
                      HasSubstr("[pipeline]"))
              << what;
          continue;
        }
        expect_same(group, trained(group, subject_of(model, layers), options, {.delays = turn % 4 == 0}), wanted[model],
                    what);
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, PipelineOver, ::testing::Values(2, 4));

TEST(Pipeline, TenStepsOfEveryModelAreTheSame) {
  const Setting setting{.rows = 8, .steps = 10, .clips = true, .delays = true};
  std::map<std::string, Outcome> wanted;
  for (const auto& model : kModels) wanted[model] = alone(model, 4, setting);
  run_ranks(2, [&](Collective& group) {
    for (size_t i = 0; i < kModels.size(); ++i) {
      const auto schedule = std::vector<std::string>{"1f1b", "zbv", "zb1p", "interleaved"}[i];
      expect_same(
          group,
          trained(group, subject_of(kModels[i], 4), PipelineOptions{.schedule = schedule, .microbatches = 4}, setting),
          wanted[kModels[i]], kModels[i]);
    }
  });
}

TEST(Pipeline, CopiesAccumulationAndRecomputationAreTheSame) {
  const Setting setting{.rows = 16, .steps = 2, .accumulate = 2, .clips = true, .checkpoints = true};
  const auto wanted = alone("gpt", 4, setting);
  run_ranks(4, [&](Collective& group) {
    for (const auto& schedule : pipeline_schedule_names())
      expect_same(group,
                  trained(group, gpt(4), PipelineOptions{.size = 2, .schedule = schedule, .microbatches = 2}, setting),
                  wanted, schedule);
  });
}

TEST(Pipeline, DoesWhatTheScheduleSaysAndHoldsNoMore) {
  run_ranks(4, [](Collective& group) {
    for (const auto& schedule : pipeline_schedule_names()) {
      auto subject = gpt(8);
      Trainee trainee(group, PipelineOptions{.schedule = schedule, .microbatches = 8}, *subject.module);
      trainee.step(subject.batch(0, 16), subject.loss);
      const auto plan = make_pipeline_schedule(schedule, 4, 8);
      const auto& counts = dynamic_cast<PipelineStrategy&>(trainee.strategy()).runner()->counts();
      EXPECT_EQ(counts.actions, plan.actions[static_cast<size_t>(group.rank())]) << schedule;
      if (schedule == "1f1b") {
        EXPECT_EQ(counts.peak_live, std::min(8, 4 - group.rank()));
      }
      if (schedule == "gpipe") {
        EXPECT_EQ(counts.peak_live, 8);
      }
      // One activation [B, T, D] of float32 to each neighbour that is on another rank, and its gradient back.
      int64_t sends = 0, sends_back = 0;
      for (const auto& action : plan.actions[static_cast<size_t>(group.rank())]) {
        sends += action.kind == PipelineAction::Kind::kSendForward ? 1 : 0;
        sends_back += action.kind == PipelineAction::Kind::kSendBackward ? 1 : 0;
      }
      constexpr int64_t kBytes = 2 * 6 * 16 * 4;
      EXPECT_EQ(counts.forward_bytes, sends * kBytes) << schedule;
      EXPECT_EQ(counts.backward_bytes, sends_back * kBytes) << schedule;
    }
  });
}

TEST(Pipeline, ARankKeepsItsStagesAlone) {
  run_ranks(2, [](Collective& group) {
    torch::manual_seed(5);
    const models::DecoderOptions options{
        .vocab_size = 40, .max_positions = 8, .num_layers = 4, .num_heads = 2, .hidden_dim = 16, .tied_head = false};
    models::Decoder eager(options);
    torch::manual_seed(5);
    auto model = init_module([&] { return models::Decoder(options); }, {.deferred = true});
    Trainee trainee(group, PipelineOptions{.size = 2}, *model);
    const auto expected = eager->named_parameters();
    int64_t here = 0;
    for (const auto& item : model->named_parameters()) {
      const bool first = item.key().starts_with("tokens") || item.key().starts_with("positions") ||
                         item.key().starts_with("blocks.0") || item.key().starts_with("blocks.1");
      EXPECT_EQ(item.value().numel() > 0, first == (group.rank() == 0)) << item.key();
      if (item.value().numel() > 0) {
        EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
      }
      here += item.value().numel();
    }
    int64_t all = 0;
    for (const auto& parameter : eager->parameters()) all += parameter.numel();
    EXPECT_LT(here, all * 6 / 10);
    EXPECT_FALSE(is_deferred(*model));
  });
}

TEST(Pipeline, CutsByNamesCostsAndParameters) {
  auto subject = gpt(6);
  const auto starts = [&](const PipelineOptions& options, int stages) {
    return plan_stages(*subject.module, stages, options).starts;
  };
  using Starts = std::vector<size_t>;
  EXPECT_EQ(starts({}, 4), (Starts{0, 2, 4, 5}));
  EXPECT_EQ(starts({.cut_before = {"blocks.1", "blocks.2"}}, 3), (Starts{0, 1, 2}));
  EXPECT_EQ(starts({.costs = {9, 1, 1, 1, 1, 1}}, 2), (Starts{0, 1}));
  EXPECT_EQ(starts({.costs = {1, 1, 1, 1, 1, 5}}, 2), (Starts{0, 5}));
  EXPECT_EQ(starts({.balance = "parameters"}, 2), (Starts{0, 3}));
  const auto tied = plan_stages(*subject.module, 3, {});
  for (const auto& state : tied.states) {
    if (state.name == "tokens.weight") {
      EXPECT_EQ(state.stages, (std::vector<int>{0, 2}));
    }
  }
  auto tokens = subject.batch(0, 4);
  const auto costs = measure_unit_costs(*subject.module, {}, [&] { subject.loss(tokens); });
  ASSERT_EQ(costs.size(), 6u);
  for (const auto cost : costs) EXPECT_GT(cost, 0);
  EXPECT_THAT(error_of([&] { starts({.cut_before = {"blocks.9"}}, 2); }), HasSubstr("blocks.9"));
  EXPECT_THAT(error_of([&] { starts({.cut_before = {"blocks.3", "blocks.2"}}, 3); }), HasSubstr("blocks.2"));
  EXPECT_THAT(error_of([&] { starts({}, 7); }), AllOf(HasSubstr("7 stages"), HasSubstr("6 (")));
  EXPECT_THAT(error_of([&] { starts({.last_stage = {"hat"}}, 2); }), HasSubstr("\"hat\""));
}

TEST(Pipeline, RefusesWhatCannotBe) {
  EXPECT_THAT(error_of([] { strategy_of(PipelineOptions{.schedule = "1b1f"}); }), HasSubstr("1b1f"));
  run_ranks(2, [](Collective& group) {
    const auto error = [&](const PipelineOptions& options, int64_t layers, int64_t rows) {
      auto subject = gpt(layers);
      return error_of([&] {
        Trainee trainee(group, options, *subject.module);
        trainee.step(subject.batch(0, rows), subject.loss);
      });
    };
    EXPECT_THAT(error({.size = 3}, 4, 4), HasSubstr("3"));
    EXPECT_THAT(error({.units = policy::by_class<models::DecoderBlock>()}, 1, 4),
                AllOf(HasSubstr("2 stages"), HasSubstr("1 (")));
    EXPECT_EQ(error({.microbatches = 8}, 4, 3), "no error");  // in three
    EXPECT_THAT(error({.schedule = "interleaved", .microbatches = 5}, 4, 5), HasSubstr("5"));
    auto subject = gpt(4);
    Trainee trainee(group, PipelineOptions{}, *subject.module);
    EXPECT_THAT(error_of([&] { trainee.forward([&] { return subject.loss(subject.batch(0, 4)); }); }),
                HasSubstr("forward_backward"));
    EXPECT_THAT(error_of([&] { trainee.step(subject.batch(0, 4 + group.rank()), subject.loss); }),
                HasSubstr("another shape"));
  });
}

TEST(Pipeline, ARefusedScheduleLeavesTheGroup) {
  run_ranks(4, [](Collective& group) {
    const PipelineOptions odd{.size = 2, .schedule = "interleaved", .microbatches = 5}, chunks{.size = 2, .chunks = 3};
    for (const StrategyChoice& choice :
         {StrategyChoice(odd), StrategyChoice(chunks),
          StrategyChoice(ModelParallelOptions{.mesh = {.pp = 2, .dp_shard = 2}, .pipeline = odd})}) {
      auto subject = gpt(4);
      EXPECT_THAT(error_of([&] { Trainee(group, choice, *subject.module); }), HasSubstr("[pipeline]"));
      auto ranks = torch::ones({});
      group.all_reduce(ranks);
      EXPECT_EQ(ranks.item<int>(), 4);
    }
  });
}

TEST(Pipeline, SaysWhatDoesNotFitTheCut) {
  const auto errors = [](const PipelineOptions& options, int64_t layers) {
    RanksOptions how{.errors_expected = true};
    how.collective.timeout = std::chrono::seconds(10);
    return errors_of(run_ranks(
        2,
        [&](Collective& group) {
          auto subject = gpt(layers);
          Trainee trainee(group, options, *subject.module);
          trainee.step(subject.batch(0, 4), subject.loss);
        },
        how));
  };
  // The norm behind the blocks was said to be of the first stage.
  EXPECT_THAT(errors({.first_stage = {"norm"}}, 4)[1], AllOf(HasSubstr("\"norm\""), HasSubstr("last_stage")));
  // Inside of a block the residual passes by the cut.
  const auto inside = errors({.units = policy::by_class<models::DecoderAttention, models::DecoderMlp>()}, 1);
  EXPECT_THAT(inside[1], AllOf(HasSubstr("blocks.0.mlp"), HasSubstr("cannot be cut there")));
  EXPECT_FALSE(inside[0].empty());
}

/// Loads when `from` is there, trains steps [first, last) of AdamW, saves when `to` is there; the full parameters.
/// Parameters whose names begin with one of `frozen` do not train.
std::vector<Tensor> train_part(Collective& group, const StrategyChoice& choice, int first, int last,
                               const std::filesystem::path& from, const std::filesystem::path& to,
                               const std::vector<std::string>& frozen = {}) {
  auto subject = gpt(4);
  subject.module->eval();
  for (auto& item : subject.module->named_parameters())
    for (const auto& name : frozen)
      if (item.key().starts_with(name)) item.value().requires_grad_(false);
  // The bias of keys has a gradient of zero but for rounding, which a smaller eps would make a step of.
  Optimizer optimizer = optim::AdamW(unique_parameters(*subject.module), {.lr = 1e-2, .eps = 1e-3});
  Trainee trainee(group, choice, *subject.module);
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  auto* shards = trainee.strategy().shards();
  const State state{{"model", subject.module}, {"optimizer", optimizer}};
  if (!from.empty()) load_checkpoint(from, state, {.shards = shards});
  for (int step = first; step < last; ++step) {
    trainee.step(subject.batch(step, 8), subject.loss);
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

TEST(Pipeline, CheckpointsDoNotDependOnTheRanks) {
  const TemporaryFolder root;
  const auto one = join_group({}, at::kCPU);
  const auto expected = train_part(*one, "single_device", 0, 4, {}, {});
  const auto expect_all = [&](const std::vector<Tensor>& ours, const std::string& what) {
    ASSERT_EQ(ours.size(), expected.size()) << what;
    for (size_t i = 0; i < ours.size(); ++i) expect_near(ours[i], expected[i], fmt::format("{}, tensor {}", what, i));
  };
  run_ranks(4, [&](Collective& group) { train_part(group, PipelineOptions{}, 0, 2, {}, root / "by_4"); });
  EXPECT_FALSE(checkpoint_info(root / "by_4").sharded);
  expect_all(train_part(*one, "single_device", 2, 4, root / "by_4", {}), "one process");
  run_ranks(2, [&](Collective& group) {
    expect_all(train_part(group, PipelineOptions{.schedule = "zbv"}, 2, 4, root / "by_4", root / "by_2"), "2 ranks");
  });
  expect_all(train_part(*one, "single_device", 4, 4, root / "by_2", {}), "saved by 2 ranks");
}

// Rank 0, which writes the checkpoint, has no parameter with a state.
TEST(Pipeline, CheckpointsOfAFrozenFirstStageHaveTheStateOfOthers) {
  const TemporaryFolder root;
  const std::vector<std::string> frozen{"tokens", "positions", "head", "blocks.0.", "blocks.1."};
  const auto one = join_group({}, at::kCPU);
  const auto expected = train_part(*one, "single_device", 0, 4, {}, {}, frozen);
  const std::map<std::string, StrategyChoice> choices{{"pipeline", PipelineOptions{}},
                                                      {"model_parallel", ModelParallelOptions{.mesh = {.pp = 2}}}};
  for (const auto& [name, choice] : choices) {
    run_ranks(2, [&, &choice = choice, &name = name](Collective& group) {
      train_part(group, choice, 0, 2, {}, root / name, frozen);
    });
    const auto resumed = train_part(*one, "single_device", 2, 4, root / name, {}, frozen);
    ASSERT_EQ(resumed.size(), expected.size());
    for (size_t i = 0; i < resumed.size(); ++i)
      expect_near(resumed[i], expected[i], fmt::format("{}, tensor {}", name, i));
  }
}

TEST(Pipeline, AKilledRankEndsTheOthersWithALine) {
  RanksOptions options{.errors_expected = true};
  const auto results = run_ranks(
      3,
      [](Collective& group) {
        auto subject = gpt(3);
        Trainee trainee(group, PipelineOptions{.microbatches = 6}, *subject.module);
        auto& runner = *dynamic_cast<PipelineStrategy&>(trainee.strategy()).runner();
        int actions = 0;
        runner.set_observer([&](const PipelineAction&) {
          if (group.rank() == 1 && ++actions == 7) ::raise(SIGKILL);
        });
        trainee.step(subject.batch(0, 6), subject.loss);
      },
      options);
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(results[static_cast<size_t>(rank)].error, HasSubstr("rank 1")) << rank;
    EXPECT_EQ(results[static_cast<size_t>(rank)].error.find('\n'), std::string::npos);
    EXPECT_LT(results[static_cast<size_t>(rank)].seconds, 50);
  }
}

}  // namespace
}  // namespace levin::pipeline_tests
