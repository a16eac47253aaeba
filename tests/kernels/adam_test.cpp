// The fused steps of mixed dtypes: against the same arithmetic written with tensors in double, and torch's own kernels.
#include "levin/kernels/fused_step/adam.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/kernels/fused_step/adam_convert.h"
#include "levin/testing/error_of.h"

namespace levin::kernels {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

struct Dtypes {
  at::ScalarType param, grad, state;
  std::optional<at::ScalarType> copy;
};

struct AdamLists {
  std::vector<Tensor> params, grads, averages, squares, largest, steps, copies;

  AdamLists(const std::vector<std::vector<int64_t>>& shapes, const Dtypes& d) {
    torch::manual_seed(7);
    for (const auto& shape : shapes) {
      params.push_back(torch::randn(shape).to(d.param));
      grads.push_back(torch::randn(shape).to(d.grad));
      averages.push_back((torch::randn(shape) * 0.1).to(d.state));
      squares.push_back((torch::rand(shape) * 0.1).to(d.state));
      largest.push_back((torch::rand(shape) * 0.1).to(d.state));
      steps.push_back(torch::full({}, 3.0f));
      if (d.copy) copies.push_back(torch::zeros(shape, *d.copy));
    }
  }
  AdamTensors tensors() const { return {params, grads, averages, squares, largest, steps, copies}; }
};

constexpr AdamNumbers kNumbers{0.01, 0.9, 0.95, 1e-6, 0.1, true, false, true};

// The definition, in double.
void reference_adam(AdamLists& l, const AdamNumbers& n, double scale) {
  for (size_t i = 0; i < l.params.size(); ++i) {
    const double step = l.steps[i].item<double>();
    auto p = l.params[i].to(at::kDouble), g = l.grads[i].to(at::kDouble) / scale;
    if (n.maximize) g = -g;
    if (n.decoupled)
      p = p * (1 - n.lr * n.weight_decay);
    else
      g = g + n.weight_decay * p;
    const auto m = n.beta1 * l.averages[i].to(at::kDouble) + (1 - n.beta1) * g;
    auto v = n.beta2 * l.squares[i].to(at::kDouble) + (1 - n.beta2) * g * g;
    l.averages[i].copy_(m);
    l.squares[i].copy_(v);
    if (n.amsgrad) {
      v = torch::maximum(v, l.largest[i].to(at::kDouble));
      l.largest[i].copy_(v);
    }
    const auto denominator = v.sqrt() / std::sqrt(1 - std::pow(n.beta2, step)) + n.eps;
    l.params[i].copy_(p - n.lr / (1 - std::pow(n.beta1, step)) * m / denominator);
    if (!l.copies.empty()) l.copies[i].copy_(l.params[i]);
  }
}

double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-12;
    case at::kFloat:
      return 1e-6;
    case at::kHalf:
      return 1.0 / 1024;
    default:
      return 1.0 / 128;
  }
}

void expect_close(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].scalar_type(), b[i].scalar_type());
    const double tol = tolerance(a[i].scalar_type());
    EXPECT_TRUE(torch::allclose(a[i].to(at::kDouble), b[i].to(at::kDouble), tol, tol))
        << what << " " << i << ": "
        << (a[i].numel() ? (a[i].to(at::kDouble) - b[i].to(at::kDouble)).abs().max().item<double>() : 0.0);
  }
}

// Odd lengths, none, and more than one piece.
const std::vector<std::vector<int64_t>> kShapes{{3, 5}, {0, 4}, {513}, {}, {70001}, {16, 64}};

const std::vector<Dtypes> kDtypes{
    {at::kFloat, at::kFloat, at::kFloat, {}},
    {at::kFloat, at::kBFloat16, at::kFloat, at::kBFloat16},
    {at::kFloat, at::kHalf, at::kFloat, at::kHalf},
    {at::kFloat, at::kBFloat16, at::kBFloat16, at::kBFloat16},
    {at::kBFloat16, at::kBFloat16, at::kFloat, {}},
    {at::kBFloat16, at::kHalf, at::kBFloat16, {}},
    {at::kHalf, at::kHalf, at::kFloat, {}},
    {at::kHalf, at::kBFloat16, at::kHalf, {}},
    {at::kDouble, at::kDouble, at::kDouble, at::kHalf},
    {at::kDouble, at::kFloat, at::kFloat, {}},
    {at::kDouble, at::kHalf, at::kBFloat16, at::kBFloat16},
};

