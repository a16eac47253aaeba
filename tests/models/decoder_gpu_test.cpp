// A decoder on the GPU against the same one on the CPU.
#include <gtest/gtest.h>

#include "levin/devices/accelerator.h"
#include "levin/models/decoder.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/policy.h"
#include "levin/nn/tie.h"
#include "levin/precision/precision.h"
#include "levin/testing/gpu.h"

namespace levin::decoder_gpu_tests {
namespace {

class DecoderGpu : public levin::testing::GpuTest {
 protected:
  static models::DecoderOptions options(bool llama) {
    models::DecoderOptions o{
        .vocab_size = 1000, .max_positions = 128, .num_layers = 3, .num_heads = 4, .hidden_dim = 128, .loss_rows = 100};
    if (llama) {
      o.bias = o.tied_head = false;
      o.norm = "rms";
      o.activation = "silu_gated";
      o.positions = "rotary";
    }
    return o;
  }

  struct Result {
    double loss = 0;
    std::vector<Tensor> gradients;
  };

  static Result run(models::Decoder& model, const Tensor& tokens) {
    const auto loss = model(tokens, models::next_tokens(tokens));
    loss.backward();
    Result result{.loss = loss.item<double>()};
    for (const auto& parameter : unique_parameters(*model)) {
      result.gradients.push_back(parameter.grad().to(at::kCPU, at::kFloat));
      parameter.mutable_grad().reset();
    }
    return result;
  }

