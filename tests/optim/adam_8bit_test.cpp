// Adam with 8-bit state: the map, the codes, and that it learns as Adam does.
#include "levin/kernels/fused_step/adam_8bit.h"

#include <ATen/Parallel.h>

#include "fixtures.h"
#include "levin/optim/optim.h"

namespace levin::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;

at::Tensor state_of(const Optimizer& optimizer, const char* index, const char* name) {
  return optimizer.state_dict().at("state").to_dict().at(index).to_dict().at(name).to_tensor();
}

TEST(DynamicCodes, AreThePublishedMap) {
  const auto &with = kernels::dynamic_codes(true), &without = kernels::dynamic_codes(false);
  EXPECT_TRUE(std::ranges::is_sorted(with));
  EXPECT_TRUE(std::ranges::is_sorted(without));
  EXPECT_EQ(with[127], 0);
  EXPECT_EQ(without[0], 0);
  EXPECT_EQ(with[255], 1);
  EXPECT_EQ(without[255], 1);
  EXPECT_FLOAT_EQ(with[0], -0.99296875f);
  EXPECT_FLOAT_EQ(with[128], 5.5e-7f);
  EXPECT_FLOAT_EQ(without[1], 3.25e-7f);
  EXPECT_FLOAT_EQ(without[254], 0.996484375f);
}

// What the kernel should have kept, element by element.
TEST(Codes, AreTheNearestOfTheirBlock) {
  const int64_t numel = 4096 + 300;
  auto w = filled({numel}, at::kFloat, 0, 0).requires_grad_();
  const auto grad = filled({numel}, at::kFloat, 0, 1).pow(3);
  w.mutable_grad() = grad;
  Adam8bit opt({w}, {.betas = {0.9, 0.99}});
  opt.step();
  for (const bool with_sign : {true, false}) {
    const auto exact = with_sign ? grad * 0.1f : grad * grad * 0.01f;
    const auto codes = state_of(opt, "0", with_sign ? "state1" : "state2");
    const auto scales = state_of(opt, "0", with_sign ? "absmax1" : "absmax2");
    ASSERT_EQ(codes.sizes(), at::IntArrayRef({18, 256}));
    const auto& values = kernels::dynamic_codes(with_sign);
    for (int64_t i = 0; i < numel; ++i) {
      const auto block = exact.narrow(0, i / 256 * 256, std::min<int64_t>(256, numel - i / 256 * 256));
      if (i % 256 == 0) {
        EXPECT_NEAR(scales[i / 256].item<float>(), block.abs().max().item<float>(), 1e-6) << i;
      }
      const float x = exact[i].item<float>() / scales[i / 256].item<float>();
      const float got = values[codes.view({-1})[i].item<uint8_t>()];
      float least = 9;
      for (const float value : values) least = std::min(least, std::abs(value - x));
      if (!with_sign && x > 0 && got == values[1]) continue;  // never zero
      ASSERT_NEAR(std::abs(got - x), least, 1e-6) << i << " " << x << " " << got;
    }
    const auto back = kernels::from_codes(codes, scales, with_sign, numel);
    EXPECT_LT((back - exact).abs().max().item<float>(), with_sign ? 2e-3 : 2e-4);
  }
}

// bitsandbytes' numbers (make_8bit_fixtures.py). It lets small squares become zero, and picks one of two equally near
// codes by another rule, so a few codes are neighbours.
TEST(Adam8bit, EqualsThePublishedOptimizer) {
  const auto expected = fixture("adam_8bit");
  for (const bool with_sign : {true, false})
    for (size_t k = 0; k < 256; ++k)
      EXPECT_NEAR(kernels::dynamic_codes(with_sign)[k], expected.at(with_sign ? "signed" : "unsigned")[k].get<float>(),
                  1e-7)
          << k;
  auto w = filled({4352}, at::kFloat, 0, 0).requires_grad_();
  Adam8bit opt({w}, {.lr = 0.01, .betas = {0.9, 0.95}});
  for (uint32_t step = 1; step <= 5; ++step) {
    w.mutable_grad() = filled({4352}, at::kFloat, 0, step);
    opt.step();
  }
  const auto& params = expected.at("params");
  const auto codes1 = state_of(opt, "0", "state1").view({-1}), codes2 = state_of(opt, "0", "state2").view({-1});
  int other = 0;
  double far = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto at = static_cast<int64_t>(i) * 8;
    EXPECT_NEAR(w[at].item<float>(), params[i].get<float>(), 1e-3) << at;
    far += std::abs(w[at].item<float>() - params[i].get<float>());
    other += codes1[at].item<uint8_t>() != expected.at("state1")[i].get<int>();
    other += codes2[at].item<uint8_t>() != expected.at("state2")[i].get<int>();
  }
  EXPECT_LT(far / static_cast<double>(params.size()), 1e-5) << "a step moves by about 1e-2";
  EXPECT_LT(other, 40) << "of " << 2 * params.size();
  for (const char* name : {"absmax1", "absmax2"})
    for (int64_t block = 0; block < 17; ++block)
      EXPECT_NEAR(state_of(opt, "0", name)[block].item<float>(), expected.at(name)[static_cast<size_t>(block)], 1e-3)
          << name;
}

