// Products in float8, as the CPU emulates them.
#include "levin/kernels/fp8/fp8.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/flop_counter.h"
#include "levin/kernels/fp8/fp8_layers.h"
#include "levin/kernels/linear/linear.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/fp8_mlp.h"
#include "levin/nn/layers.h"
#include "levin/nn/policy.h"
#include "levin/precision/precision.h"
#include "levin/testing/error_of.h"

namespace levin::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kNan = std::numeric_limits<float>::quiet_NaN();
constexpr auto kInf = std::numeric_limits<float>::infinity();

/// Four linears with an activation between them; the middle ones can be in float8.
struct Fp8NetImpl : torch::nn::Module {
  explicit Fp8NetImpl(int64_t width = 32, int64_t middle = 48) {
    for (const auto& [in, out] :
         std::vector<std::pair<int64_t, int64_t>>{{width, width}, {width, middle}, {middle, width}, {width, width}})
      layers.push_back(register_module("layer" + std::to_string(layers.size()), nn::Linear(in, out)));
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<nn::Linear> layers;
};
LEVIN_MODULE(Fp8Net);

std::shared_ptr<Fp8Layers> fp8_layers_of(const Fp8Net& net, const Fp8Options& options = {}) {
  return std::make_shared<Fp8Layers>(net.ptr(), Fp8Setup{.options = options});
}

Tensor fp8_forward(Fp8Net& net, const std::shared_ptr<Fp8Layers>& layers, const Tensor& x) {
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const Fp8Scope scope(layers);
  return net(x);
}

Tensor numbers_of(const Tensor& codes, const Tensor& inverse) {
  return codes.to(at::kFloat) * inverse;
}

TEST(Fp8Mm, IsCountedOnce) {
  const auto a = fp8_cast(torch::randn({48, 32}), {}, {}), b = fp8_cast(torch::randn({16, 32}), {}, {});
  const FlopCounter counter;
  fp8_mm(a.rows, b.rows, a.inverse, b.inverse, {}, at::kFloat, false);
  EXPECT_EQ(counter.flops(), 2.0 * 48 * 32 * 16);
}

TEST(Fp8Cast, RoundsToFloat8AfterAPowerOfTwo) {
  torch::manual_seed(1);
  const auto x = torch::randn({48, 32}) * 3;
  for (const auto dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const auto cast = fp8_cast(x, {}, {}, {.dtype = dtype});
    const auto inverse = cast.inverse.item<float>(), largest = dtype == at::kFloat8_e5m2 ? 57344.0f : 448.0f;
    EXPECT_EQ(std::ldexp(1.0f, std::ilogb(inverse)), inverse);
    // The largest number is in the upper half of the range, or just below.
    const auto most = x.abs().max().item<float>() / inverse;
    EXPECT_LE(most, largest);
    EXPECT_GT(most, largest / 2);
    EXPECT_TRUE(torch::equal(cast.rows.to(at::kFloat), (x / inverse).to(dtype).to(at::kFloat)));
    EXPECT_TRUE(torch::equal(cast.columns.to(at::kFloat), cast.rows.to(at::kFloat).t()));
    EXPECT_TRUE(torch::equal(cast.column_inverse, cast.inverse));
  }
}

TEST(Fp8Cast, ColumnsArePaddedWithZeros) {
  const auto cast = fp8_cast(torch::ones({5, 16}), {}, {});
  EXPECT_EQ(cast.rows.sizes(), at::IntArrayRef({5, 16}));
  ASSERT_EQ(cast.columns.sizes(), at::IntArrayRef({16, 16}));
  EXPECT_EQ(numbers_of(cast.columns, cast.column_inverse).sum().item<float>(), 5 * 16);
  EXPECT_EQ(cast.columns.to(at::kFloat).slice(1, 5).abs().sum().item<float>(), 0);
}

TEST(Fp8Cast, SaturatesButKeepsInfAndNan) {
  const auto x = torch::zeros({1, 16});
  x[0][0] = 1000, x[0][1] = -1000, x[0][2] = kInf, x[0][3] = kNan, x[0][4] = 1;
  const auto seen = torch::zeros({1});
  // The history knew numbers up to 7, for which the scale is 64.
  const auto cast = fp8_cast(x, torch::full({1}, 7.0f), seen);
  const auto numbers = numbers_of(cast.rows, cast.inverse)[0];
  EXPECT_EQ(numbers[0].item<float>(), 7);
  EXPECT_EQ(numbers[1].item<float>(), -7);
  EXPECT_TRUE(std::isnan(numbers[2].item<float>()));
  EXPECT_TRUE(std::isnan(numbers[3].item<float>()));
  EXPECT_EQ(numbers[4].item<float>(), 1);
  EXPECT_EQ(seen.item<float>(), 1000);  // finite numbers alone make a scale
  fp8_cast(x.narrow(0, 0, 1) * 0.001, torch::full({1}, 7.0f), seen);
  EXPECT_EQ(seen.item<float>(), 1000);
}

TEST(Fp8Cast, ScalesOfStrangeNumbers) {
  const auto inverse_for = [](float amax, int margin = 0) {
    return fp8_cast(torch::zeros({16, 16}), torch::full({1}, amax), {}, {.margin = margin}).inverse.item<float>();
  };
  EXPECT_EQ(inverse_for(0), 1);
  EXPECT_EQ(inverse_for(kInf), 1);
  EXPECT_EQ(inverse_for(448), 1);
  EXPECT_EQ(inverse_for(449), 2);
  EXPECT_EQ(inverse_for(448, 2), 4);
  EXPECT_EQ(inverse_for(1e-45f), std::ldexp(1.0f, -126));
}

TEST(Fp8Cast, EveryRowAndColumnHasItsScale) {
  torch::manual_seed(2);
  const auto x = torch::randn({40, 32}) * torch::exp2(torch::arange(-20, 20)).view({40, 1});
  const auto cast = fp8_cast(x, {}, {}, {.per_row = true});
  ASSERT_EQ(cast.inverse.sizes(), at::IntArrayRef({40, 1}));
  ASSERT_EQ(cast.column_inverse.sizes(), at::IntArrayRef({32, 1}));
  const auto back = numbers_of(cast.rows, cast.inverse);
  EXPECT_TRUE(((back - x).abs() <= x.abs() / 16 + x.abs().amax({1}, true) / 4096).all().item<bool>());
  const auto turned = numbers_of(cast.columns, cast.column_inverse).narrow(1, 0, 40).t();
  EXPECT_TRUE(((turned - x).abs() <= x.abs() / 16 + x.abs().amax({0}, true) / 4096).all().item<bool>());
}

TEST(Fp8Cast, SaysWhatItCannot) {
  EXPECT_THAT(testing::error_of([] { fp8_cast(torch::ones({16, 17}), {}, {}); }), HasSubstr("multiple of 16 columns"));
  EXPECT_THAT(testing::error_of([] {
                fp8_cast(torch::ones({16, 16}, at::kDouble), {}, {});
              }),
              HasSubstr("needs Float, Half or BFloat16"));
}

TEST(Fp8Roll, MovesWhatWasSeen) {
  const auto history = torch::tensor({{3.0f, 2.0f, 1.0f}, {5.0f, 6.0f, 7.0f}}), seen = torch::tensor({4.0f, 0.0f});
  const auto amax = fp8_roll(history, seen);
  EXPECT_TRUE(torch::equal(history, torch::tensor({{4.0f, 3.0f, 2.0f}, {5.0f, 6.0f, 7.0f}})));
  EXPECT_TRUE(torch::equal(amax, torch::tensor({4.0f, 7.0f})));
  EXPECT_EQ(seen.abs().sum().item<float>(), 0);
}

TEST(Fp8Layers, LeavesOutTheEndsAndOddSizes) {
  EXPECT_THAT(fp8_layers_of(Fp8Net())->names(), ElementsAre("layer1.weight", "layer2.weight"));
  EXPECT_THAT(fp8_layers_of(Fp8Net(), {.keep_ends = false})->names(),
              ElementsAre("layer0.weight", "layer1.weight", "layer2.weight", "layer3.weight"));
  EXPECT_TRUE(fp8_layers_of(Fp8Net(32, 40))->names().empty());
  EXPECT_THAT(testing::error_of([] { fp8_layers_of(Fp8Net(), {.history = 0}); }), HasSubstr("[fp8] history 0"));
}

TEST(Fp8Layers, OnlyUnderAutocastAndInItsScope) {
  torch::manual_seed(3);
  Fp8Net net;
  const auto layers = fp8_layers_of(net);
  const auto x = torch::randn({4, 32});
  const auto plain = net(x);
  {
    const Fp8Scope scope(layers);
    EXPECT_TRUE(torch::equal(net(x), plain));
  }
  Tensor narrow;
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    narrow = net(x);
  }
  const auto in_fp8 = fp8_forward(net, layers, x);
  EXPECT_EQ(in_fp8.scalar_type(), at::kBFloat16);
  EXPECT_FALSE(torch::equal(in_fp8, narrow));
  EXPECT_TRUE(torch::allclose(in_fp8, narrow, 0.1, 0.1));
  EXPECT_FALSE(detail::fp8_context());
}