  static void expect_close(const Result& found, const Result& expected, double tolerance) {
    EXPECT_NEAR(found.loss, expected.loss, tolerance * expected.loss);
    ASSERT_EQ(found.gradients.size(), expected.gradients.size());
    for (size_t i = 0; i < found.gradients.size(); ++i)
      EXPECT_LT((found.gradients[i] - expected.gradients[i]).norm().item<double>(),
                tolerance * expected.gradients[i].norm().item<double>())
          << i;
  }
};

TEST_F(DecoderGpu, LossAndGradientsAreThoseOfTheCpuInEveryPrecision) {
  for (const bool llama : {false, true}) {
    SCOPED_TRACE(llama);
    torch::manual_seed(1);
    auto model = models::decoder(options(llama));
    const auto tokens = torch::randint(0, 1000, {3, 128});
    const auto expected = run(model, tokens);
    model->to(at::kCUDA);
    const auto there = tokens.to(at::kCUDA);
    expect_close(run(model, there), expected, 1e-3);
    {
      Autocast autocast(at::kCUDA, at::kBFloat16);
      const auto loss = model(there, models::next_tokens(there));
      EXPECT_NEAR(loss.item<double>(), expected.loss, 0.01 * expected.loss);
    }
    model->to(at::kBFloat16);
    expect_close(run(model, there), expected, 0.1);
  }
}

TEST_F(DecoderGpu, BlocksThatLeaveTheirSumToTheNextGiveTheSameLoss) {
  for (const bool mixed : {false, true}) {
    SCOPED_TRACE(mixed);
    torch::manual_seed(2);
    auto model = models::decoder(options(false));
    model->to(at::kCUDA);
    if (!mixed) model->to(at::kBFloat16);
    const auto tokens = torch::randint(0, 1000, {3, 128}).to(at::kCUDA);
    const auto result = [&] {
      std::optional<Autocast> autocast;
      if (mixed) autocast.emplace(at::kCUDA, at::kBFloat16);
      return run(model, tokens);
    };
    const auto open = result();
    // Before a checkpointed block the sum is computed on its own.
    const auto checkpoints = attach_checkpointing(*model, policy::by_class<models::DecoderBlock>());
    const auto closed = result();
    EXPECT_EQ(open.loss, closed.loss);
    expect_close(open, closed, 1e-2);  // attention's gradients may be summed in another order
  }
}

TEST_F(DecoderGpu, ChunkedLossIsThatOfTheCpuForOddVocabularies) {
  torch::manual_seed(2);
  struct Case {
    int64_t rows, classes;
    at::ScalarType x, weight;
    std::optional<at::ScalarType> autocast = {};
  };
  const std::vector<Case> cases{{1000, 50257, at::kFloat, at::kFloat, at::kBFloat16},
                                {1000, 50257, at::kBFloat16, at::kBFloat16},
                                {300, 1000, at::kHalf, at::kHalf},
                                {300, 17, at::kFloat, at::kFloat, at::kHalf},
                                {300, 17, at::kBFloat16, at::kFloat, at::kBFloat16},
                                {300, 1001, at::kFloat, at::kFloat},
                                {1, 1000, at::kBFloat16, at::kBFloat16}};
  for (const auto& each : cases)
    for (const int64_t chunk : {-1, 128, 0}) {
      SCOPED_TRACE(::testing::Message() << each.rows << " x " << each.classes << " " << each.x << " " << each.weight
                                        << " chunks of " << chunk);
      const auto x = torch::randn({each.rows, 64}).to(each.x),
                 weight = (torch::randn({each.classes, 64}) * 0.1).to(each.weight);
      auto targets = torch::randint(0, each.classes, {each.rows});
      if (each.rows > 1) targets[0] = models::kIgnoredToken, targets[7] = models::kIgnoredToken;
      const auto here = x.to(at::kDouble).requires_grad_(), weight_here = weight.to(at::kDouble).requires_grad_();
      const auto expected = models::linear_cross_entropy(here, weight_here, targets, 0);
      (expected * 3).backward();
      const auto there = x.cuda().requires_grad_(), weight_there = weight.cuda().requires_grad_();
      Tensor loss;
      {
        std::optional<Autocast> autocast;
        if (each.autocast) autocast.emplace(at::kCUDA, *each.autocast);
        loss = models::linear_cross_entropy(there, weight_there, targets.cuda(), chunk);
      }
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 2e-3 * expected.item<double>());
      (loss * 3).backward();
      const bool exact = !each.autocast && each.weight == at::kFloat;
      const auto compare = [&](const Tensor& found, const Tensor& wanted) {
        EXPECT_EQ(found.sizes(), wanted.sizes());
        EXPECT_LT((found.cpu().to(at::kDouble) - wanted).norm().item<double>(),
                  (exact ? 2e-3 : 2e-2) * wanted.norm().item<double>());
      };
      compare(there.grad(), here.grad());
      compare(weight_there.grad(), weight_here.grad());
      EXPECT_EQ(weight_there.grad().scalar_type(), each.weight);
    }
}

TEST_F(DecoderGpu, ChunkedLossOfNothingHasNoGradient) {
  for (const int64_t rows : {5, 0}) {
    const auto x = torch::randn({rows, 16}, at::kCUDA).to(at::kBFloat16).requires_grad_();
    const auto weight = torch::randn({1001, 16}, at::kCUDA).requires_grad_();
    const auto targets = torch::full({rows}, models::kIgnoredToken, torch::dtype(at::kLong).device(at::kCUDA));
    Autocast autocast(at::kCUDA, at::kBFloat16);
    const auto loss = models::linear_cross_entropy(x, weight, targets);
    EXPECT_TRUE(loss.isnan().item<bool>());
    loss.backward();
    EXPECT_EQ(weight.grad().abs().sum().item<double>(), 0);
    EXPECT_EQ(x.grad().abs().sum().item<double>(), 0);
  }
}

TEST_F(DecoderGpu, LogitsOfTheLossAreNeverAllocatedInFull) {
  auto o = options(false);
  o.vocab_size = 50000;
  o.loss_rows = 128;
  auto model = models::decoder(o);
  model->to(at::kCUDA);
  const auto tokens = torch::randint(0, 1000, {32, 128}).to(at::kCUDA);
  const auto& cuda = detail::cuda_accelerator();
  const auto peak = [&](int64_t rows) {
    model->head->loss_rows = rows;
    cuda.synchronize(tokens.device());
    cuda.reset_peak_memory(tokens.device());
    run(model, tokens);
    return cuda.memory(tokens.device()).peak_allocated;
  };
  peak(0);  // libraries take their workspaces
  const int64_t logits = int64_t{32} * 128 * 50000 * 4;
  EXPECT_LT(peak(128) + 3 * logits / 2, peak(0));
}

}  // namespace
}  // namespace levin::decoder_gpu_tests
