// A linear layer with what follows it in one kernel, against the same in double.
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
  Tensor x, weight, gate, bias, residual;
  QuantizedWeight packed, packed_gate;
  bool quantized;

  explicit Layer(const Case& c) : quantized(!c.word.empty()) {
    const auto made = [&](at::IntArrayRef sizes, double size) {
      return (torch::randn(sizes, at::kCUDA) * size).to(c.dtype);
    };
    x = made({c.rows, 1, c.in}, 1) + 0.5, residual = made({c.rows, 1, c.out}, 1), bias = made({c.out}, 1);
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

  Tensor product(bool gated) const {
    return at::linear(x.to(at::kDouble), (gated ? gate : weight).to(at::kDouble),
                      gated ? Tensor() : bias.to(at::kDouble));
  }
};

void check(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c.word << " " << c.dtype << " " << c.out << " x " << c.in << " " << c.rows);
  const double bound = c.dtype == at::kHalf ? 2e-3 : 1e-2;
  const Layer layer(c);
  const RowLinear plain{.x = layer.x, .weight = layer.row_weight()};
  ASSERT_TRUE(has_row_linear(plain));
  const auto inner = layer.product(false), residual = layer.residual.to(at::kDouble);
  EXPECT_LT(relative(row_linear(plain), inner), bound);
  auto row = plain;
  row.residual = layer.residual;
  EXPECT_LT(relative(row_linear(row), inner + residual), bound);
  for (const auto kind : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    row.activation = kind;
    const auto active = kind == Activation::kRelu   ? inner.relu()
                        : kind == Activation::kGelu ? at::gelu(inner)
                        : kind == Activation::kSilu ? at::silu(inner)
                                                    : at::gelu(inner, "tanh");
    EXPECT_LT(relative(row_linear(row), active + residual), bound) << static_cast<int>(kind);
  }
  row.activation.reset(), row.gate = layer.row_gate();
  EXPECT_LT(relative(row_linear(row), at::silu(layer.product(true)) * inner + residual), bound);
}

/// Rows that the kernel takes: with a plain matrix cuBLAS is faster with more.
std::vector<int64_t> rows_of(std::string_view word) {
  return word.empty() ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1, 2, 3, 8};
}

TEST_F(RowLinearGpu, EqualsLayerActivationAndSum) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (const char* word : {"", "int8-weights", "fp8", "int4", "int4:64", "int4:256", "nf4", "nf4-double"})
    for (const auto dtype : {at::kHalf, at::kBFloat16})
      for (const int64_t rows : rows_of(word)) check({word, dtype, 300, 1024, rows});
  // Many rows and few, rows of several turns, the fewest columns.
  check({"", at::kBFloat16, 4096, 4096, 1});
  check({"int4", at::kBFloat16, 6000, 4096, 1});
  check({"int8-weights", at::kHalf, 4100, 11008, 1});
  check({"", at::kHalf, 5, 32, 2});
}

/// A layer, an RMS norm of what it gives, and a layer with a gate, by two kernels and in double.
void check_norm(const std::string& word, int64_t rows) {
  SCOPED_TRACE(::testing::Message() << word << " " << rows);
  const Layer first({word, at::kBFloat16, 640, 512, rows}), second({word, at::kBFloat16, 300, 640, rows});
  const auto norm = (torch::rand({640}, at::kCUDA) + 0.5).to(at::kBFloat16);
  const auto begun = kernels::row_linear_normed(
      {.x = first.x, .weight = first.row_weight(), .residual = first.residual * 30, .norm_weight = norm});
  const auto h = begun.sum.to(at::kDouble);
  EXPECT_LT(relative(begun.sum, first.product(false) + first.residual.to(at::kDouble) * 30), 1e-2);
  const auto normed = h * (h.square().mean(-1, true) + 0.25).rsqrt() * norm.to(at::kDouble);
  RowLinear row{.x = begun.weighted, .weight = second.row_weight(), .squares = begun.squares, .eps = 0.25};
  const auto product = [&](const Tensor& weight) { return at::linear(normed, weight.to(at::kDouble)); };
  const auto inner = product(second.weight) + second.bias.to(at::kDouble);
  ASSERT_TRUE(has_row_linear(row));
  EXPECT_LT(relative(row_linear(row), inner), 1e-2);
  row.gate = second.row_gate();
  EXPECT_LT(relative(row_linear(row), at::silu(product(second.gate)) * inner), 1.5e-2);
}

TEST_F(RowLinearGpu, ANormBetweenTwoLayersIsHalfInEach) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(3);
  for (const char* word : {"", "int8-weights", "fp8", "int4", "int4:64", "nf4"})
    for (const int64_t rows : rows_of(word)) check_norm(word, rows);
}

TEST_F(RowLinearGpu, LeavesWhatItCannotDo) {
  const at::NoGradGuard no_grad;
  const Layer layer({"", at::kHalf, 64, 128, 1}), other({"int8", at::kHalf, 64, 128, 1});
  const RowLinear good{.x = layer.x, .weight = layer.row_weight()};
  EXPECT_TRUE(has_row_linear(good));
  EXPECT_FALSE(has_row_linear({.x = other.x, .weight = other.row_weight()}));
  EXPECT_FALSE(has_row_linear({.x = layer.x.to(at::kBFloat16), .weight = layer.row_weight()}));
  EXPECT_FALSE(has_row_linear({.x = torch::randn({9, 128}, at::kCUDA).to(at::kHalf), .weight = layer.row_weight()}));
  EXPECT_FALSE(has_row_linear({.x = layer.x.cpu(), .weight = layer.row_weight()}));
  EXPECT_FALSE(
      has_row_linear({.x = layer.x, .weight = layer.row_weight(), .norm_weight = layer.bias}));  // may overflow
  const at::AutoGradMode with_grad(true);
  EXPECT_FALSE(has_row_linear(good));
}

TEST_F(RowLinearGpu, RunsInAGraphAndRepeatsBitByBit) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(2);
  const Layer layer({"int4", at::kBFloat16, 4096, 1024, 1});
  RowLinear row{.x = layer.x, .weight = layer.row_weight(), .gate = layer.row_gate()};
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