TEST(Fp8Layers, ScalesComeFromTheHistory) {
  torch::manual_seed(4);
  Fp8Net net;
  const auto layers = fp8_layers_of(net, {.history = 2});
  const auto train = [&](double size) { fp8_forward(net, layers, torch::full({16, 32}, size)).sum().backward(); };
  {
    const torch::NoGradGuard no_grad;
    fp8_forward(net, layers, torch::ones({16, 32}));
    EXPECT_FALSE(layers->history().defined());
  }
  train(1);
  EXPECT_EQ(layers->history().abs().sum().item<float>(), 0);  // what was seen becomes history with the next forward
  train(0.5);
  const auto first = layers->history().clone();
  EXPECT_GT(first.select(2, 0).min().item<float>(), 0);  // inputs, weights and gradients
  EXPECT_EQ(first.select(2, 1).abs().sum().item<float>(), 0);
  EXPECT_FLOAT_EQ(first[0][1][0].item<float>(), net->layers[1]->weight.abs().max().item<float>());
  train(2);
  EXPECT_TRUE(torch::equal(layers->history().select(2, 1), first.select(2, 0)));
}

TEST(Fp8Layers, ForwardsWithoutGradientsLeaveNoTrace) {
  torch::manual_seed(4);
  Fp8Net net;
  Tensor histories[2];
  for (const bool validates : {false, true}) {
    const auto layers = fp8_layers_of(net);
    for (const double size : {0.1, 0.2, 0.3}) {
      fp8_forward(net, layers, torch::full({16, 32}, size)).sum().backward();
      const torch::NoGradGuard no_grad;
      if (validates) fp8_forward(net, layers, torch::full({16, 32}, 5.0));
    }
    histories[validates] = layers->history();
  }
  EXPECT_TRUE(torch::equal(histories[0], histories[1]));
}

