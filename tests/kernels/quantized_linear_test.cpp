#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "levin/kernels/quantized/quantized_weight.h"
#include "levin/testing/error_of.h"

namespace levin::quantized_linear_tests {
namespace {

using at::Tensor;
using kernels::dequantize;
using kernels::quantization_of;
using kernels::quantize;
using kernels::quantized_linear;
using testing::error_of;
using ::testing::HasSubstr;

const std::vector<std::string> kWords{"int8", "int8-weights", "int4", "int4:64", "nf4", "nf4-double", "fp8"};

Tensor weight_of(int64_t rows, int64_t columns, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(3);
  return (at::randn({rows, columns}) * 0.05).to(dtype);
}

double error_of_weights(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(QuantizedLinear, LosesWhatItsBitsSay) {
  const auto weight = weight_of(96, 256);
  const std::vector<std::pair<double, double>> expected{{0.004, 0.012}, {0.004, 0.012}, {0.06, 0.14}, {0.06, 0.13},
                                                        {0.06, 0.12},   {0.06, 0.12},   {0.01, 0.04}};
  const std::vector<double> bits{8.125, 8.125, 4.25, 4.5, 4.5, 4.125 + 8.0 * 8 / 256 / 64, 8.125};
  for (size_t i = 0; i < kWords.size(); ++i) {
    SCOPED_TRACE(kWords[i]);
    const auto packed = quantize(weight, quantization_of("test", kWords[i]), {32, 32, 32});
    const auto error = error_of_weights(dequantize(packed, at::kFloat), weight);
    EXPECT_GT(error, expected[i].first);
    EXPECT_LT(error, expected[i].second);
    // 32 rows of 4 groups are half a block of nested scales: these stay in float.
    const bool stays = kWords[i] == "nf4-double";
    EXPECT_DOUBLE_EQ(static_cast<double>(packed.nbytes()) * 8 / static_cast<double>(weight.numel()),
                     stays ? 4.5 : bits[i]);
    EXPECT_EQ(packed.rows(), 96);
    // Deterministic, and the same from a part of the rows where nothing is nested.
    EXPECT_TRUE(quantize(weight, packed.options, {32, 32, 32}).codes.equal(packed.codes));
    EXPECT_TRUE(quantize(weight.narrow(0, 32, 32), packed.options).codes.equal(packed.codes.narrow(0, 32, 32)));
  }
  const auto nested = quantize(weight_of(128, 256), quantization_of("test", "nf4-double"), {64, 64});
  EXPECT_TRUE(nested.nested.defined());
  EXPECT_DOUBLE_EQ(static_cast<double>(nested.nbytes()) * 8 / (128 * 256), bits[5]);
  // Each part has an offset of its own: as if it were quantized alone.
  const auto alone = quantize(weight_of(128, 256).narrow(0, 64, 64), nested.options);
  EXPECT_TRUE(dequantize(alone, at::kFloat).equal(dequantize(nested, at::kFloat).narrow(0, 64, 64)));
}

TEST(QuantizedLinear, StepsAndZerosAreExact) {
  // Numbers that a format has are themselves again.
  const auto steps = at::arange(-7, 9, at::kFloat).repeat({3, 8}) * 0.25;
  EXPECT_TRUE(dequantize(quantize(steps, quantization_of("test", "int4")), at::kFloat).equal(steps));
  const auto bytes = at::arange(-127, 129, at::kFloat).clamp_max(127).repeat({2, 1});
  EXPECT_LT(error_of_weights(dequantize(quantize(bytes, quantization_of("test", "int8-weights")), at::kFloat), bytes),
            1e-6);
  for (const auto& word : kWords) {
    const auto zeros = dequantize(quantize(at::zeros({3, 256}), quantization_of("test", word)), at::kFloat);
    EXPECT_EQ(zeros.count_nonzero().item<int64_t>(), 0) << word;
  }
}

TEST(QuantizedLinear, MultipliesWithWhatItStandsFor) {
  for (const auto& word : kWords)
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
      for (const int64_t rows : {1, 3, 8, 20}) {
        const auto packed = quantize(weight_of(40, 640), quantization_of("test", word));
        const auto x = at::randn({rows, 640}).to(dtype), bias = at::randn({40}).to(dtype);
        const auto y = quantized_linear(x, packed, bias);
        ASSERT_EQ(y.scalar_type(), dtype);
        const auto expected = at::linear(x.to(at::kDouble), dequantize(packed, at::kDouble), bias.to(at::kDouble));
        // LLM.int8 rounds x to 8 bits.
        const auto most = word == "int8" ? 0.03 : dtype == at::kBFloat16 ? 0.01 : dtype == at::kHalf ? 2e-3 : 1e-5;
        EXPECT_LT(error_of_weights(y.to(at::kDouble), expected), most) << word << " " << dtype << " " << rows;
      }
  const auto packed = quantize(weight_of(40, 64), quantization_of("test", "nf4"));
  EXPECT_EQ(quantized_linear(at::ones({2, 3, 64}), packed).sizes(), at::IntArrayRef({2, 3, 40}));
  EXPECT_EQ(quantized_linear(at::ones({0, 64}), packed).sizes(), at::IntArrayRef({0, 40}));
}

TEST(QuantizedLinear, GivesGradientsOfInputAndBias) {
  for (const auto& word : kWords)
    for (const int64_t rows : {2, 20}) {
      const auto packed = quantize(weight_of(24, 128), quantization_of("test", word));
      auto x = at::randn({2, rows, 128}).requires_grad_(), bias = at::randn({24}).requires_grad_();
      const auto y = quantized_linear(x, packed, bias);
      const auto weights = at::randn_like(y);
      (y * weights).sum().backward();
      EXPECT_LT(error_of_weights(x.grad(), weights.matmul(dequantize(packed, at::kFloat))), 1e-5) << word;
      EXPECT_LT(error_of_weights(bias.grad(), weights.flatten(0, 1).sum(0)), 1e-5) << word;
    }
  // A gradient of a gradient, and the saved tensors: the packed ones alone.
  const auto packed = quantize(weight_of(24, 128), quantization_of("test", "nf4"));
  auto x = at::randn({3, 128}).requires_grad_();
  const auto first = torch::autograd::grad({quantized_linear(x, packed).pow(2).sum()}, {x}, {}, true, true)[0];
  first.pow(2).sum().backward();
  EXPECT_GT(x.grad().abs().max().item<double>(), 0);
}

TEST(QuantizedLinear, RunsOnMeta) {
  for (const auto& word : kWords) {
    const auto options = quantization_of("test", word);
    const auto packed = quantize(weight_of(64, 256), options);
    const auto meta = quantize(at::empty({64, 256}, at::kMeta), options);
    EXPECT_EQ(meta.nbytes(), packed.nbytes()) << word;
    EXPECT_EQ(meta.nested.defined(), packed.nested.defined()) << word;
    auto x = at::empty({3, 20, 256}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16)).requires_grad_();
    const auto y = quantized_linear(x, meta);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 20, 64}));
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
}

