// Steps of some parameters alone, gradients and averages narrower than the parameter, and 16-bit copies.
#include <thread>

#include "fixtures.h"
#include "levin/optim/host_step.h"
#include "levin/optim/optim.h"

namespace levin::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kKinds = 8;

Optimizer make(size_t kind, const std::vector<at::Tensor>& params) {
  switch (kind) {
    case 0:
      return SGD(params, {.lr = 0.1, .momentum = 0.9});
    case 1:
      return Adam(params, {.lr = 0.01, .weight_decay = 0.1});
    case 2:
      return AdamW(params, {.lr = 0.01, .amsgrad = true});
    case 3:
      return Adagrad(params);
    case 4:
      return Lion(params);
    case 5:
      return Lamb(params, {.lr = 0.01});
    case 6:
      return SGD(params, {.lr = 0.1, .momentum = 0.9, .dampening = 0.1});
    default:
      return Adafactor(params);
  }
}

std::vector<at::Tensor> make_params() {
  std::vector<at::Tensor> params;
  uint32_t index = 0;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{3, 5}, {70, 70}, {0, 4}, {7}})
    params.push_back(filled(shape, at::kFloat, index++, 0).requires_grad_());
  return params;
}

void set_grads(const std::vector<at::Tensor>& params, uint32_t step, at::ScalarType dtype = at::kFloat) {
  for (size_t i = 0; i < params.size(); ++i)
    params[i].mutable_grad() = filled(params[i].sizes(), at::kFloat, static_cast<uint32_t>(i), step);
  // Autograd checks what is assigned to it; what a strategy puts there goes past it.
  if (dtype != at::kFloat)
    for (const auto& param : params) param.grad().set_data(param.grad().to(dtype));
}

float steps_of(const Optimizer& optimizer, const char* index) {
  return optimizer.state_dict().at("state").to_dict().at(index).to_dict().at("step").to_tensor().item<float>();
}

TEST(StepParams, StepsOfSubsetsEqualTheFullStep) {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const auto whole = make_params(), parts = make_params();
    auto a = make(kind, whole), b = make(kind, parts);
    for (uint32_t step = 1; step <= 4; ++step) {
      set_grads(whole, step);
      set_grads(parts, step);
      a.step();
      // One by one, from another thread, and now and then all at once: all ways share one state.
      if (step == 3) {
        b.step();
      } else {
        std::thread worker([&] {
          ASSERT_TRUE(b.impl()->step_params(std::vector{parts[1], parts[2]}));
          ASSERT_TRUE(b.impl()->step_params(std::vector{parts[0]}));
          ASSERT_TRUE(b.impl()->step_params(std::vector{parts[3]}));
        });
        worker.join();
      }
    }
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::equal(whole[i], parts[i])) << a.name() << " " << i;
  }
}

TEST(StepParams, LeavesOthersAlone) {
  const auto params = make_params();
  AdamW opt(params, {.lr = 0.1});
  set_grads(params, 1);
  const auto before = params[0].clone();
  ASSERT_TRUE(opt.impl()->step_params(std::vector{params[1]}));
  EXPECT_TRUE(torch::equal(params[0], before));
  EXPECT_FALSE(opt.state_dict().at("state").to_dict().contains("0"));
  ASSERT_TRUE(opt.impl()->step_params(std::vector{params[1]}));
  ASSERT_TRUE(opt.impl()->step_params(std::vector{params[0]}));
  EXPECT_EQ(steps_of(opt, "1"), 2);
  EXPECT_EQ(steps_of(opt, "0"), 1);
  params[1].mutable_grad().reset();
  const auto still = params[1].clone();
  ASSERT_TRUE(opt.impl()->step_params(std::vector{params[1]}));
  EXPECT_TRUE(torch::equal(params[1], still));
  opt.step();
  EXPECT_EQ(steps_of(opt, "1"), 2);
  EXPECT_EQ(steps_of(opt, "0"), 2);
  EXPECT_THAT(error_of([&] { (void)opt.impl()->step_params(std::vector{torch::ones({9})}); }),
              StartsWith("[AdamW.step_params] a tensor of shape [9] is none of the optimizer's parameters"));
  auto more = torch::ones({2}).requires_grad_();
  more.mutable_grad() = torch::ones({2});
  opt.add_param_group({more});
  ASSERT_TRUE(opt.impl()->step_params(std::vector{more}));
  EXPECT_LT(more[0].item<float>(), 1);
}

TEST(StepParams, UnderALossScaler) {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const auto whole = make_params(), parts = make_params();
    auto a = make(kind, whole), b = make(kind, parts);
    const GradScale scale{torch::tensor(8.0f), torch::tensor(0.0f)}, inf{torch::tensor(8.0f), torch::tensor(2.0f)};
    set_grads(whole, 1);
    set_grads(parts, 1);
    for (const auto& param : parts) param.grad().mul_(8);
    if (kind >= 4) {
      EXPECT_FALSE(b.impl()->step_params(parts, &scale)) << b.name();
      EXPECT_THAT(error_of([&] { host_step(b, parts, {}, &scale); }), HasSubstr("under a loss scaler")) << b.name();
      continue;
    }
    a.step();
    ASSERT_TRUE(b.impl()->step_params(parts, &scale));
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::equal(whole[i], parts[i])) << b.name();
    ASSERT_TRUE(b.impl()->step_params(parts, &inf));
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::equal(whole[i], parts[i])) << b.name();
    if (kind > 0) {
      EXPECT_EQ(steps_of(b, "0"), 1);
    }
  }
}