TEST(Fp8Linear, IsTheProductOfTheRoundedOperands) {
  torch::manual_seed(5);
  for (const auto recipe : {Fp8Recipe::kDelayed, Fp8Recipe::kCurrent, Fp8Recipe::kRow}) {
    Fp8Net net;
    const auto layers = fp8_layers_of(net, {.recipe = recipe, .gradient_margin = 0, .keep_ends = false});
    auto& layer = net->layers[1];
    const auto x = torch::randn({3, 7, 32}).requires_grad_();
    const auto given = torch::randn({3, 7, 48}).to(at::kBFloat16);
    Tensor y;
    {
      const Autocast autocast(at::kCPU, at::kBFloat16);
      const Fp8Scope scope(layers);
      y = layer(x);
    }
    ASSERT_EQ(y.scalar_type(), at::kBFloat16);
    ASSERT_EQ(y.sizes(), given.sizes());
    y.backward(given);

    const bool per_row = recipe == Fp8Recipe::kRow;
    const auto format = per_row ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
    const auto x8 = fp8_cast(x.detach().view({21, 32}), {}, {}, {.per_row = per_row});
    const auto w8 = fp8_cast(layer->weight.detach(), {}, {}, {.per_row = per_row});
    const auto g8 = fp8_cast(given.view({21, 48}), {}, {}, {.dtype = format, .per_row = per_row});
    const auto product = torch::mm(numbers_of(x8.rows, x8.inverse), numbers_of(w8.rows, w8.inverse).t());
    EXPECT_TRUE(torch::allclose(y.detach().view({21, 48}).to(at::kFloat), product + layer->bias.detach(), 0.01, 0.01));
    const auto grad_x =
        torch::mm(numbers_of(g8.rows, g8.inverse), numbers_of(w8.columns, w8.column_inverse).narrow(1, 0, 48).t());
    EXPECT_TRUE(torch::allclose(x.grad().view({21, 32}), grad_x, 0.01, 0.01));
    const auto grad_w =
        torch::mm(numbers_of(g8.columns, g8.column_inverse), numbers_of(x8.columns, x8.column_inverse).t());
    EXPECT_EQ(layer->weight.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::allclose(layer->weight.grad(), grad_w, 0.01, 0.01));
    EXPECT_TRUE(torch::allclose(layer->bias.grad(), given.to(at::kFloat).view({21, 48}).sum(0), 1e-4, 1e-4));
  }
}

