// What the optimizers do besides the numbers: construction, errors, gradients that are missing, strange or scaled.
#include <chrono>

#include "fixtures.h"
#include "levin/devices/memory_counter.h"
#include "levin/optim/optim.h"

namespace levin::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::StartsWith;

at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return torch::ones(shape, dtype).requires_grad_();
}
at::Tensor leaf_with_grad(at::IntArrayRef shape, double grad, at::ScalarType dtype = at::kFloat) {
  auto w = leaf(shape, dtype);
  w.mutable_grad() = torch::full(shape, grad, dtype);
  return w;
}
at::Tensor state_of(const Optimizer& optimizer, const char* index, const char* name) {
  return optimizer.state_dict().at("state").to_dict().at(index).to_dict().at(name).to_tensor();
}

/// One of each, over the same parameters.
std::vector<Optimizer> one_of_each(const std::vector<at::Tensor>& params) {
  return {SGD(params, {.lr = 0.1, .momentum = 0.9}),
          Adam(params),
          AdamW(params),
          Adagrad(params),
          Lion(params),
          Lamb(params),
          Adafactor(params)};
}

TEST(Construction, TakesListsAndGroupsWithOverrides) {
  torch::nn::Linear net(4, 2);
  AdamW plain(net->parameters(), {.lr = 3e-4, .weight_decay = 0.01});
  EXPECT_EQ(plain.num_groups(), 1u);
  EXPECT_EQ(plain.lr(), 3e-4);
  EXPECT_EQ(AdamW(net->parameters()).hyper("weight_decay"), 1e-2);
  AdamW braced({net->weight, net->bias}, {.lr = 1.0});
  EXPECT_EQ(braced.params().size(), 2u);
  AdamW one({net->weight});
  EXPECT_EQ(one.params().size(), 1u);

  const std::vector<at::Tensor> decay{net->weight}, no_decay{net->bias};
  AdamW groups(
      {{.params = decay, .weight_decay = 0.1}, {.params = no_decay, .betas = {{0.8, 0.95}}, .weight_decay = 0.0}},
      {.lr = 3e-4});
  EXPECT_EQ(groups.num_groups(), 2u);
  EXPECT_EQ(groups.hyper("weight_decay", 0), 0.1);
  EXPECT_EQ(groups.hyper("weight_decay", 1), 0.0);
  EXPECT_EQ(groups.hyper("beta2", 0), 0.999);
  EXPECT_EQ(groups.hyper("beta2", 1), 0.95);
  EXPECT_EQ(groups.lr(1), 3e-4);
  EXPECT_EQ(groups.all_params().size(), 2u);
  AdamW only_groups({{.params = decay}, {.params = no_decay}});
  EXPECT_EQ(only_groups.num_groups(), 2u);

  Optimizer handle = groups;  // a copy shares
  handle.set_lr(1e-2, 1);
  EXPECT_EQ(groups.lr(1), 1e-2);
  EXPECT_EQ(handle.name(), "AdamW");
}

TEST(Construction, DropsRepeatsOfOneListOnly) {
  auto w = leaf({2}), b = leaf({1});
  SGD tied({w, b, w});
  EXPECT_EQ(tied.params().size(), 2u);
  EXPECT_THAT(error_of([&] {
                SGD({{.params = {w}}, {.params = {b, w}}});
              }),
              StartsWith("[SGD] parameter 1 of group 1 (shape [2]) is in group 0 too"));
}

