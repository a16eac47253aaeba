// Gradients of stages of which some do not train, and of several batches; norms of gradients in 16 bits.
#include <gtest/gtest.h>

#include "levin/strategies/pipeline/schedule.h"
#include "tests/strategies/parallel/parallel_training.h"

namespace levin::testing {
namespace {

using Names = std::vector<std::string>;

/// A GPT of four blocks of which parameters with such names do not train.
Subject frozen(const Names& names) {
  auto subject = subject_of("gpt of 4");
  for (auto& item : subject.module->named_parameters())
    for (const auto& name : names)
      if (item.key().starts_with(name)) item.value().requires_grad_(false);
  return subject;
}

/// A stage without anything that trains: its backward may be the last of a rank that has others.
TEST(PipelineGradients, FrozenStagesLeaveThoseOfOthers) {
  std::map<std::string, Names> cases{{"first", {"tokens", "positions", "head", "blocks.0."}}};
  if (all_meshes())
    cases.insert({{"first two", {"tokens", "positions", "head", "blocks.0.", "blocks.1."}},
                  {"last", {"tokens", "head", "norm", "blocks.3."}},
                  {"inner", {"blocks.1.", "blocks.2."}}});
  std::map<std::string, Outcome> expected;
  for (const auto& [name, names] : cases) expected[name] = trained(*one_rank(), frozen(names), "single_device", 1);
  run_ranks(4, [&](Collective& group) {
    for (const auto& schedule : all_meshes() ? pipeline_schedule_names() : Names{"interleaved"})
      for (const auto& [name, names] : cases)
        expect_close(trained(group, frozen(names),
                             ModelParallelOptions{.mesh = {.pp = 2, .dp_shard = 2},
                                                  .pipeline = {.schedule = schedule, .microbatches = 2}},
                             1),
                     expected.at(name), schedule + ", " + name);
  });
}

/// Every batch is reduced, and counts once, also in what several stages have (a tied head).
TEST(PipelineGradients, BatchesAccumulateWithoutNoBackwardSync) {
  const auto summed = [](Collective& group, const StrategyChoice& choice) {
    auto subject = subject_of("gpt of 4");
    without_dropout(subject);
    const auto params = unique_parameters(*subject.module);
    Trainee trainee(group, choice, *subject.module);
    std::vector<Tensor> all;
    for (int round = 0; round < 2; ++round) {
      for (int step = 0; step < 3; ++step) {
        trainee.set_sync(round == 0 || step != 1);
        run_batch(trainee, subject, subject.batch(step), 1);
      }
      std::vector<Tensor> grads;
      for (const auto& param : params) grads.push_back(param.grad());
      for (auto& grad : whole_tensors(trainee.strategy(), params, grads)) all.push_back(grad);
      clear_grads(params);
    }
    return all;
  };
  const auto expected = summed(*one_rank(), "single_device");
  run_ranks(2, [&](Collective& group) {
    expect_close(summed(group, PipelineOptions{.microbatches = 2}), expected, "pipeline");
    expect_close(summed(group, ModelParallelOptions{.mesh = {.pp = 2}, .pipeline = {.microbatches = 2}}), expected,
                 "model_parallel");
  });
}

/// A norm in 16 bits would be rounded, or infinite.
TEST(PipelineGradients, NormsOfGradientsIn16BitsAreInFloat) {
  const auto check = [](Collective& group, const std::string& model, const StrategyChoice& choice) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      auto subject = subject_of(model);
      subject.module->to(dtype);
      const auto params = unique_parameters(*subject.module);
      double numel = 0;
      for (const auto& param : params) numel += static_cast<double>(param.numel());
      Trainee trainee(group, choice, *subject.module);
      constexpr double kValue = 6016;  // in both dtypes
      for (auto param : params) param.mutable_grad() = torch::full_like(param, kValue);
      const auto norm = trainee.strategy().grad_norm(params, 2).item<double>();
      EXPECT_NEAR(norm / (kValue * std::sqrt(numel)), 1, 1e-5) << model << " " << dtype;
    }
  };
  run_ranks(2, [&](Collective& group) {
    check(group, "gpt of 4", PipelineOptions{});
    check(group, "gpt of 4", ModelParallelOptions{.mesh = {.pp = 2}});
    check(group, "mixtral", ExpertParallelOptions{});
  });
}

}  // namespace
}  // namespace levin::testing