TEST(Fp8Linear, WeightsCastAgainGiveTheSameGradients) {
  torch::manual_seed(6);
  Fp8Net net;
  const auto x = torch::randn({16, 32});
  std::vector<Tensor> grads[2];
  for (const bool again : {false, true}) {
    const auto layers = std::make_shared<Fp8Layers>(net.ptr(), Fp8Setup{.casts_weights_again = again});
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      fp8_forward(net, layers, x).square().sum().backward();
    }
    for (const auto& parameter : net->parameters()) grads[again].push_back(parameter.grad().clone());
  }
  for (size_t i = 0; i < grads[0].size(); ++i) EXPECT_TRUE(torch::equal(grads[0][i], grads[1][i])) << i;
}

TEST(Fp8Linear, InfAndNanReachTheResult) {
  Fp8Net net;
  const auto layers = fp8_layers_of(net, {.keep_ends = false});
  for (const float bad : {kInf, kNan}) {
    auto x = torch::ones({16, 32});
    x[3][4] = bad;
    const Autocast autocast(at::kCPU, at::kBFloat16);
    const Fp8Scope scope(layers);
    const auto y = net->layers[1](x);
    EXPECT_TRUE(y[3].isnan().all().item<bool>());
    EXPECT_TRUE(y[2].isfinite().all().item<bool>());
  }
}

TEST(Fp8Linear, NoSecondDerivative) {
  Fp8Net net;
  const auto layers = fp8_layers_of(net);
  const auto x = torch::ones({16, 32}).requires_grad_();
  const auto loss = fp8_forward(net, layers, x).sum();
  EXPECT_THAT(testing::error_of([&] { torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true); }),
              HasSubstr("no second derivatives"));
}

TEST(Fp8Linear, FrozenWeightsAndInputsWithoutGradients) {
  Fp8Net net;
  const auto layers = fp8_layers_of(net, {.keep_ends = false});
  net->layers[0]->weight.requires_grad_(false);
  net->layers[1]->weight.requires_grad_(false);
  fp8_forward(net, layers, torch::randn({16, 32})).sum().backward();
  EXPECT_FALSE(net->layers[1]->weight.grad().defined());
  EXPECT_TRUE(net->layers[1]->bias.grad().defined());
  EXPECT_TRUE(net->layers[0]->bias.grad().defined());
  EXPECT_TRUE(net->layers[2]->weight.grad().defined());
}

