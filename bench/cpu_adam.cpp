// AdamW on the CPU: Levin's kernel beside torch's fused one, and beside what memory gives (a plain triad).
//   cpu_adam [--elements N] [--rounds N] [--threads N]
#include <chrono>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "levin/kernels/fused_step/adam.h"
#include "levin/kernels/fused_step/adam_8bit.h"
#include "levin/levin.h"

namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;

/// Seconds of the best round of each; rounds alternate, so that a busy machine is unkind to all.
std::vector<double> best_of(int64_t rounds, const std::vector<std::function<void()>>& ways) {
  std::vector<double> best(ways.size(), 1e9);
  for (int64_t round = 0; round <= rounds; ++round)
    for (size_t i = 0; i < ways.size(); ++i) {
      const auto start = Clock::now();
      ways[i]();
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (round > 0) best[i] = std::min(best[i], seconds);
    }
  return best;
}

struct Lists {
  std::vector<Tensor> params, grads, averages, squares, steps, copies, low_grads;
  std::vector<Tensor> codes1, codes2, scales1, scales2;

  explicit Lists(const std::vector<int64_t>& sizes) {
    for (const int64_t n : sizes) {
      params.push_back(torch::randn({n}));
      grads.push_back(torch::randn({n}));
      low_grads.push_back(grads.back().to(at::kBFloat16));
      averages.push_back(torch::zeros({n}));
      squares.push_back(torch::zeros({n}));
      copies.push_back(torch::zeros({n}, at::kBFloat16));
      steps.push_back(torch::ones({}));
      const int64_t blocks = levin::kernels::code_blocks(n);
      codes1.push_back(torch::zeros({blocks, levin::kernels::kCodeBlock}, at::kByte));
      codes2.push_back(torch::zeros_like(codes1.back()));
      scales1.push_back(torch::zeros({blocks}));
      scales2.push_back(torch::zeros({blocks}));
    }
  }
};

void print(const std::string& name, double value, double peer, const char* unit, double limit) {
  fmt::print("{{\"case\": \"{}\", \"value\": {:.4g}, \"peer\": {:.4g}, \"unit\": \"{}\", \"better\": \"higher\"", name,
             value, peer, unit);
  if (limit > 0) fmt::print(", \"limit\": {}", limit);
  fmt::print("}}\n");
}

void measure(const std::string& what, const std::vector<int64_t>& sizes, int64_t rounds) {
  constexpr levin::kernels::AdamNumbers kNumbers{1e-4, 0.9, 0.999, 1e-8, 0.01, false, false, true};
  Lists a(sizes), b(sizes);
  int64_t elements = 0;
  for (const int64_t n : sizes) elements += n;
  const auto ours = [&] {
    levin::kernels::fused_adam({a.params, a.grads, a.averages, a.squares, {}, a.steps, {}}, kNumbers);
  };
  const auto torchs = [&] {
    at::_fused_adamw_(b.params, b.grads, b.averages, b.squares, {}, b.steps, 1e-4, 0.9, 0.999, 0.01, 1e-8, false,
                      false);
  };
  const auto master = [&] {
    levin::kernels::fused_adam({a.params, a.low_grads, a.averages, a.squares, {}, a.steps, a.copies}, kNumbers);
  };
  const auto torchs_master = [&] {
    for (size_t i = 0; i < b.grads.size(); ++i) b.grads[i].copy_(b.low_grads[i]);
    torchs();
    for (size_t i = 0; i < b.copies.size(); ++i) b.copies[i].copy_(b.params[i]);
  };
  const auto eight_bit = [&] {
    levin::kernels::fused_adam_8bit(
        {a.params, a.low_grads, a.codes1, a.codes2, a.scales1, a.scales2, a.steps, a.copies}, kNumbers);
  };
  Lists c(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    c.params[i].requires_grad_();
    c.params[i].mutable_grad() = c.grads[i];
  }
  levin::optim::AdamW optimizer(c.params, {.lr = 1e-4});
  const auto whole = [&] { optimizer.step(); };
  const auto x = torch::rand({elements}), y = torch::rand({elements});
  auto z = torch::empty({elements});
  const auto triad = [&] { at::add_out(z, x, y, 2.5); };

  at::NoGradGuard no_grad;
  const auto s = best_of(rounds, {ours, torchs, master, torchs_master, eight_bit, triad, whole});
  const double millions = static_cast<double>(elements) / 1e6, bytes = static_cast<double>(elements) / 1e9;
  print("AdamW, " + what + ": float, torch's fused", millions / s[0], millions / s[1], "M elements/s", 1.0);
  print("AdamW, " + what + ": bfloat16 gradient and copy, torch's in three passes", millions / s[2], millions / s[3],
        "M elements/s", 1.0);
  print("AdamW, " + what + ": 8-bit averages, float averages", millions / s[4], millions / s[2], "M elements/s", 0);
  fmt::print(
      "{{\"case\": \"AdamW, {}: Levin's optimizer, torch.optim.AdamW(fused=True)\", \"value\": {:.4g}, \"unit\": \"M "
      "elements/s\", \"better\": \"higher\", \"limit\": 1}}\n",
      what, millions / s[6]);
  print("AdamW, " + what + ": memory, a triad's", bytes * 28 / s[0], bytes * 12 / s[5], "GB/s", 0);
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const auto elements = args.get("elements", 16'000'000);
    const auto rounds = args.get("rounds", 7);
    const auto threads = args.get("threads", 0);
    args.check_all_used();
    if (threads > 0) at::set_num_threads(static_cast<int>(threads));
    torch::manual_seed(0);
    measure("one tensor", {elements}, rounds);
    // A transformer's: matrices of a width, and four times as many vectors of it.
    std::vector<int64_t> sizes;
    for (int64_t left = elements; left > 0;) {
      for (int i = 0; i < 4; ++i) sizes.push_back(1024);
      sizes.push_back(std::min<int64_t>(left, 1024 * 1024));
      left -= sizes.back();
    }
    measure("a transformer's tensors", sizes, rounds);
    measure("1000 vectors", std::vector<int64_t>(1000, 1024), rounds);
  });
}
