// The fused steps on the GPU against those on the CPU. Skipped where there is none.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/fused_step/adam.h"
#include "levin/kernels/fused_step/adam_8bit.h"
#include "levin/testing/gpu.h"

namespace levin::kernels {
namespace {

class FusedOnCuda : public levin::testing::GpuTest {};

using Lists = std::vector<std::vector<Tensor>>;

std::vector<Tensor> moved(const std::vector<Tensor>& list) {
  std::vector<Tensor> out;
  for (const auto& tensor : list) out.push_back(tensor.cuda());
  return out;
}
Lists moved(const Lists& lists) {
  Lists out;
  for (const auto& list : lists) out.push_back(moved(list));
  return out;
}

void expect_close(const Lists& here, const Lists& there, double tolerance, const char* what) {
  for (size_t k = 0; k < here.size(); ++k)
    for (size_t i = 0; i < here[k].size(); ++i) {
      const auto a = here[k][i].to(at::kDouble), b = there[k][i].cpu().to(at::kDouble);
      EXPECT_TRUE(torch::allclose(a, b, tolerance, tolerance)) << what << " list " << k << " tensor " << i;
    }
}

// More tensors than one table takes, odd lengths, none, more than one block, and one that starts at an odd address.
std::vector<Tensor> numbers(at::ScalarType dtype, double factor, bool positive) {
  std::vector<Tensor> out;
  for (int64_t i = 0; i < 90; ++i) {
    const int64_t numel = i == 3 ? 0 : i == 5 ? 20011 : 1 + i * 7;
    auto tensor = torch::randn({numel + 1}).to(dtype).narrow(0, i == 7 ? 1 : 0, numel);
    if (i != 7) tensor = tensor.clone();
    out.push_back((positive ? tensor.abs() : tensor).mul_(factor));
  }
  return out;
}

TEST_F(FusedOnCuda, AdamOfEveryDtype) {
  torch::manual_seed(5);
  const std::vector<std::array<at::ScalarType, 3>> cases{
      {at::kFloat, at::kFloat, at::kFloat},   {at::kFloat, at::kBFloat16, at::kFloat},
      {at::kFloat, at::kHalf, at::kBFloat16}, {at::kBFloat16, at::kBFloat16, at::kFloat},
      {at::kHalf, at::kHalf, at::kHalf},      {at::kDouble, at::kFloat, at::kDouble}};
  for (const auto& [param, grad, state] : cases)
    for (const bool amsgrad : {false, true}) {
      const AdamNumbers n{0.01, 0.9, 0.95, 1e-6, 0.1, amsgrad, amsgrad, !amsgrad};
      Lists here{numbers(param, 1, false), numbers(grad, 1, false), numbers(state, 0.1, false),
                 numbers(state, 0.1, true), numbers(state, 0.1, true)};
      here.emplace_back(90, torch::full({}, 3.0f));
      here.push_back(numbers(at::kBFloat16, 1, false));
      auto there = moved(here);
      const auto step = [&](Lists& l, c10::Device device) {
        fused_adam({l[0], l[1], l[2], l[3], l[4], l[5], l[6]}, n,
                   {torch::full({}, 4.0f, device), torch::zeros({}, device)});
      };
      step(here, at::kCPU);
      step(there, at::kCUDA);
      const bool is_narrow = param != at::kFloat && param != at::kDouble;
      expect_close(here, there, 1e-2, "rounded to 16 bits here or there");
      if (!is_narrow && state != at::kBFloat16) {
        here.pop_back();
        there.pop_back();
        expect_close(here, there, 1e-6, "numbers");
      }
      const auto before = there[0][5].clone();
      fused_adam({there[0], there[1], there[2], there[3], there[4], there[5], {}}, n,
                 {torch::full({}, 4.0f, at::kCUDA), torch::ones({}, at::kCUDA)});
      EXPECT_TRUE(torch::equal(before, there[0][5]));
    }
}

TEST_F(FusedOnCuda, Sgd) {
  torch::manual_seed(6);
  for (const bool nesterov : {false, true}) {
    const SgdNumbers n{0.1, 0.9, 0, 0.05, nesterov, false, false};
    Lists here{numbers(at::kFloat, 1, false), numbers(at::kBFloat16, 1, false), numbers(at::kFloat, 1, false)};
    auto there = moved(here);
    fused_sgd({here[0], here[1], here[2], {}}, n);
    fused_sgd({there[0], there[1], there[2], {}}, n);
    expect_close(here, there, 1e-6, "sgd");
  }
}

TEST_F(FusedOnCuda, Adam8bit) {
  torch::manual_seed(7);
  Lists here{numbers(at::kFloat, 1, false), numbers(at::kBFloat16, 1, false)};
  for (int list = 0; list < 4; ++list) {
    auto& state = here.emplace_back();
    for (const auto& param : here[0]) {
      const int64_t blocks = code_blocks(param.numel());
      state.push_back(list < 2 ? torch::zeros({blocks, kCodeBlock}, at::kByte) : torch::zeros({blocks}));
    }
  }
  here.emplace_back();
  for (size_t i = 0; i < here[0].size(); ++i) here.back().push_back(torch::ones({}));
  auto there = moved(here);
  const AdamNumbers n{0.01, 0.9, 0.95, 1e-6, 0.1, false, false, true};
  for (int step = 0; step < 3; ++step)
    for (auto* l : {&here, &there})
      fused_adam_8bit({(*l)[0], (*l)[1], (*l)[2], (*l)[3], (*l)[4], (*l)[5], (*l)[6], {}}, n);
  for (size_t i = 0; i < here[0].size(); ++i) {
    EXPECT_TRUE(torch::allclose(here[0][i], there[0][i].cpu(), 1e-3, 1e-3)) << i;
    EXPECT_TRUE(torch::allclose(here[4][i], there[4][i].cpu(), 1e-5, 1e-7)) << i;
    // A number in the middle of two codes may go to either.
    if (here[2][i].numel() == 0) continue;
    EXPECT_LE((here[2][i].to(at::kInt) - there[2][i].cpu().to(at::kInt)).abs().max().item<int>(), 1) << i;
  }
}

}  // namespace
}  // namespace levin::kernels