TEST(QuantizedLinear, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(error_of([] { quantization_of("open_model", "nf5"); }), HasSubstr("did you mean \"nf4\"?"));
  EXPECT_THAT(error_of([] { quantization_of("open_model", "int4:60"); }), HasSubstr("multiples of 64"));
  EXPECT_THAT(error_of([] { quantization_of("open_model", "int8:64"); }), HasSubstr("groups are of int4 and nf4"));
  EXPECT_EQ(kernels::quantization_name(quantization_of("x", "int4:64")), "int4:64");
  EXPECT_EQ(kernels::quantization_name(quantization_of("x", "nf4-double")), "nf4-double");
  EXPECT_THAT(error_of([] { quantize(at::ones({4, 96}), quantization_of("x", "nf4")); }), HasSubstr("groups of 64"));
  EXPECT_THAT(error_of([] { quantize(at::ones({4}), {}); }), HasSubstr("needs a matrix"));
  EXPECT_THAT(error_of([] {
                quantize(at::full({4, 64}, 1e30), quantization_of("x", "int8"));
              }),
              HasSubstr("not finite, or too large for int8"));
  auto packed = quantize(at::ones({4, 64}), {});
  EXPECT_THAT(error_of([&] { quantized_linear(at::ones({2, 60}), packed); }), HasSubstr("[..., 64]"));
  packed.scales = packed.scales.to(at::kHalf);
  EXPECT_THAT(error_of([&] { quantized_linear(at::ones({2, 64}), packed); }), HasSubstr("must be bytes"));
}

TEST(QuantizedLinear, AKindThatNobodyKnowsIsNotInt8) {
  const auto unknown = static_cast<kernels::Quantization>(99);
  EXPECT_THAT(error_of([&] { quantize(at::ones({4, 64}), {.kind = unknown}); }), HasSubstr("unknown kind"));
  EXPECT_THAT(error_of([&] {
                quantize(at::ones({4, 64}), {.kind = unknown, .group = 64});
              }),
              HasSubstr("unknown kind"));
  auto packed = quantize(at::ones({4, 64}), quantization_of("x", "fp8"));
  packed.options.kind = unknown;
  EXPECT_THAT(error_of([&] { quantized_linear(at::ones({2, 64}), packed); }), HasSubstr("unknown kind"));
  EXPECT_THAT(error_of([&] { kernels::quantization_name({.kind = unknown}); }), HasSubstr("unknown kind"));
  for (const auto& word : kWords) EXPECT_EQ(kernels::quantization_name(quantization_of("x", word)), word);
}

}  // namespace
}  // namespace levin::quantized_linear_tests