TEST(Construction, ErrorsNameOptionAndValue) {
  const std::vector<at::Tensor> p{leaf({2})};
  EXPECT_EQ(error_of([&] { AdamW(p, {.lr = -1}); }), "[AdamW] lr=-1 must be a finite number >= 0");
  EXPECT_EQ(error_of([&] { Adam(p, {.betas = {0.9, 1.0}}); }), "[Adam] betas[1]=1 must be in [0, 1)");
  EXPECT_THAT(error_of([&] { Adam(p, {.eps = -1e-8}); }), HasSubstr("eps=-1e-08"));
  EXPECT_THAT(error_of([&] { AdamW({{.params = p, .weight_decay = -0.5}}, {}); }), HasSubstr("weight_decay=-0.5"));
  EXPECT_THAT(error_of([&] { SGD(p, {.nesterov = true}); }), HasSubstr("nesterov needs momentum > 0"));
  EXPECT_THAT(error_of([&] { SGD(p, {.lr = std::nan("")}); }), HasSubstr("lr=nan"));
  EXPECT_THAT(error_of([&] { Adagrad(p, {.lr_decay = -1}); }), HasSubstr("lr_decay=-1"));
  EXPECT_THAT(error_of([&] { Adafactor(p, {.beta2_decay = 0.8}); }), HasSubstr("beta2_decay=0.8 must be <= 0"));
  EXPECT_THAT(error_of([&] { Adafactor(p, {.d = 0.5}); }), HasSubstr("d=0.5 must be >= 1"));
  EXPECT_THAT(error_of([&] { Lion(p, {.betas = {-0.1, 0.9}}); }), HasSubstr("betas[0]=-0.1"));
  EXPECT_THAT(error_of([&] { Lamb(p, {.max_trust_ratio = 0}); }), HasSubstr("max_trust_ratio=0 must be > 0"));
  EXPECT_THAT(error_of([&] { SGD(std::vector<at::Tensor>{}); }), StartsWith("[SGD] the parameter list is empty"));
  EXPECT_THAT(error_of([&] { SGD({p[0] * 2}); }), StartsWith("[SGD] parameter 0 of group 0 (shape [2]) is not a leaf"));
  EXPECT_THAT(error_of([&] { SGD({at::Tensor()}); }), HasSubstr("is undefined"));
}

TEST(Handle, FindsHyperparametersByName) {
  const std::vector<at::Tensor> p{leaf({2})};
  AdamW opt(p);
  EXPECT_THAT(error_of([&] { (void)opt.hyper("weight_decy"); }),
              StartsWith("[AdamW] hyperparameter \"weight_decy\" is not known; did you mean \"weight_decay\"? (known: "
                         "lr, initial_lr, beta1"));
  EXPECT_EQ(opt.impl()->find_hyper(0, "momentum"), nullptr);
  EXPECT_TRUE(std::isnan(opt.hyper("initial_lr")));
  EXPECT_THAT(error_of([&] { (void)opt.lr(3); }), HasSubstr("group 3 is asked for, AdamW has 1"));
  EXPECT_EQ(SGD(p, {.lr = 1, .momentum = 0.5}).hyper("momentum"), 0.5);
  EXPECT_THAT(error_of([] { Optimizer().step(); }), StartsWith("[optimizer] this handle is empty"));
}