TEST(FusedAdam, EqualsTheDefinitionInEveryDtype) {
  for (const auto& dtypes : kDtypes)
    for (const bool amsgrad : {false, true})
      for (const bool decoupled : {false, true}) {
        AdamNumbers numbers = kNumbers;
        numbers.amsgrad = amsgrad;
        numbers.decoupled = decoupled;
        numbers.maximize = amsgrad;
        AdamLists ours(kShapes, dtypes), theirs(kShapes, dtypes);
        const StepScale scale{torch::tensor(4.0f), torch::tensor(0.0f)};
        fused_adam(ours.tensors(), numbers, scale);
        reference_adam(theirs, numbers, 4);
        const std::string what = std::string(c10::toString(dtypes.param)) + " " + c10::toString(dtypes.grad) + " " +
                                 c10::toString(dtypes.state);
        expect_close(ours.params, theirs.params, what + " param");
        expect_close(ours.averages, theirs.averages, what + " average");
        expect_close(ours.squares, theirs.squares, what + " square");
        expect_close(ours.largest, theirs.largest, what + " largest");
        // The copy is the parameter itself, rounded once.
        for (size_t i = 0; i < ours.copies.size(); ++i)
          EXPECT_TRUE(torch::equal(ours.copies[i], ours.params[i].to(at::kFloat).to(*dtypes.copy))) << what;
      }
}

TEST(FusedAdam, EqualsTorchsFusedKernel) {
  const Dtypes all_float{at::kFloat, at::kFloat, at::kFloat, {}};
  const std::vector<std::vector<int64_t>> shapes{{3, 5}, {513}, {70001}};
  for (const bool decoupled : {false, true}) {
    AdamLists ours(shapes, all_float), theirs(shapes, all_float);
    AdamNumbers n = kNumbers;
    n.decoupled = decoupled;
    for (int step = 0; step < 5; ++step) {
      fused_adam(ours.tensors(), n);
      if (decoupled)
        at::_fused_adamw_(theirs.params, theirs.grads, theirs.averages, theirs.squares, theirs.largest, theirs.steps,
                          n.lr, n.beta1, n.beta2, n.weight_decay, n.eps, n.amsgrad, n.maximize);
      else
        at::_fused_adam_(theirs.params, theirs.grads, theirs.averages, theirs.squares, theirs.largest, theirs.steps,
                         n.lr, n.beta1, n.beta2, n.weight_decay, n.eps, n.amsgrad, n.maximize);
    }
    expect_close(ours.params, theirs.params, "param");
    expect_close(ours.squares, theirs.squares, "square");
  }
}

TEST(FusedAdam, ThreadsDoNotChangeTheNumbers) {
  const Dtypes dtypes{at::kFloat, at::kBFloat16, at::kFloat, at::kBFloat16};
  const std::vector<std::vector<int64_t>> shapes{{65536 * 3 + 17}, {5}, {100000}, {65536}, {0}};
  AdamLists one(shapes, dtypes), many(shapes, dtypes);
  {
    const Threads threads(1);
    fused_adam(one.tensors(), kNumbers);
  }
  {
    const Threads threads(4);
    fused_adam(many.tensors(), kNumbers);
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_TRUE(torch::equal(one.params[i], many.params[i]));
    EXPECT_TRUE(torch::equal(one.averages[i], many.averages[i]));
    EXPECT_TRUE(torch::equal(one.squares[i], many.squares[i]));
    EXPECT_TRUE(torch::equal(one.copies[i], many.copies[i]));
  }
}

TEST(FusedAdam, SkipsWhereInfWasFound) {
  AdamLists lists(kShapes, kDtypes[1]), before(kShapes, kDtypes[1]);
  fused_adam(lists.tensors(), kNumbers, {torch::tensor(4.0f), torch::tensor(1.0f)});
  for (size_t i = 0; i < kShapes.size(); ++i) {
    EXPECT_TRUE(torch::equal(lists.params[i], before.params[i]));
    EXPECT_TRUE(torch::equal(lists.averages[i], before.averages[i]));
    EXPECT_TRUE(torch::equal(lists.copies[i], before.copies[i]));
  }
}

TEST(FusedAdam, FollowsOtherMemoryOrders) {
  auto plain = torch::randn({2, 3, 4, 5}), grad = torch::randn({2, 3, 4, 5}).to(at::kBFloat16);
  auto odd = plain.clone().contiguous(at::MemoryFormat::ChannelsLast);
  auto odd_grad = grad.contiguous(at::MemoryFormat::ChannelsLast);
  const auto step = [](const Tensor& p, const Tensor& g) {
    const std::vector<Tensor> params{p}, grads{g}, averages{torch::zeros_like(p)}, squares{torch::zeros_like(p)},
        largest{torch::zeros_like(p)}, steps{torch::ones({})};
    fused_adam({params, grads, averages, squares, largest, steps}, kNumbers);
  };
  step(plain, grad);
  step(odd, odd_grad);
  EXPECT_TRUE(torch::equal(plain, odd));
}

