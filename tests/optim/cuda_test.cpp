// The same numbers on the GPU, and no waiting for it. Skipped where there is none.
#include <chrono>

#include "levin/optim/optim.h"
#include "levin/testing/gpu.h"
#include "make_optimizer.h"

namespace levin::optim {
namespace {

using namespace testing;

class Cuda : public levin::testing::GpuTest {};

std::vector<Optimizer> one_of_each(const std::vector<at::Tensor>& params) {
  return {SGD(params, {.lr = 0.02, .momentum = 0.9}),
          Adam(params, {.lr = 0.02}),
          AdamW(params, {.lr = 0.02}),
          Adagrad(params, {.lr = 0.02}),
          Lion(params, {.lr = 0.02}),
          Lamb(params, {.lr = 0.02}),
          Adafactor(params, {.lr = 0.02})};
}

TEST_F(Cuda, EqualsTorch) {
  const auto cases = fixture("optimizers");
  for (const auto& test : cases) {
    const auto dtype = test.at("dtype") == "float32" ? at::kFloat : at::kDouble;
    const std::string label = test.at("optimizer").get<std::string>() + " " + test.at("options").dump();
    Problem problem(dtype, at::kCUDA);
    auto optimizer = make_optimizer(test, problem.groups);
    for (int step = 1; step <= 10; ++step) {
      if (step == 6) {  // through a state dict on the CPU
        StateDict saved = optimizer.state_dict();
        for (auto& [index, state] : saved["state"].to_dict())
          for (auto& [name, value] : state.to_dict()) value = value.to_tensor().cpu();
        optimizer = make_optimizer(test, problem.groups);
        optimizer.load_state_dict(saved);
      }
      problem.set_grads(step);
      optimizer.step();
      const auto snapshot = test.at("snapshots").find(std::to_string(step));
      if (snapshot == test.at("snapshots").end()) continue;
      for (size_t k = 0; k < problem.all.size(); ++k)
        expect_near(problem.all[k], snapshot->at(k), dtype == at::kFloat ? 1e-6 : 1e-12,
                    label + " step " + std::to_string(step));
    }
  }
}

TEST_F(Cuda, HalfPrecision) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (size_t k = 0; k < 7; ++k) {
      const auto start = filled({10, 130}, dtype, 0, 0).cuda();
      auto low = start.clone().requires_grad_(), high = start.to(at::kDouble).requires_grad_();
      auto low_opt = one_of_each({low})[k], high_opt = one_of_each({high})[k];
      for (uint32_t step = 1; step <= 4; ++step) {
        const auto grad =
            filled({10, 130}, dtype, 0, step).cuda().masked_fill_(filled({10, 130}, dtype, 0, step).cuda() == 0, 0.25);
        low.mutable_grad() = grad.clone();
        high.mutable_grad() = grad.to(at::kDouble);
        low_opt.step();
        high_opt.step();
      }
      EXPECT_LT((low.to(at::kDouble) - high).abs().max().item<double>(), dtype == at::kHalf ? 2e-3 : 2e-2)
          << low_opt.name();
      EXPECT_GT((high - start).abs().mean().item<double>(), 0.01) << low_opt.name();
    }
}

TEST_F(Cuda, ScaledStepsSkipOnInf) {
  for (size_t k = 0; k < 4; ++k) {
    auto plain = torch::ones({300}, at::kCUDA).requires_grad_(), scaled = plain.detach().clone().requires_grad_();
    auto a = one_of_each({plain})[k], b = one_of_each({scaled})[k];
    const auto scale = torch::full({}, 1024.0f, at::kCUDA);
    for (const float grad : {0.5f, std::numeric_limits<float>::infinity(), 0.25f}) {
      const bool is_inf = std::isinf(grad);
      plain.mutable_grad() = torch::full({300}, grad, at::kCUDA);
      scaled.mutable_grad() = torch::full({300}, grad * 1024, at::kCUDA);
      if (!is_inf) a.step();
      ASSERT_TRUE(b.impl()->step_scaled({scale, torch::full({1}, is_inf ? 3.0f : 0.0f, at::kCUDA)}));
      EXPECT_TRUE(torch::equal(plain, scaled)) << a.name();
    }
    if (k > 0) {
      EXPECT_EQ(b.state_dict().at("state").to_dict().at("0").to_dict().at("step").to_tensor().item<float>(), 2)
          << a.name();
    }
  }
}

TEST_F(Cuda, ClipEqualsTorchAndMixesDevices) {
  const auto cases = fixture("clip");
  for (const auto& test : cases) {
    Problem problem(test.at("dtype") == "float32" ? at::kFloat : at::kDouble, at::kCUDA);
    problem.set_grads(1);
    const double norm_type =
        test.at("norm_type").is_string() ? std::numeric_limits<double>::infinity() : test.at("norm_type").get<double>();
    const double tolerance = problem.dtype == at::kFloat ? 1e-6 : 1e-12;
    const auto total = clip_grad_norm(problem.all, test.at("max_norm"), norm_type);
    EXPECT_NEAR(total.item<double>(), test.at("total").get<double>(), tolerance * test.at("total").get<double>());
    for (size_t k = 0; k < problem.all.size(); ++k)
      if (!test.at("grads")[k].is_null()) expect_near(problem.all[k].grad(), test.at("grads")[k], tolerance, "clip");
  }
  auto here = torch::ones({2}).requires_grad_(), there = torch::ones({2}, at::kCUDA).requires_grad_();
  here.mutable_grad() = torch::full({2}, 3.0f);
  there.mutable_grad() = torch::full({2}, 4.0f, at::kCUDA);
  AdamW opt({here, there});
  EXPECT_NEAR(clip_grad_norm(opt.all_params(), 1).item<float>(), std::sqrt(50.0), 1e-5);
  opt.step();
  EXPECT_NEAR(here[0].item<float>(), there[0].item<float>(), 1e-7);
}

TEST_F(Cuda, NeverWaitsForTheDevice) {
  auto w = torch::ones({64, 64}, at::kCUDA).requires_grad_(), b = torch::ones({64}, at::kCUDA).requires_grad_();
  const auto a = torch::randn({8192, 8192}, at::kCUDA);
  for (size_t k = 0; k < 7; ++k) {
    w.mutable_grad() = torch::ones_like(w);
    b.mutable_grad() = torch::ones_like(b);
    auto opt = one_of_each({w, b})[k];
    for (int i = 0; i < 2; ++i) {  // the first use of a kernel loads it, and that waits
      (void)clip_grad_norm(opt.all_params(), 1);
      opt.step();
    }
    torch::cuda::synchronize();
    for (int i = 0; i < 10; ++i) (void)a.mm(a);  // some 200 ms of work
    const auto start = std::chrono::steady_clock::now();
    (void)clip_grad_norm(opt.all_params(), 1);
    opt.step();
    opt.zero_grad();
    const double host_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    torch::cuda::synchronize();
    const double device_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(host_ms, device_ms / 3) << opt.name() << ": host " << host_ms << " ms, device " << device_ms << " ms";
  }
}

TEST_F(Cuda, IsQuickerThanTorchsLoop) {
  std::vector<at::Tensor> params;
  for (int i = 0; i < 300; ++i) {
    params.push_back(torch::ones({256, 256}, at::kCUDA).requires_grad_());
    params.back().mutable_grad() = torch::ones_like(params.back());
  }
  const auto ms = [](Optimizer opt) {
    for (int i = 0; i < 3; ++i) opt.step();
    torch::cuda::synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) opt.step();
    torch::cuda::synchronize();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / 20;
  };
  const double ours = ms(AdamW(params)), theirs = ms(adapt(torch::optim::AdamW(params, 1e-3)));
  std::printf("AdamW over 300 tensors of 256x256: Levin %.3f ms, torch::optim %.3f ms a step\n", ours, theirs);
  EXPECT_LT(ours, theirs);
}

}  // namespace
}  // namespace levin::optim
