// A linear layer with the norm before it and what follows it in one kernel, against the same in double.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/graphs.h"
#include "levin/kernels/decode/row_linear.h"
#include "levin/kernels/quantized/quantized_weight.h"
#include "levin/testing/gpu.h"

namespace levin::row_linear_gpu_tests {
namespace {

using at::Tensor;
using kernels::Activation;
using kernels::has_row_linear;
using kernels::QuantizedWeight;
using kernels::RowLinear;

class RowLinearGpu : public levin::testing::GpuTest {};

/// Of a row: 16-bit numbers are rounded a few times on the way.
double relative(const Tensor& mine, const Tensor& right) {
  return ((mine.to(at::kDouble) - right).norm() / right.norm()).item<double>();
}

struct Case {
  std::string word;  // "" for plain numbers
  at::ScalarType dtype;
  int64_t out, in, rows;
};

/// Tensors of a case on the GPU, and what a layer of them gives in double.
struct Layer {
  Tensor x, weight, gate, bias, norm_weight, norm_bias, residual;
  QuantizedWeight packed, packed_gate;
  bool quantized;

  explicit Layer(const Case& c) : quantized(!c.word.empty()) {
    const auto made = [&](at::IntArrayRef sizes, double size) {
      return (torch::randn(sizes, at::kCUDA) * size).to(c.dtype);
    };
    x = made({c.rows, 1, c.in}, 1) + 0.5, residual = made({c.rows, 1, c.out}, 1), bias = made({c.out}, 1);
    norm_weight = made({c.in}, 1), norm_bias = made({c.in}, 0.2);
    weight = made({c.out, c.in}, 0.05), gate = made({c.out, c.in}, 0.05);
    if (!quantized) return;
    packed = kernels::quantize(weight, kernels::quantization_of("test", c.word));
    packed_gate = kernels::quantize(gate, kernels::quantization_of("test", c.word));
    weight = dequantize(packed, at::kDouble), gate = dequantize(packed_gate, at::kDouble);
  }

  kernels::RowWeight row_weight() const { return {quantized ? Tensor() : weight, quantized ? &packed : nullptr, bias}; }
  kernels::RowWeight row_gate() const {
    return {quantized ? Tensor() : gate, quantized ? &packed_gate : nullptr, Tensor()};
  }

  Tensor normed(bool rms) const {
    const auto wide = x.to(at::kDouble), scale = norm_weight.to(at::kDouble);
    if (rms) return wide * (wide.square().mean(-1, true) + 1e-5).rsqrt() * scale;
    return at::layer_norm(wide, {x.size(-1)}, scale, norm_bias.to(at::kDouble), 1e-5);
  }
  Tensor product(const Tensor& of, bool gated) const {
    return at::linear(of, (gated ? gate : weight).to(at::kDouble), gated ? Tensor() : bias.to(at::kDouble));
  }
};

void check(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c.word << " " << c.dtype << " " << c.out << " x " << c.in << " " << c.rows);
  const double bound = c.dtype == at::kHalf ? 2e-3 : 1e-2;
  const Layer layer(c);
  const RowLinear plain{.x = layer.x, .weight = layer.row_weight()};
  ASSERT_TRUE(has_row_linear(plain));
  EXPECT_LT(relative(row_linear(plain), layer.product(layer.x.to(at::kDouble), false)), bound);
  for (const bool rms : {false, true}) {
    auto row = plain;
    row.norm_weight = layer.norm_weight, row.eps = 1e-5, row.rms = rms, row.residual = layer.residual;
    if (!rms) row.norm_bias = layer.norm_bias;
    const auto inner = layer.product(layer.normed(rms), false);
    for (const auto kind : {Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
      row.activation = kind;
      const auto active = kind == Activation::kRelu   ? inner.relu()
                          : kind == Activation::kGelu ? at::gelu(inner)
                                                      : at::silu(inner);
      EXPECT_LT(relative(row_linear(row), active + layer.residual.to(at::kDouble)), bound) << rms;
    }
    row.activation.reset(), row.gate = layer.row_gate();
    const auto opened = at::silu(layer.product(layer.normed(rms), true));
    EXPECT_LT(relative(row_linear(row), opened * inner + layer.residual.to(at::kDouble)), bound) << rms;
  }
}

TEST_F(RowLinearGpu, EqualsNormLayerActivationAndSum) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (const char* word : {"", "int8-weights", "fp8", "int4", "int4:256"})
    for (const auto dtype : {at::kHalf, at::kBFloat16})
      for (const int64_t rows : {1, 2, 3, 8}) check({word, dtype, 300, 1024, rows});
  // More tiles than processors, rows of several turns, the fewest columns.
  check({"", at::kBFloat16, 4096, 4096, 1});
  check({"int4", at::kBFloat16, 6000, 4096, 1});
  check({"int8-weights", at::kHalf, 4100, 11008, 1});
  check({"", at::kHalf, 5, 32, 2});
}

TEST_F(RowLinearGpu, LeavesWhatItCannotDo) {
  const at::NoGradGuard no_grad;
  const Layer layer({"", at::kHalf, 64, 128, 1}), small({"int4:64", at::kHalf, 64, 128, 1});
  const RowLinear good{.x = layer.x, .weight = layer.row_weight()};
  EXPECT_TRUE(has_row_linear(good));
  EXPECT_FALSE(has_row_linear({.x = small.x, .weight = small.row_weight()}));
  EXPECT_FALSE(has_row_linear({.x = layer.x.to(at::kBFloat16), .weight = layer.row_weight()}));
  EXPECT_FALSE(has_row_linear({.x = torch::randn({9, 128}, at::kCUDA).to(at::kHalf), .weight = layer.row_weight()}));
  EXPECT_FALSE(has_row_linear({.x = layer.x.cpu(), .weight = layer.row_weight()}));
  const at::AutoGradMode with_grad(true);
  EXPECT_FALSE(has_row_linear(good));
}

TEST_F(RowLinearGpu, RunsInAGraphAndRepeatsBitByBit) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(2);
  const Layer layer({"int4", at::kBFloat16, 4096, 1024, 1});
  RowLinear row{.x = layer.x, .weight = layer.row_weight(), .norm_weight = layer.norm_weight, .eps = 1e-5, .rms = true};
  const auto expected = row_linear(row);
  Tensor found;
  const auto graph = levin::detail::cuda_graphs(layer.x.device())->capture([&] {
    // Each begins while the one before it runs.
    for (int i = 0; i < 8; ++i) found = row_linear(row);
  });
  for (int i = 0; i < 3; ++i) {
    graph->replay();
    EXPECT_TRUE(found.equal(expected));
  }
}

}  // namespace
}  // namespace levin::row_linear_gpu_tests