TEST(FusedAdam, RefusesInOneLine) {
  const auto error = [](const Dtypes& dtypes, auto&& change) -> std::string {
    AdamLists lists({{4}}, dtypes);
    change(lists);
    return error_of([&] { fused_adam(lists.tensors(), kNumbers); });
  };
  const auto same = [](AdamLists&) {};
  EXPECT_THAT(error({at::kBFloat16, at::kFloat, at::kFloat, {}}, same),
              HasSubstr("is of Float; the parameter's BFloat16"));
  EXPECT_THAT(error({at::kFloat, at::kFloat, at::kHalf, {}}, same), HasSubstr("is of Half"));
  EXPECT_THAT(error({at::kFloat, at::kFloat, at::kFloat, at::kFloat}, same), HasSubstr("the copy of parameter 0"));
  EXPECT_THAT(error(kDtypes[0], [](AdamLists& l) { l.grads[0] = torch::ones({5}); }), HasSubstr("the gradient of"));
  EXPECT_THAT(error(kDtypes[0], [](AdamLists& l) { l.steps.clear(); }), HasSubstr("1 parameters and 0 steps"));
  EXPECT_THAT(error(kDtypes[0], [](AdamLists& l) { l.squares[0] = torch::ones({4}, at::kBFloat16); }),
              HasSubstr("one dtype is needed"));
}

TEST(FusedSgd, EqualsTheDefinitionInEveryDtype) {
  for (const auto& dtypes : kDtypes)
    for (const bool with_momentum : {false, true})
      for (const bool is_first : {false, true}) {
        const SgdNumbers n{0.1, with_momentum ? 0.9 : 0.0, 0.25, 0.05, false, is_first, is_first};
        AdamLists ours(kShapes, dtypes), theirs(kShapes, dtypes);
        SgdTensors tensors{ours.params, ours.grads, {}, ours.copies};
        if (with_momentum) tensors.buffers = ours.averages;
        fused_sgd(tensors, n, {torch::tensor(2.0f), {}});
        for (size_t i = 0; i < kShapes.size(); ++i) {
          auto g = theirs.grads[i].to(at::kDouble) / (n.maximize ? -2 : 2);
          const auto p = theirs.params[i].to(at::kDouble);
          g = g + n.weight_decay * p;
          if (with_momentum) {
            g = is_first ? g : n.momentum * theirs.averages[i].to(at::kDouble) + (1 - n.dampening) * g;
            theirs.averages[i].copy_(g);
          }
          theirs.params[i].copy_(p - n.lr * g);
        }
        expect_close(ours.params, theirs.params, "param");
        expect_close(ours.averages, theirs.averages, "buffer");
        for (size_t i = 0; i < ours.copies.size(); ++i)
          EXPECT_TRUE(torch::equal(ours.copies[i], ours.params[i].to(at::kFloat).to(*dtypes.copy)));
      }
}

TEST(FusedSgd, LooksAhead) {
  AdamLists lists({{1000}}, kDtypes[0]), other({{1000}}, kDtypes[0]);
  const SgdNumbers n{0.1, 0.9, 0, 0.05, true, false, false};
  fused_sgd({lists.params, lists.grads, lists.averages, {}}, n);
  at::_fused_sgd_(other.params, other.grads, other.averages, n.weight_decay, n.momentum, n.lr, n.dampening, n.nesterov,
                  n.maximize, n.is_first);
  expect_close(lists.params, other.params, "param");
  expect_close(lists.averages, other.averages, "buffer");
}

TEST(Conversions, AreThoseOfTorchForEveryNumber) {
  int differ = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = c10::Half(static_cast<uint16_t>(bits), c10::Half::from_bits());
    const float number = detail::from_half(static_cast<uint16_t>(bits));
    if (std::isnan(static_cast<float>(half))) {
      differ += !std::isnan(number);
      continue;
    }
    differ += number != static_cast<float>(half);
    // Numbers between two halves, and the one in the middle.
    for (const uint32_t extra : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) {
      const float between = detail::as_float(detail::as_bits(number) + extra);
      if (std::isnan(between)) continue;
      differ += detail::to_half(between) != c10::Half(between).x;
      differ += detail::to_bfloat16(between) != c10::BFloat16(between).x;
    }
  }
  EXPECT_EQ(differ, 0);
  EXPECT_EQ(detail::to_half(1e-8f), c10::Half(1e-8f).x);
  EXPECT_EQ(detail::to_half(-65520.0f), c10::Half(-65520.0f).x);
  EXPECT_EQ(detail::to_half(65519.0f), c10::Half(65519.0f).x);
  EXPECT_TRUE(std::isnan(detail::from_bfloat16(detail::to_bfloat16(NAN))));
  EXPECT_TRUE(std::isnan(detail::from_half(detail::to_half(NAN))));
}

}  // namespace
}  // namespace levin::kernels