TEST(Handle, ClosureRunsWithGradients) {
  auto w = leaf({2});
  SGD opt({w}, {.lr = 0.5});
  at::NoGradGuard no_grad;
  const auto loss = opt.step([&] {
    opt.zero_grad();
    auto value = (w * w).sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 2);
  EXPECT_TRUE(torch::equal(w, torch::zeros({2})));
}

TEST(Step, PassesOverWhatHasNoGradientOrNoElements) {
  for (size_t k = 0; k < 7; ++k) {
    auto with = leaf_with_grad({2}, 1), without = leaf({2}), empty = leaf_with_grad({0, 3}, 1);
    auto frozen = torch::ones({2});
    auto opt = one_of_each({without, empty, frozen, with})[k];
    opt.step();
    opt.step();
    EXPECT_TRUE(torch::equal(without, torch::ones({2}))) << opt.name();
    EXPECT_NE(with[0].item<float>(), 1) << opt.name();
    EXPECT_EQ(opt.state_dict().at("state").to_dict().size(), 1u) << opt.name();
    without.mutable_grad() = torch::ones({2});
    with.mutable_grad().reset();
    const auto before = with.clone();
    opt.step();
    EXPECT_NE(without[0].item<float>(), 1) << opt.name();
    EXPECT_TRUE(torch::equal(with, before)) << opt.name();
    with.mutable_grad() = torch::ones({2});
    opt.step();
    EXPECT_FALSE(torch::equal(with, before)) << opt.name();
  }
}

TEST(Step, IsSeenByAutograd) {
  for (const int64_t numel : {3, 5000}) {
    auto w = leaf_with_grad({numel}, 1);
    SGD opt({w});
    const auto loss = (w * w).sum();
    opt.step();
    EXPECT_THROW(loss.backward(), c10::Error) << numel;
  }
}

TEST(Step, ReleasesTheGradients) {
  auto w = leaf_with_grad({2}, 1);
  SGD opt({w});
  opt.step();
  opt.step();
  EXPECT_EQ(w.grad().use_count(), 1);
  opt.zero_grad();
  EXPECT_FALSE(w.grad().defined());
}

TEST(Step, RefusesGradientsItCannotUse) {
  auto w = leaf({2, 2});
  AdamW opt({w});
  w.mutable_grad() = torch::eye(2).to_sparse();
  EXPECT_THAT(error_of([&] { opt.step(); }),
              StartsWith("[AdamW.step] parameter 0 of group 0 (shape [2, 2]) has a sparse gradient"));
  auto v = leaf({2}, at::kBFloat16);
  v.mutable_grad() = torch::ones({2}, at::kBFloat16);
  AdamW low({v});
  low.step();
  auto wide = leaf_with_grad({2}, 1);
  AdamW high({wide});
  // Autograd refuses such a gradient; a cast of the parameter under it does not.
  wide.set_data(wide.detach().to(at::kBFloat16));
  EXPECT_THAT(error_of([&] { high.step(); }),
              HasSubstr("has a gradient of Float on cpu; it must be of the parameter's dtype, BFloat16, or a floating "
                        "one as narrow, on the parameter's device, cpu"));
  v.set_data(v.detach().to(at::kFloat));
  v.mutable_grad() = torch::ones({2});
  low.step();
  EXPECT_EQ(state_of(low, "0", "exp_avg").scalar_type(), at::kFloat) << "state follows the parameter";
  EXPECT_EQ(state_of(low, "0", "step").item<float>(), 2);
  auto strided = torch::ones({4, 2}).slice(0, 0, 4, 2).requires_grad_();
  strided.mutable_grad() = torch::ones({2, 2});
  AdamW sparse_memory({strided});
  EXPECT_THAT(error_of([&] { sparse_memory.step(); }), HasSubstr("must be a dense floating point tensor"));
}

TEST(Step, FollowsOtherMemoryLayouts) {
  for (const bool channels_last : {false, true}) {
    const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    auto reference = filled({2, 3, 4, 5}, at::kFloat, 0, 0).requires_grad_();
    auto odd = filled({2, 3, 4, 5}, at::kFloat, 0, 0).contiguous(format).requires_grad_();
    Adam a({reference}), b({odd});
    for (int step = 1; step <= 3; ++step) {
      const auto grad = filled({2, 3, 4, 5}, at::kFloat, 0, static_cast<uint32_t>(step));
      reference.mutable_grad() = grad;
      odd.mutable_grad() = step == 2 ? grad.contiguous(at::MemoryFormat::ChannelsLast) : grad;
      if (step == 3) odd.set_data(odd.detach().contiguous(at::MemoryFormat::ChannelsLast));
      a.step();
      b.step();
    }
    EXPECT_TRUE(torch::equal(reference, odd));
  }
}

TEST(Step, DoesNotCopyGradientsThatLieAsTheParameter) {
  auto weight = leaf({512, 256, 1, 1});
  const auto values = filled({512, 256, 1, 1}, at::kFloat, 0, 1);
  weight.mutable_grad() = values.as_strided({512, 256, 1, 1}, {256, 1, 256, 256});
  SGD optimizer({weight}, {.lr = 0.5});
  MemoryCounter counter;
  optimizer.step();
  EXPECT_LT(counter.peak(), counter.allocated() + values.numel()) << "a copy has four times as many bytes";
  EXPECT_TRUE(torch::equal(weight, 1 - 0.5 * values));
}

TEST(Step, TrueHalfPrecisionOnTheCpu) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (size_t k = 0; k < 7; ++k) {
      const auto start = filled({10, 13}, dtype, 0, 0);
      auto low = start.clone().requires_grad_(), high = start.to(at::kDouble).requires_grad_();
      auto low_opt = one_of_each({low})[k], high_opt = one_of_each({high})[k];
      low_opt.set_lr(0.02);
      high_opt.set_lr(0.02);
      for (uint32_t step = 1; step <= 4; ++step) {
        // Without zeros: in 16 bits Adagrad's eps is none, in torch as here.
        const auto grad = filled({10, 13}, dtype, 0, step).masked_fill_(filled({10, 13}, dtype, 0, step) == 0, 0.25);
        low.mutable_grad() = grad.clone();
        high.mutable_grad() = grad.to(at::kDouble);
        low_opt.step();
        high_opt.step();
      }
      EXPECT_EQ(low.scalar_type(), dtype);
      EXPECT_LT((low.to(at::kDouble) - high).abs().max().item<double>(), dtype == at::kHalf ? 2e-3 : 1.5e-2)
          << low_opt.name();
      EXPECT_GT((high - start).abs().mean().item<double>(), 0.01) << low_opt.name();
    }
}

