// A decoder on the GPU against the same one on the CPU.
#include <gtest/gtest.h>

#include "levin/devices/accelerator.h"
#include "levin/models/decoder.h"
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
