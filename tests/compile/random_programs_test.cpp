// Random steps, fused against eager on the CPU: views written through views, in-place, out=, broadcasts, dtypes, empty and
// 0-dim tensors, NaN and infinities, random operators, kept tensors, gradients.
#include <cstdlib>
#include <random>

#include <ATen/ExpandUtils.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/compile/program.h"

namespace levin::compile {
namespace {

using torch::indexing::Slice;

/// Tensors that live from call to call, and a step that is drawn anew, alike, at each call.
class RandomStep {
 public:
  explicit RandomStep(uint64_t seed) : seed_(seed) {
    std::mt19937_64 random(seed);
    torch::manual_seed(seed);
    const int64_t rows = 1 + static_cast<int64_t>(random() % 5), width = 1 + static_cast<int64_t>(random() % 6);
    const bool empty = random() % 16 == 0;
    sizes_ = {empty ? 0 : rows, width};
    if (random() % 2 == 0) sizes_.insert(sizes_.begin(), 1 + static_cast<int64_t>(random() % 3));
    const auto dtype = std::array{torch::kFloat, torch::kFloat, torch::kDouble, torch::kBFloat16}[random() % 4];
    for (int i = 0; i < 3; ++i) state_.push_back(torch::randn(sizes_, dtype));
    state_.push_back(torch::randn({width}, dtype));
    state_.push_back(torch::randn({}, dtype));
    if (random() % 4 == 0 && !empty) state_[0].view(-1)[0] = std::numeric_limits<double>::infinity();
    if (random() % 4 == 0 && !empty) state_[1].view(-1)[0] = std::numeric_limits<double>::quiet_NaN();
    if (random() % 3 == 0) state_[2] = state_[2].transpose(-1, -2).contiguous().transpose(-1, -2);
    for (int i = 0; i < 2; ++i) params_.push_back(torch::randn(i == 0 ? sizes_ : std::vector{width}, dtype).requires_grad_());
  }

  std::vector<Tensor> operator()() {
    std::mt19937_64 random(seed_ + 1);
    for (auto& param : params_) param.mutable_grad().reset();
    std::vector<Tensor> pool = state_;
    pool.insert(pool.end(), params_.begin(), params_.end());
    const auto any = [&]() -> Tensor& { return pool[random() % pool.size()]; };
    std::vector<Tensor> kept;
    const int count = 4 + static_cast<int>(random() % 28);
    for (int i = 0; i < count; ++i) {
      try {
        auto made = operate(random() % 40, any(), any(), any(), random);
        if (!made.defined()) continue;
        if (random() % 6 == 0) kept.push_back(made.detach());
        pool.push_back(made);
      } catch (const c10::Error&) {  // sizes that do not fit, or a dtype: the same at each call
      }
    }
    try {
      Tensor loss;
      for (const auto& each : pool)
        if (each.requires_grad() && !each.is_leaf() && each.is_floating_point())
          loss = loss.defined() ? loss + each.to(torch::kDouble).sum() : each.to(torch::kDouble).sum();
      if (loss.defined()) {
        loss.backward();
        kept.push_back(loss.detach());
      }
    } catch (const c10::Error&) {  // changed in place after it was saved for backward
    }
    return kept;
  }

  std::vector<Tensor> all() const {
    auto tensors = state_;
    for (const auto& param : params_) {
      tensors.push_back(param.detach());
      if (param.grad().defined()) tensors.push_back(param.grad());
    }
    return tensors;
  }
  const std::vector<Tensor>& params() const { return params_; }