TEST(ZeroGrad, KeepsBucketViews) {
  auto bucket = torch::ones({6});
  auto a = leaf({2}), b = leaf({4});
  a.mutable_grad() = bucket.narrow(0, 0, 2);
  b.mutable_grad() = bucket.narrow(0, 2, 4);
  torch::optim::SGD theirs({a, b}, 0.1);
  for (auto opt : {Optimizer(SGD({a, b})), adapt(theirs)}) {
    bucket.fill_(1);
    const void* before = a.grad().unsafeGetTensorImpl();
    opt.zero_grad(/*set_to_none=*/false);
    EXPECT_TRUE(torch::equal(bucket, torch::zeros({6})));
    EXPECT_EQ(a.grad().unsafeGetTensorImpl(), before);
    EXPECT_TRUE(b.grad().is_view());
  }
  SGD({a, b}).zero_grad();
  EXPECT_FALSE(a.grad().defined());
}

TEST(Scaled, UnscalesInsideAndSkipsOnInf) {
  for (size_t k = 0; k < 4; ++k) {
    auto plain = leaf_with_grad({3}, 0.5), scaled = leaf_with_grad({3}, 0.5 * 1024);
    auto a = one_of_each({plain})[k], b = one_of_each({scaled})[k];
    a.step();
    ASSERT_TRUE(b.impl()->step_scaled({torch::tensor(1024.0f), torch::tensor(0.0f)})) << a.name();
    EXPECT_TRUE(torch::equal(plain, scaled)) << a.name();

    const auto before = scaled.clone();
    scaled.mutable_grad() = torch::full({3}, std::numeric_limits<float>::infinity());
    // Two ranks saw it: the sum over ranks is 2.
    ASSERT_TRUE(b.impl()->step_scaled({torch::tensor(1024.0f), torch::tensor({2.0f})}));
    EXPECT_TRUE(torch::equal(scaled, before)) << a.name();
    if (k > 0) {
      EXPECT_EQ(state_of(b, "0", "step").item<float>(), 1) << a.name();
    }

    // As if it had not been there.
    plain.mutable_grad() = torch::full({3}, 0.25);
    scaled.mutable_grad() = torch::full({3}, 0.25 * 1024);
    a.step();
    ASSERT_TRUE(b.impl()->step_scaled({torch::tensor(1024.0f), torch::tensor(0.0f)}));
    EXPECT_TRUE(torch::equal(plain, scaled)) << a.name();
  }
  auto w = leaf_with_grad({3}, 1);
  for (size_t k = 4; k < 7; ++k) {
    auto opt = one_of_each({w})[k];
    EXPECT_FALSE(opt.impl()->step_scaled({torch::tensor(2.0f), torch::tensor(0.0f)})) << opt.name();
    EXPECT_TRUE(torch::equal(w, torch::ones({3}))) << opt.name();
  }
}