struct Trained {
  double first = 0, last = 0;
  std::vector<at::Tensor> params;
};

// A small regression; weights of 64 x 100 and more have codes, biases have none.
template <class Make>
Trained train(Make&& make, int threads = 2) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  torch::manual_seed(11);
  torch::nn::Sequential net(torch::nn::Linear(32, 200), torch::nn::Tanh(), torch::nn::Linear(200, 100),
                            torch::nn::Tanh(), torch::nn::Linear(100, 1));
  const auto x = torch::randn({64, 32}), y = (x.narrow(1, 0, 3).sum(1, true)).sin();
  auto opt = make(net->parameters());
  Trained out;
  for (int step = 0; step < 150; ++step) {
    const auto loss = torch::mse_loss(net->forward(x), y);
    if (step == 0) out.first = loss.template item<double>();
    out.last = loss.template item<double>();
    loss.backward();
    opt.step();
    opt.zero_grad();
  }
  out.params = net->parameters();
  at::set_num_threads(before);
  return out;
}

TEST(Adam8bit, LearnsAsAdamDoes) {
  const auto full = train([](auto params) { return AdamW(params, {.lr = 3e-3}); });
  const auto small = train([](auto params) { return AdamW8bit(params, {.lr = 3e-3}); });
  EXPECT_EQ(full.first, small.first);
  EXPECT_LT(full.last, full.first / 20);
  EXPECT_LT(small.last, small.first / 20) << "Adam comes to " << full.last;
  double far = 0, way = 0;
  torch::manual_seed(11);
  for (size_t i = 0; i < full.params.size(); ++i) {
    far += (full.params[i] - small.params[i]).square().sum().item<double>();
    way += full.params[i].square().sum().item<double>();
  }
  EXPECT_LT(std::sqrt(far / way), 0.1);
}

TEST(Adam8bit, ThreadsDoNotChangeTheNumbers) {
  std::vector<at::Tensor> results;
  for (const int threads : {1, 4}) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    auto w = filled({70, 2000}, at::kFloat, 0, 0).requires_grad_();
    AdamW8bit opt({w});
    for (uint32_t step = 1; step <= 2; ++step) {
      w.mutable_grad() = filled({70, 2000}, at::kFloat, 0, step);
      opt.step();
    }
    results.push_back(w.detach());
    at::set_num_threads(before);
  }
  EXPECT_TRUE(torch::equal(results[0], results[1]));
}

TEST(Adam8bit, StateTakesTwoBytesAnElementAndIsLoadedBack) {
  auto big = filled({64, 128}, at::kBFloat16, 0, 0).requires_grad_();
  auto small = filled({100}, at::kFloat, 1, 0).requires_grad_();
  auto none = torch::ones({0, 5}).requires_grad_(), exact = filled({70, 70}, at::kDouble, 2, 0).requires_grad_();
  const std::vector<at::Tensor> params{big, small, none, exact};
  const auto set_grads = [](const std::vector<at::Tensor>& list, uint32_t step) {
    for (size_t i = 0; i < list.size(); ++i)
      list[i].mutable_grad() = filled(list[i].sizes(), list[i].scalar_type(), static_cast<uint32_t>(i), step);
  };
  Adam8bit opt(params, {.lr = 0.01});
  for (uint32_t step = 1; step <= 3; ++step) {
    set_grads(params, step);
    opt.step();
  }
  int64_t bytes = 0;
  for (const char* name : {"state1", "state2", "absmax1", "absmax2"}) bytes += state_of(opt, "0", name).nbytes();
  EXPECT_EQ(bytes, 64 * 128 * 2 + 64 * 128 / 256 * 8);
  EXPECT_EQ(state_of(opt, "1", "state1").scalar_type(), at::kFloat);
  EXPECT_EQ(state_of(opt, "1", "state1").sizes(), at::IntArrayRef({100}));

  std::vector<at::Tensor> others;
  for (const auto& param : params) others.push_back(param.detach().clone().requires_grad_());
  Adam8bit resumed(others);
  resumed.load_state_dict(opt.state_dict());
  for (uint32_t step = 4; step <= 5; ++step) {
    set_grads(params, step);
    set_grads(others, step);
    opt.step();
    resumed.step();
  }
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(torch::equal(params[i], others[i])) << i;
  EXPECT_THAT(error_of([&] { Adam(params).load_state_dict(opt.state_dict()); }), HasSubstr("another optimizer's"));
}

