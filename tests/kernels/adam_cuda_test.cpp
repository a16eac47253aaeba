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

/// Up to the last bits of numbers near 1, which depend on how a compiler joins products and sums.
void expect_same(const Lists& ours, const Lists& theirs, const std::string& what) {
  for (size_t k = 0; k < ours.size(); ++k)
    for (size_t i = 0; i < ours[k].size(); ++i) {
      const auto dtype = ours[k][i].scalar_type();
      const double bit = dtype == at::kDouble ? 1e-15 : dtype == at::kFloat ? 2e-7 : dtype == at::kHalf ? 1e-3 : 8e-3;
      EXPECT_TRUE(torch::allclose(ours[k][i], theirs[k][i], 4 * bit, 4 * bit))
          << what << " list " << k << " tensor " << i;
    }
}

std::vector<Tensor> without_empty(std::vector<Tensor> list) {
  std::erase_if(list, [](const Tensor& tensor) { return tensor.numel() == 0; });
  for (auto& tensor : list) tensor = tensor.cuda();
  return list;
}

template <class Numbers>
Tensor on_device(const Numbers& n) {
  return torch::from_blob(const_cast<Numbers*>(&n), {sizeof(Numbers)}, at::kByte).cuda();
}

// Steps of a graph follow on eager ones of torch's kernels, so not a bit may differ.
TEST_F(FusedOnCuda, RefreshedAdamRoundsAsTorch) {
  torch::manual_seed(8);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const bool amsgrad : {false, true})
      for (const bool decoupled : {false, true})
        for (const bool scaled : {false, true}) {
          const AdamNumbers wrong{7, 0, 0, 1, 0, amsgrad, true, decoupled};
          const AdamNumbers n{1.7e-3, 0.9, 0.999, 1e-8, 0.03, amsgrad, amsgrad, decoupled};
          Lists ours{without_empty(numbers(dtype, 1, false)), without_empty(numbers(dtype, 1, false)),
                     without_empty(numbers(dtype, 0.1, false)), without_empty(numbers(dtype, 0.1, true)),
                     without_empty(numbers(dtype, 0.1, true))};
          if (!amsgrad) ours[4].clear();
          ours.emplace_back();
          for (size_t i = 0; i < ours[0].size(); ++i) ours[5].push_back(torch::full({}, 1.0f + i % 50, at::kCUDA));
          Lists theirs;
          for (const auto& list : ours) {
            auto& copy = theirs.emplace_back();
            for (const auto& tensor : list) copy.push_back(tensor.clone());
          }
          const auto scale = torch::full({}, 1024.0f, at::kCUDA), found = torch::zeros({}, at::kCUDA);
          const auto memory = on_device(n);
          for (int step = 0; step < 3; ++step) {
            StepScale s;
            std::optional<Tensor> grad_scale, found_inf;
            if (scaled) s = {scale, found}, grad_scale = scale, found_inf = found;
            fused_adam({ours[0], ours[1], ours[2], ours[3], ours[4], ours[5]}, wrong, s,
                       {static_cast<const AdamNumbers*>(memory.const_data_ptr()), true});
            const auto op = [&](auto torch_step) {
              torch_step(theirs[0], theirs[1], theirs[2], theirs[3], theirs[4], theirs[5], n.lr, n.beta1, n.beta2,
                         n.weight_decay, n.eps, n.amsgrad, n.maximize, grad_scale, found_inf);
            };
            decoupled ? op([](auto&&... a) { at::_fused_adamw_(a...); })
                      : op([](auto&&... a) { at::_fused_adam_(a...); });
            for (auto* lists : {&ours, &theirs})
              for (auto& grad : (*lists)[1]) grad.copy_(torch::linspace(-1, 1, grad.numel(), grad.options()));
          }
          expect_same(ours, theirs,
                      c10::toString(dtype) + std::string(amsgrad ? " amsgrad" : "") + (decoupled ? " decoupled" : "") +
                          (scaled ? " scaled" : ""));
        }
}

TEST_F(FusedOnCuda, RefreshedSgdRoundsAsTorch) {
  torch::manual_seed(9);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const double momentum : {0.0, 0.9})
      for (const bool nesterov : {false, true})
        for (const bool scaled : {false, true}) {
          if (nesterov && momentum == 0) continue;
          const SgdNumbers wrong{7, momentum, 0, 3, nesterov, true, false};
          const SgdNumbers n{0.0137, momentum, nesterov ? 0 : 0.1, 0.05, nesterov, false, false};
          Lists ours{without_empty(numbers(dtype, 1, false)), without_empty(numbers(dtype, 1, false)),
                     without_empty(numbers(dtype, 1, false))};
          if (momentum == 0) ours[2].clear();
          Lists theirs;
          for (const auto& list : ours) {
            auto& copy = theirs.emplace_back();
            for (const auto& tensor : list) copy.push_back(tensor.clone());
          }
          const auto memory = on_device(n);
          StepScale s;
          std::optional<Tensor> grad_scale, found_inf;
          if (scaled) {
            grad_scale = torch::full({}, 1024.0f, at::kCUDA);
            found_inf = torch::zeros({}, at::kCUDA);
            s = {grad_scale, found_inf};
          }
          fused_sgd({ours[0], ours[1], ours[2]}, wrong, s,
                    {static_cast<const SgdNumbers*>(memory.const_data_ptr()), true});
          at::_fused_sgd_(theirs[0], theirs[1], theirs[2], n.weight_decay, n.momentum, n.lr, n.dampening, n.nesterov,
                          n.maximize, false, grad_scale, found_inf);
          ours.erase(ours.begin() + 1);  // torch's kernel writes the gradient that it has unscaled
          theirs.erase(theirs.begin() + 1);
          expect_same(ours, theirs, c10::toString(dtype) + std::string(nesterov ? " nesterov" : ""));
        }
}

TEST_F(FusedOnCuda, RefreshedNumbersAreReadWhenTheKernelRuns) {
  torch::manual_seed(10);
  const AdamNumbers n{0.01, 0.9, 0.95, 1e-6, 0.1, false, false, true}, other{1, 0, 0, 1, 0, false, false, true};
  const auto memory = on_device(n);
  const auto* refreshed = static_cast<const AdamNumbers*>(memory.const_data_ptr());
  Lists by_value{without_empty(numbers(at::kFloat, 1, false)), without_empty(numbers(at::kBFloat16, 1, false)),
                 without_empty(numbers(at::kFloat, 0.1, false)), without_empty(numbers(at::kFloat, 0.1, true))};
  by_value.emplace_back(by_value[0].size(), torch::full({}, 3.0f, at::kCUDA));
  Lists by_pointer;
  for (const auto& list : by_value) {
    auto& copy = by_pointer.emplace_back();
    for (const auto& tensor : list) copy.push_back(tensor.clone());
  }
  fused_adam({by_value[0], by_value[1], by_value[2], by_value[3], {}, by_value[4]}, n);
  fused_adam({by_pointer[0], by_pointer[1], by_pointer[2], by_pointer[3], {}, by_pointer[4]}, other, {},
             {.refreshed = refreshed});
  expect_same(by_pointer, by_value, "adam");
}

}  // namespace
}  // namespace levin::kernels