TEST(Fp8Linear, CheckpointedUnitsGiveTheSameNumbers) {
  torch::manual_seed(7);
  Fp8Net net;
  std::vector<Tensor> grads[2];
  for (const bool checkpointed : {false, true}) {
    const auto layers = fp8_layers_of(net);
    std::vector<Attachment> attachments;
    if (checkpointed) attachments = attach_checkpointing(*net, policy::by_class<nn::Linear>());
    torch::manual_seed(8);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      fp8_forward(net, layers, torch::randn({16, 32})).square().sum().backward();
    }
    for (const auto& parameter : net->parameters()) grads[checkpointed].push_back(parameter.grad().clone());
  }
  for (size_t i = 0; i < grads[0].size(); ++i) EXPECT_TRUE(torch::equal(grads[0][i], grads[1][i])) << i;
}

TEST(KernelsLinear, IsTorchsWithoutFp8) {
  torch::manual_seed(9);
  const auto x = torch::randn({2, 3, 10}), weight = torch::randn({7, 10}), bias = torch::randn({7});
  EXPECT_TRUE(torch::equal(kernels::linear(x, weight, bias), at::linear(x, weight, bias)));
  EXPECT_TRUE(torch::equal(kernels::linear(x, weight), at::linear(x, weight)));
}

/// up, an activation and down between two layers that stay in bfloat16.
struct Fp8MlpNetImpl : torch::nn::Module {
  Fp8MlpNetImpl() {
    first = register_module("first", nn::Linear(32, 32));
    up = register_module("up", nn::Linear(32, 64));
    down = register_module("down", nn::Linear(64, 32));
    last = register_module("last", nn::Linear(32, 32));
  }
  Tensor forward(const Tensor& x) {
    const auto h = first(x);
    const auto one = at_once ? nn::fp8_mlp(h, up, kind, down) : std::nullopt;
    was_one = one.has_value();
    return last(one ? *one : down(activation(up(h), kind)));
  }
  bool at_once = true, was_one = false;
  Activation kind = Activation::kGelu;
  nn::Linear first = nullptr, up = nullptr, down = nullptr, last = nullptr;
};
LEVIN_MODULE(Fp8MlpNet);

/// Results and gradients of three steps.
std::vector<Tensor> mlp_numbers(bool at_once, Activation kind, Fp8Recipe recipe) {
  torch::manual_seed(7);
  Fp8MlpNet net;
  net->at_once = at_once, net->kind = kind;
  const auto layers = std::make_shared<Fp8Layers>(net.ptr(), Fp8Setup{.options = {.recipe = recipe}});
  std::vector<Tensor> all;
  for (int step = 0; step < 3; ++step) {
    const auto x = torch::randn({5, 7, 32}).requires_grad_();
    Tensor y;
    {
      const Autocast autocast(at::kCPU, at::kBFloat16);
      const Fp8Scope scope(layers);
      y = net(x);
    }
    EXPECT_EQ(net->was_one, at_once);
    y.to(at::kFloat).square().sum().backward();
    all.insert(all.end(), {y.detach(), x.grad()});
  }
  for (const auto& parameter : net->parameters()) all.push_back(parameter.grad());
  all.push_back(layers->state());
  return all;
}

TEST(Fp8Mlp, HasTheNumbersOfItsThreeOperations) {
  for (const auto recipe : {Fp8Recipe::kDelayed, Fp8Recipe::kCurrent, Fp8Recipe::kRow})
    for (const auto kind : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu, Activation::kSilu}) {
      const auto one = mlp_numbers(true, kind, recipe), three = mlp_numbers(false, kind, recipe);
      for (size_t i = 0; i < one.size(); ++i) {
        if (!three[i].defined()) continue;  // recipes without histories have no state
        EXPECT_TRUE(torch::equal(one[i], three[i])) << i << " " << static_cast<int>(kind);
      }
    }
}

