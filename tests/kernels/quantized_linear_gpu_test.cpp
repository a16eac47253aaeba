// Quantized weights on the GPU against those on the CPU: the same bytes, the same numbers, the same products.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/graphs.h"
#include "levin/kernels/quantized/quantized_detail.h"
#include "levin/kernels/quantized/quantized_weight.h"
#include "levin/testing/gpu.h"

namespace levin::quantized_linear_gpu_tests {
namespace {

using at::Tensor;
using kernels::dequantize;
using kernels::quantization_of;
using kernels::quantize;
using kernels::quantized_linear;
using kernels::QuantizedWeight;

class QuantizedLinearGpu : public levin::testing::GpuTest {};

const std::vector<std::string> kWords{"int8", "int8-weights", "int4", "int4:64", "nf4", "nf4-double", "fp8"};

QuantizedWeight on_gpu(QuantizedWeight weight) {
  weight.codes = weight.codes.cuda(), weight.scales = weight.scales.cuda();
  if (weight.nested.defined()) weight.nested = weight.nested.cuda();
  return weight;
}

double relative(const Tensor& mine, const Tensor& right) {
  const auto a = mine.detach().to(at::kDouble).cpu(), b = right.detach().to(at::kDouble).cpu();
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-6)).item<double>();
}

TEST_F(QuantizedLinearGpu, HasTheBytesOfTheCpu) {
  torch::manual_seed(1);
  const auto weight = torch::randn({256, 512}) * 0.05;
  for (const auto& word : kWords) {
    SCOPED_TRACE(word);
    const auto options = quantization_of("test", word);
    const auto cpu = quantize(weight, options), gpu = quantize(weight.cuda(), options);
    // Means and quotients may differ in their last bit.
    const auto differ = (gpu.codes.cpu() != cpu.codes).sum().item<int64_t>();
    EXPECT_LE(differ, cpu.codes.numel() / 1000);
    EXPECT_EQ(gpu.nested.defined(), cpu.nested.defined());
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble})
      EXPECT_TRUE(dequantize(on_gpu(cpu), dtype).cpu().equal(dequantize(cpu, dtype))) << dtype;
  }
}

TEST_F(QuantizedLinearGpu, OddSizesAreNumbersToo) {
  for (const char* word : {"int8-weights", "fp8"})
    for (const int64_t columns : {1, 7, 20, 72}) {
      const auto cpu = quantize(torch::randn({5, columns}), quantization_of("test", word));
      EXPECT_TRUE(dequantize(on_gpu(cpu), at::kHalf).cpu().equal(dequantize(cpu, at::kHalf))) << word << columns;
      const auto x = torch::randn({3, columns}).to(at::kHalf);
      EXPECT_LT(
          relative(quantized_linear(x.cuda(), on_gpu(cpu)), at::linear(x.to(at::kFloat), dequantize(cpu, at::kFloat))),
          5e-3)
          << word << columns;
    }
}

TEST_F(QuantizedLinearGpu, MultipliesWithWhatItStandsFor) {
  torch::manual_seed(2);
  for (const auto& word : kWords)
    for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat})
      for (const auto& [out, in] :
           std::vector<std::pair<int64_t, int64_t>>{{16, 128}, {40, 640}, {257, 4096}, {1, 1152}})
        for (const int64_t rows : {1, 2, 5, 8, 9, 16, 17, 40, 64, 65}) {
          SCOPED_TRACE(::testing::Message() << word << " " << dtype << " " << out << " " << in << " " << rows);
          const auto cpu = quantize(torch::randn({out, in}) * 0.05, quantization_of("test", word));
          const auto gpu = on_gpu(cpu);
          const auto x = torch::randn({rows, in}).to(dtype), bias = torch::randn({out}).to(dtype);
          const auto y = quantized_linear(x.cuda(), gpu, bias.cuda());
          ASSERT_EQ(y.scalar_type(), dtype);
          const auto expected = at::linear(x.to(at::kDouble), dequantize(cpu, at::kDouble), bias.to(at::kDouble));
          // One result alone may be nearly 0: errors are those of a sum of `in` products.
          const auto usual = std::max(expected.abs().max().item<double>(), 0.05 * std::sqrt(static_cast<double>(in)));
          const auto off = (y.to(at::kDouble).cpu() - expected).abs().max().item<double>() / usual;
          EXPECT_LT(off, word == "int8" ? 0.05 : dtype == at::kBFloat16 ? 0.02 : 4e-3);
          if (word == "int8") {  // integers: as the CPU has them, but for the outliers
            EXPECT_LT(relative(y, quantized_linear(x, cpu, bias)), dtype == at::kBFloat16 ? 1e-2 : 2e-3);
          }
          EXPECT_TRUE(quantized_linear(x.cuda(), gpu, bias.cuda()).equal(y));
        }
  // x that begins at no multiple of 16 bytes.
  const auto gpu = on_gpu(quantize(torch::randn({32, 128}), quantization_of("test", "nf4")));
  const auto x = torch::randn({129}, at::kCUDA).to(at::kHalf).narrow(0, 1, 128).view({1, 128});
  EXPECT_TRUE(quantized_linear(x, gpu).equal(quantized_linear(x.clone(), gpu)));
}

// Blocks of other sizes add in the same order.
TEST_F(QuantizedLinearGpu, RowsOfTheTileProductDoNotDependOnHowManyThereAre) {
  torch::manual_seed(3);
  for (const char* word : {"int8-weights", "int4", "nf4-double", "fp8"})
    for (const auto& [out, in] : std::vector<std::pair<int64_t, int64_t>>{{300, 4096}, {6144, 1024}}) {
      const auto gpu = on_gpu(quantize(torch::randn({out, in}) * 0.05, quantization_of("test", word)));
      const auto x = torch::randn({kernels::detail::kTileRows, in}, at::kCUDA).to(at::kBFloat16);
      const auto all = quantized_linear(x, gpu);
      for (const int64_t rows : {9, 16, 17, 32, 33, 63})
        EXPECT_TRUE(quantized_linear(x.narrow(0, 0, rows), gpu).equal(all.narrow(0, 0, rows))) << word << rows;
    }
}

TEST_F(QuantizedLinearGpu, GivesGradientsAndIsCaptured) {
  const auto gpu = on_gpu(quantize(torch::randn({96, 256}) * 0.05, quantization_of("test", "nf4-double")));
  for (const int64_t rows : {4, 64}) {
    auto x = torch::randn({rows, 256}, at::kCUDA).to(at::kBFloat16).requires_grad_();
    const auto grad = torch::randn({rows, 96}, at::kCUDA).to(at::kBFloat16);
    quantized_linear(x, gpu).backward(grad);
    EXPECT_LT(relative(x.grad(), grad.to(at::kFloat).mm(dequantize(gpu, at::kFloat))), 2e-2);

    const at::NoGradGuard no_grad;
    const auto graphs = levin::detail::cuda_graphs(c10::Device(at::kCUDA, 0));
    const auto expected = quantized_linear(x, gpu);
    Tensor y;
    const auto graph = graphs->capture([&] { y = quantized_linear(x, gpu); });
    graph->replay();
    EXPECT_TRUE(y.equal(expected));
  }
}

}  // namespace
}  // namespace levin::quantized_linear_gpu_tests