TEST(HostStep, WritesTheCopiesOfEveryOptimizer) {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const auto masters = make_params(), alone = make_params();
    auto opt = make(kind, masters), other = make(kind, alone);
    std::vector<at::Tensor> copies;
    for (const auto& master : masters) copies.push_back(torch::zeros_like(master, at::kBFloat16));
    copies[3] = at::Tensor();
    for (uint32_t step = 1; step <= 2; ++step) {
      set_grads(masters, step, at::kBFloat16);
      set_grads(alone, step);
      for (const auto& param : alone) param.grad().copy_(param.grad().to(at::kBFloat16));
      host_step(opt, masters, copies);
      other.step();
    }
    for (size_t i = 0; i < masters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(masters[i], alone[i], 1e-6, 1e-6)) << opt.name();
      if (!copies[i].defined()) continue;
      EXPECT_TRUE(torch::equal(copies[i], masters[i].to(at::kBFloat16))) << opt.name();
    }
  }
  EXPECT_THAT(error_of([&] { host_step(adapt(torch::optim::SGD(make_params(), 0.1)), make_params()); }),
              StartsWith("[host_step] SGD cannot step a part of its parameters; Levin's own optimizers can"));
}

TEST(NarrowGradients, AreTakenOrCast) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (size_t kind = 0; kind < kKinds; ++kind) {
      const auto narrow = make_params(), wide = make_params();
      auto a = make(kind, narrow), b = make(kind, wide);
      for (uint32_t step = 1; step <= 4; ++step) {
        // The lists must follow a dtype that changes between steps.
        set_grads(narrow, step, step == 3 ? at::kFloat : dtype);
        set_grads(wide, step);
        for (const auto& param : wide)
          if (step != 3) param.grad().copy_(param.grad().to(dtype));
        a.step();
        b.step();
      }
      for (size_t i = 0; i < narrow.size(); ++i)
        EXPECT_TRUE(torch::allclose(narrow[i], wide[i], 1e-5, 1e-6)) << a.name() << " " << i;
    }
}

TEST(MomentsDtype, FloatForBFloat16Parameters) {
  const auto start = filled({70, 70}, at::kBFloat16, 0, 0);
  auto low = start.clone().requires_grad_(), other = start.clone().requires_grad_();
  auto high = start.to(at::kFloat).requires_grad_();
  AdamW a({low}, {.lr = 0.02, .moments_dtype = at::kFloat}), b({high}, {.lr = 0.02}), c({other}, {.lr = 0.02});
  for (uint32_t step = 1; step <= 5; ++step) {
    const auto grad = filled({70, 70}, at::kBFloat16, 0, step);
    low.mutable_grad() = grad;
    other.mutable_grad() = grad;
    high.mutable_grad() = grad.to(at::kFloat);
    a.step();
    b.step();
    c.step();
  }
  const auto average = [](const Optimizer& opt) {
    return opt.state_dict().at("state").to_dict().at("0").to_dict().at("exp_avg_sq").to_tensor();
  };
  EXPECT_EQ(average(a).scalar_type(), at::kFloat);
  EXPECT_EQ(average(c).scalar_type(), at::kBFloat16);
  EXPECT_TRUE(torch::allclose(average(a), average(b), 1e-6, 1e-9)) << "averages keep their precision";
  EXPECT_LT((low.to(at::kFloat) - high).abs().max().item<float>(), 2e-2);
  // The dtype is the optimizer's, whatever a file has.
  AdamW loaded({low}, {.moments_dtype = at::kFloat});
  loaded.load_state_dict(c.state_dict());
  EXPECT_EQ(average(loaded).scalar_type(), at::kFloat);
  EXPECT_EQ(error_of([&] { AdamW({low}, {.moments_dtype = at::kHalf}); }),
            "[AdamW] moments_dtype=Half is not known; Float and BFloat16 are");
}

TEST(MomentsDtype, BFloat16ForFloatParameters) {
  auto low = filled({50, 9}, at::kFloat, 0, 0).requires_grad_(), high = low.detach().clone().requires_grad_();
  Adam a({low}, {.lr = 0.02, .betas = {0.9, 0.95}, .moments_dtype = at::kBFloat16});
  Adam b({high}, {.lr = 0.02, .betas = {0.9, 0.95}});
  for (uint32_t step = 1; step <= 5; ++step) {
    low.mutable_grad() = filled({50, 9}, at::kFloat, 0, step);
    high.mutable_grad() = filled({50, 9}, at::kFloat, 0, step);
    a.step();
    b.step();
  }
  EXPECT_LT((low - high).abs().max().item<float>(), 2e-3);
  EXPECT_FALSE(torch::equal(low, high));
}

}  // namespace
}  // namespace levin::optim