TEST(Fp8Mlp, IsNotForFrozenOrInterceptedLayers) {
  struct Nothing : Interceptor {
    void around(Call& call) override { call.proceed(); }
  };
  Fp8MlpNet net;
  const auto layers = std::make_shared<Fp8Layers>(net.ptr(), Fp8Setup{});
  const auto is_one = [&](const std::shared_ptr<Fp8Layers>& of) {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    const Fp8Scope scope(of);
    net(torch::ones({16, 32}));
    return net->was_one;
  };
  EXPECT_TRUE(is_one(layers));
  EXPECT_FALSE(is_one(nullptr));
  EXPECT_FALSE(is_one(std::make_shared<Fp8Layers>(net.ptr(), Fp8Setup{.casts_weights_again = true})));
  {
    const auto attached = net->down->attach(std::make_shared<Nothing>(), Order::kInnermost);
    EXPECT_FALSE(is_one(layers));
  }
  net->up->weight.requires_grad_(false);
  EXPECT_FALSE(is_one(layers));
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(is_one(layers));
}

TEST(Fp8Cast, SumsItsRows) {
  torch::manual_seed(8);
  const auto x = torch::randn({70, 32}).to(at::kBFloat16), at = torch::randn({70, 32}).to(at::kBFloat16);
  const auto amax = torch::full({1}, 4.0f);
  EXPECT_TRUE(torch::equal(fp8_cast(x, amax, {}, {.sums = at::kFloat}).sums, x.sum({0}, false, at::kFloat)));
  EXPECT_FALSE(fp8_cast(x, amax, {}).sums.defined());
  const auto gradient = at::gelu_backward(x, at);
  const auto cast = fp8_cast(
      x, amax, {},
      {.dtype = at::kFloat8_e5m2, .activation = Activation::kGelu, .derivative_at = at, .sums = at::kBFloat16});
  EXPECT_TRUE(torch::equal(cast.sums, gradient.sum({0}, false, at::kBFloat16)));
  EXPECT_TRUE(torch::equal(cast.rows.to(at::kFloat),
                           fp8_cast(gradient, amax, {}, {.dtype = at::kFloat8_e5m2}).rows.to(at::kFloat)));
  EXPECT_THAT(levin::testing::error_of([&] { fp8_cast(x, amax, {}, {.derivative_at = at}); }),
              HasSubstr("derivative_at needs an activation"));
}

TEST(Fp8Layers, StatesComeBack) {
  torch::manual_seed(9);
  Fp8Net net;
  const auto layers = fp8_layers_of(net);
  const auto step = [&] { fp8_forward(net, layers, torch::randn({16, 32})).to(at::kFloat).sum().backward(); };
  step();
  const auto once = layers->state();
  for (int i = 0; i < 3; ++i) step();
  const auto state = layers->state();
  ASSERT_EQ(state.sizes(), at::IntArrayRef({2, 3, 16 + 2}));
  EXPECT_EQ(state.select(2, 17).min().item<float>(), 2);
  EXPECT_EQ(once.select(2, 17).min().item<float>(), 1);  // seen, but no history yet
  EXPECT_GT(state.select(2, 16).min().item<float>(), 0);

  const auto other = fp8_layers_of(net);
  other->load_state(layers->names(), state);
  EXPECT_TRUE(torch::equal(other->state(), state));
  // By name; a shorter history takes the newest numbers; a weight without a state begins from the start.
  const auto shorter = fp8_layers_of(net, {.history = 3});
  shorter->load_state({"another", layers->names()[1]}, state);
  const auto taken = shorter->state();
  EXPECT_TRUE(torch::equal(taken[0], torch::zeros({3, 5})));
  EXPECT_TRUE(torch::equal(taken[1].narrow(1, 0, 3), state[1].narrow(1, 0, 3)));
  EXPECT_TRUE(torch::equal(taken[1].narrow(1, 3, 2), state[1].narrow(1, 16, 2)));

  const auto current = fp8_layers_of(net, {.recipe = Fp8Recipe::kCurrent});
  EXPECT_FALSE(current->state().defined());
  current->load_state(layers->names(), state);  // nothing to do
  EXPECT_THAT(levin::testing::error_of([&] { other->load_state(layers->names(), state[0]); }),
              HasSubstr("history + 2], got [3, 18]"));
}

}  // namespace
}  // namespace levin::kernels