 private:
  Tensor operate(uint64_t kind, Tensor& a, Tensor& b, Tensor& c, std::mt19937_64& random) {
    const double number = static_cast<double>(random() % 7) - 3;
    switch (kind) {
      case 0: return a + b;
      case 1: return a * b;
      case 2: return a - b * number;
      case 3: return a / (b.abs() + 1);
      case 4: return torch::tanh(a);
      case 5: return torch::gelu(a, random() % 2 ? "none" : "tanh");
      case 6: return torch::sigmoid(a);
      case 7: return torch::where(a > b, a, b);
      case 8: return a.masked_fill(b > 0, number);
      case 9: return torch::softmax(a, -1);
      case 10: return torch::log_softmax(a, -1);
      case 11: return a.sum(-1, random() % 2);
      case 12: return a.mean(-1, true);
      case 13: return a.amax(-1, random() % 2);
      case 14: return a.to(std::array{torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kLong}[random() % 4]);
      case 15: return a.transpose(-1, -2);
      case 16: return a.slice(-1, 0, 1 + static_cast<int64_t>(random() % 3));
      case 17: return a.unsqueeze(static_cast<int64_t>(random() % 2));
      case 18: return a.select(0, 0);
      case 19: return a.expand_as(b);
      case 20: return a.contiguous();
      case 21: return a.clone();
      case 22: return a.reshape({-1});
      case 23: write(a).add_(b, number); return {};
      case 24: write(a).mul_(0.5); return {};
      case 25: write(a).slice(-1, 0, 2).add_(1); return {};
      case 26: write(a).copy_(b); return {};
      case 27: write(a).transpose(-1, -2).mul_(b); return {};
      case 28: write(a).clamp_(-2, 2); return {};
      case 29: {
        const torch::NoGradGuard no_grad;
        auto out = torch::empty(at::infer_size(a.sizes(), b.sizes()), a.options());
        torch::add_out(out, a, b);
        return out;
      }
      case 30: {
        const torch::NoGradGuard no_grad;
        auto sizes = at::infer_size(a.sizes(), b.sizes());
        sizes.insert(sizes.begin(), 2);
        auto out = torch::zeros(sizes, a.options());
        auto slice = out[1];
        torch::mul_out(slice, a.detach(), b.detach());
        return out;
      }
      case 31: return torch::dropout(a, 0.3, true);
      case 32: return torch::matmul(a, b.transpose(-1, -2));
      case 33: return torch::cat({a, b}, -1);
      case 34: return torch::addcmul(a, b, c, number);
      case 35: return a.relu();
      case 36: return a.pow(2);
      case 37: return (a - a.mean(-1, true)) * (a.var(-1, false, true) + 1e-5).rsqrt();
      case 38: return torch::lerp(a, b, 0.25);
      default: return torch::layer_norm(a, {a.size(-1)});
    }
  }
  /// Parameters are not written.
  static Tensor write(const Tensor& tensor) { return tensor.is_leaf() && tensor.requires_grad() ? tensor * 1 : tensor; }

  uint64_t seed_;
  std::vector<int64_t> sizes_;
  std::vector<Tensor> state_, params_;
};

std::string differs(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return "number of tensors";
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].sizes() != b[i].sizes() || a[i].dtype() != b[i].dtype()) return "sizes of tensor " + std::to_string(i);
    const double limit = a[i].scalar_type() == torch::kDouble ? 1e-8 : a[i].scalar_type() == torch::kFloat ? 1e-4 : 5e-2;
    const auto x = a[i].to(torch::kDouble), y = b[i].to(torch::kDouble);
    if (!torch::allclose(x, y, limit, limit, /*equal_nan=*/true)) {
      std::ostringstream text;
      text << "tensor " << i << "\neager " << y << "\nfused " << x;
      return text.str();
    }
  }
  return {};
}

enum class Outcome { kFused, kRefused };

/// Eager and fused from the same state, six calls each.
Outcome run_both(uint64_t seed, std::string& wrong) {
  RandomStep eager(seed), fused(seed);
  std::unique_ptr<Program> program;
  Graph first;
  std::vector<Tensor> results;
  bool refused = false;
  for (int call = 0; call < 6 && wrong.empty(); ++call) {
    torch::manual_seed(seed + static_cast<uint64_t>(call));
    const auto expected = eager();
    torch::manual_seed(seed + static_cast<uint64_t>(call));
    if (call == 0 || refused) {
      results = fused();
    } else if (call == 1) {
      Recorder recorder({.params = fused.params()});
      results = fused();
      recorder.finish();
      refused = !recorder.refusal().empty();
      if (refused) continue;
      first = recorder.graph();
      program = std::make_unique<Program>(recorder, fused.params(), FusionOptions{.min_numel = 0});
    } else if (call == 2) {
      results.clear();
      Prover prover(*program, first);
      results = fused();
      refused = !prover.finish().empty();
      EXPECT_EQ(program->counts().refused, 0) << "seed " << seed << "\n" << program->graph().to_string();
    } else if (program->matches()) {
      program->run();
    } else {
      refused = true;
      results = fused();
    }
    wrong = differs(results, expected);
    if (wrong.empty()) wrong = differs(fused.all(), eager.all());
    if (!wrong.empty()) wrong = "call " + std::to_string(call) + ": " + wrong + (program ? "\n" + program->graph().to_string() : "");
  }
  return refused ? Outcome::kRefused : Outcome::kFused;
}

/// LEVIN_TEST_PROGRAMS=10000 runs more of them.
uint64_t programs_asked() {
  const char* text = std::getenv("LEVIN_TEST_PROGRAMS");
  return text ? std::strtoull(text, nullptr, 10) : 300;
}

TEST(RandomSteps, FusedIsEager) {
  const uint64_t first = static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed()) * 100000;
  int fused = 0;
  const auto count = programs_asked();
  for (uint64_t seed = first; seed < first + count; ++seed) {
    std::string wrong;
    fused += run_both(seed, wrong) == Outcome::kFused;
    ASSERT_EQ(wrong, "") << "seed " << seed;
  }
  EXPECT_GT(fused, static_cast<int>(count / 2)) << "most are fused";
}

}  // namespace
}  // namespace levin::compile