TEST(Scaled, HalfPrecisionOnTheCpu) {
  auto plain = leaf_with_grad({33}, 0.5, at::kHalf), scaled = leaf_with_grad({33}, 4, at::kHalf);
  SGD a({plain}, {.lr = 0.5, .momentum = 0.9}), b({scaled}, {.lr = 0.5, .momentum = 0.9});
  a.step();
  ASSERT_TRUE(b.impl()->step_scaled({torch::tensor(8.0f), torch::tensor(0.0f)}));
  EXPECT_TRUE(torch::equal(plain, scaled));
  ASSERT_TRUE(b.impl()->step_scaled({torch::tensor(8.0f), torch::tensor(1.0f)}));
  EXPECT_TRUE(torch::equal(plain, scaled));
}

TEST(Scaled, SkippedFirstStepLeavesNoRubbish) {
  auto w = leaf_with_grad({64}, std::numeric_limits<double>::infinity());
  SGD opt({w}, {.lr = 0.5, .momentum = 0.9});
  ASSERT_TRUE(opt.impl()->step_scaled({torch::tensor(2.0f), torch::tensor(1.0f)}));
  EXPECT_TRUE(torch::equal(w, torch::ones({64})));
  w.mutable_grad() = torch::full({64}, 2.0);
  ASSERT_TRUE(opt.impl()->step_scaled({torch::tensor(2.0f), torch::tensor(0.0f)}));
  EXPECT_TRUE(torch::equal(w, torch::full({64}, 0.5)));
}

TEST(State, LayoutIsPythons) {
  auto w = leaf_with_grad({2, 3}, 1), b = leaf_with_grad({3}, 1), idle = leaf({1});
  AdamW opt({{.params = {w, idle}}, {.params = {b}, .lr = 0.5}}, {.amsgrad = true});
  opt.step();
  const auto state = opt.state_dict();
  const auto& groups = state.at("param_groups").to_list();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[1].to_dict().at("lr").to_double(), 0.5);
  EXPECT_EQ(groups[0].to_dict().at("betas").to_list()[1].to_double(), 0.999);
  EXPECT_EQ(groups[0].to_dict().at("amsgrad").to_bool(), true);
  EXPECT_FALSE(groups[0].to_dict().contains("initial_lr"));
  EXPECT_EQ(groups[0].to_dict().at("params").to_list().size(), 2u);
  EXPECT_EQ(groups[1].to_dict().at("params").to_list()[0].to_int(), 2);
  const auto& states = state.at("state").to_dict();
  EXPECT_FALSE(states.contains("1"));
  EXPECT_EQ(states.at("2").to_dict().at("max_exp_avg_sq").to_tensor().sizes(), at::IntArrayRef({3}));
  EXPECT_EQ(states.at("0").to_dict().at("step").to_tensor().scalar_type(), at::kFloat);
}

TEST(State, LoadsNumbersAndOtherDtypesIntoTheSameTensors) {
  auto w = leaf_with_grad({2}, 1, at::kBFloat16);
  AdamW opt({w});
  opt.step();
  const auto kept = state_of(opt, "0", "exp_avg");
  auto state = opt.state_dict();
  auto& saved = state["state"].to_dict()["0"].to_dict();
  saved["step"] = 7;
  saved["exp_avg"] = torch::full({2}, 0.25, at::kDouble);
  opt.load_state_dict(state);
  EXPECT_EQ(state_of(opt, "0", "step").item<float>(), 7);
  EXPECT_TRUE(state_of(opt, "0", "exp_avg").is_same(kept)) << "captured graphs rely on the address";
  EXPECT_TRUE(torch::equal(kept, torch::full({2}, 0.25, at::kBFloat16)));
}