// As a strategy asks for it that divides parameters: floats, which become the very codes again.
TEST(Adam8bit, ShowsShardsAsFloatsAndQuantizesThemAgain) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    auto w = torch::zeros({20, 9, 8, 7}).contiguous(format).requires_grad_();
    Adam8bit opt({w}, {.lr = 0.01});
    for (uint32_t step = 1; step <= 3; ++step) {
      auto grad = filled(w.sizes(), at::kFloat, 0, step).pow(3);
      grad.narrow(0, 2, 2).zero_();
      grad.narrow(0, 5, 1).mul_(-1e-6);
      w.mutable_grad() = grad.contiguous(format);
      opt.step();
    }
    std::map<std::string, at::Tensor> codes;
    for (const char* name : {"state1", "state2", "absmax1", "absmax2"}) codes[name] = state_of(opt, "0", name).clone();
    EXPECT_TRUE((codes["state1"] == 0).any().item<bool>());  // the largest is negative somewhere
    opt.impl()->set_shards({.find = [](const at::Tensor& param) {
      return std::optional(ParamShard{.first = 0, .full_numel = param.numel()});
    }});
    const auto shown = opt.state_dict();
    const auto& state = shown.at("state").to_dict().at("0").to_dict();
    EXPECT_FALSE(state.contains("absmax1"));
    const auto average = state.at("state1").to_tensor();
    EXPECT_EQ(average.sizes(), w.sizes());
    EXPECT_EQ(average[3][2][1][0].item<float>() > 0, w[3][2][1][0].item<float>() < 0);

    auto other = w.detach().clone().requires_grad_();
    Adam8bit whole({other});
    whole.load_state_dict(shown);
    for (const auto& [name, tensor] : codes) EXPECT_TRUE(at::equal(state_of(whole, "0", name.c_str()), tensor)) << name;
    if (format != at::MemoryFormat::Contiguous) continue;
    // And a part takes its elements of what one process has saved; its blocks are others.
    auto part = w.detach().narrow(0, 8, 12).clone().requires_grad_();
    Adam8bit sharded({part});
    sharded.impl()->set_shards({.find = [](const at::Tensor&) {
      return std::optional(ParamShard{.first = 8 * 504, .full_numel = 20 * 504});
    }});
    sharded.load_state_dict(whole.state_dict());
    const auto far = (state_of(sharded, "0", "state1") - average.narrow(0, 8, 12)).abs().max().item<float>();
    EXPECT_GT(far, 0);
    EXPECT_LT(far, 0.02f * average.abs().max().item<float>());
  }
}

TEST(Adam8bit, KeepsItsMemoryFormat) {
  auto w = torch::ones({4, 4, 16, 16}).requires_grad_();
  Adam8bit opt({w});
  w.mutable_grad() = torch::ones_like(w);
  opt.step();
  w.set_data(w.detach().contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_THAT(error_of([&] { opt.step(); }), HasSubstr("its memory format must stay as it was at the first step"));
}

TEST(Adam8bit, UnderALossScaler) {
  auto plain = filled({5000}, at::kFloat, 0, 0).requires_grad_(), scaled = plain.detach().clone().requires_grad_();
  AdamW8bit a({plain}), b({scaled});
  plain.mutable_grad() = filled({5000}, at::kFloat, 0, 1);
  scaled.mutable_grad() = filled({5000}, at::kFloat, 0, 1) * 16;
  a.step();
  ASSERT_TRUE(b.impl()->step_scaled({torch::tensor(16.0f), torch::tensor(0.0f)}));
  EXPECT_TRUE(torch::equal(plain, scaled));
  ASSERT_TRUE(b.impl()->step_scaled({torch::tensor(16.0f), torch::tensor(1.0f)}));
  EXPECT_TRUE(torch::equal(plain, scaled));
  EXPECT_TRUE(torch::equal(state_of(a, "0", "state2"), state_of(b, "0", "state2")));
  EXPECT_EQ(state_of(b, "0", "step").item<float>(), 1);
}

}  // namespace
}  // namespace levin::optim