TEST(State, ErrorsListWhatDiffers) {
  auto a = leaf_with_grad({2}, 1), b = leaf_with_grad({3}, 1), c = leaf_with_grad({3}, 1);
  AdamW two({{.params = {a, b}}, {.params = {c}}});
  two.step();
  EXPECT_EQ(error_of([&] {
              AdamW({a, b, c}).load_state_dict(two.state_dict());
            }),
            "[AdamW.load_state_dict] the saved state has 2 parameter groups, this optimizer has 1");
  EXPECT_EQ(error_of([&] {
              AdamW({{.params = {a}}, {.params = {b, c}}}).load_state_dict(two.state_dict());
            }),
            "[AdamW.load_state_dict] the saved groups do not fit: group 0 has 2 parameters saved and 1 here; group 1 "
            "has 1 parameters saved and 2 here");
  EXPECT_EQ(error_of([&] {
              AdamW({{.params = {b, a}}, {.params = {c}}}).load_state_dict(two.state_dict());
            }),
            "[AdamW.load_state_dict] \"exp_avg\" of parameter 0 of group 0 (shape [3]) has shape [2] in the saved "
            "state, [3] is needed");
}

TEST(State, IsCheckedWithoutAChange) {
  auto w = leaf_with_grad({2}, 1);
  AdamW from({w}, {.lr = 0.5}), opt({w}, {.lr = 0.25});
  from.step();
  const auto good = from.state_dict();
  const auto text = [&] { return fmt::format("{} {}", opt.lr(), opt.state_dict().at("state").to_dict().size()); };
  const auto before = text();
  EXPECT_TRUE(opt.impl()->check_state_dict(good));
  EXPECT_EQ(text(), before);
  const auto refused = [&](const std::function<void(StateDict&)>& change) {
    auto bad = good;
    change(bad);
    EXPECT_NE(error_of([&] { opt.impl()->check_state_dict(bad); }), "no error");
    EXPECT_NE(error_of([&] { opt.load_state_dict(bad); }), "no error");
    EXPECT_EQ(text(), before);
  };
  const auto with_option = [](StateDict& state, const char* name, const StateValue& value) {
    auto group = state.at("param_groups").to_list()[0].to_dict();
    group[name] = value;
    state["param_groups"] = StateList{group};
  };
  const auto first = [](StateDict& state) -> StateDict& { return state["state"].to_dict()["0"].to_dict(); };
  refused([&](StateDict& state) { with_option(state, "betas", StateList{0.5}); });
  refused([&](StateDict& state) { with_option(state, "weight_decay", "much"); });
  refused([&](StateDict& state) { with_option(state, "initial_lr", "much"); });
  refused([&](StateDict& state) { first(state)["step"] = torch::ones({3}); });
  refused([&](StateDict& state) { first(state)["step"] = "seven"; });
  refused([&](StateDict& state) { first(state)["exp_avg"] = torch::ones({3}); });
  refused([&](StateDict& state) { first(state)["exp_avg"] = 3; });
  EXPECT_FALSE(AdamW8bit({w}).impl()->check_state_dict(good)) << "it does not say";
}

TEST(Speed, StepOfASmallModelCostsAboutTheKernelItself) {
  torch::nn::Linear net(32, 2);
  for (auto& p : net->parameters()) p.mutable_grad() = torch::ones_like(p);
  const auto params = net->parameters();
  std::vector<at::Tensor> grads;
  for (const auto& p : params) grads.push_back(p.grad());
  SGD ours(params, {.lr = 1e-6});
  torch::optim::SGD theirs(params, 1e-6);
  const auto best_us = [](auto&& f) {
    double best = 1e9;
    for (int round = 0; round < 20; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 100; ++i) f();
      best = std::min(
          best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 100);
    }
    return best;
  };
  const double kernel = best_us([&] {
    at::NoGradGuard no_grad;
    at::_fused_sgd_(params, grads, {}, 0, 0, 1e-6, 0, false, false, false);
  });
  const double levin_us = best_us([&] { ours.step(); });
  const double torch_us = best_us([&] { theirs.step(); });
  RecordProperty("kernel_us", std::to_string(kernel));
  RecordProperty("levin_us", std::to_string(levin_us));
  RecordProperty("torch_us", std::to_string(torch_us));
  EXPECT_LT(levin_us, 2 * kernel + 2) << "kernel " << kernel << " us, torch::optim::SGD " << torch_us << " us";
}

}  // namespace
}  // namespace levin::optim
