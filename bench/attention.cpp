// Attention of packed queries, keys and values in bfloat16 on a GPU, by each of the backends: microseconds of forward
// and backward, after a pause and when the device has worked for a while, and the error beside float32.
//   attention [--batch N] [--tokens N] [--heads N] [--size N] [--full] [--backend NAME] [--seconds S]
// --full: without a mask; else it is causal. --backend: this one alone.
#include <chrono>

#include <fmt/format.h>

#include "levin/core/words.h"
#include "levin/devices/graphs.h"
#include "levin/kernels/attention/attention_detail.h"
#include "levin/levin.h"

namespace {

using at::Tensor;
using levin::kernels::detail::AttentionBackend;
using Clock = std::chrono::steady_clock;

struct Sizes {
  int64_t batch, tokens, heads, size;
  bool causal;
};

const std::vector<std::pair<std::string, AttentionBackend>> kBackends{{"causal", AttentionBackend::kCausal},
                                                                      {"short", AttentionBackend::kShort},
                                                                      {"cudnn", AttentionBackend::kCudnn},
                                                                      {"flash", AttentionBackend::kFlash}};

/// Microseconds of a call, captured so that launches cost nothing: at first, and after some seconds of work.
struct Times {
  double first, later;
};
Times measure(const std::function<Tensor()>& call, double seconds) {
  constexpr int kCalls = 50;
  (void)call();  // libraries load kernels
  const auto graph = levin::detail::cuda_graphs(c10::Device(at::kCUDA, 0))->capture([&] {
    for (int i = 0; i < kCalls; ++i) (void)call();
  });
  const auto time_of = [&](int replays) {
    torch::cuda::synchronize();
    const auto start = Clock::now();
    for (int i = 0; i < replays; ++i) graph->replay();
    torch::cuda::synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / replays;
  };
  time_of(1);
  Times times{time_of(4), 0};
  const int replays = std::max(1, static_cast<int>(seconds / times.first));
  time_of(replays);
  times.later = time_of(replays);
  return {times.first * 1e6 / kCalls, times.later * 1e6 / kCalls};
}

double relative(const Tensor& is, const Tensor& exact) {
  return ((is.to(at::kFloat) - exact).norm() / exact.norm()).item<double>();
}

void run(const std::string& name, AttentionBackend backend, const Sizes& sizes, double seconds) {
  using namespace levin::kernels::detail;
  torch::manual_seed(0);
  const auto bf16 = torch::dtype(at::kBFloat16).device(at::kCUDA);
  const auto qkv = torch::randn({sizes.batch, sizes.tokens, 3, sizes.heads, sizes.size}, bf16);
  if (!attention_runs_on(backend, qkv, sizes.causal, 0)) {
    fmt::print("{:<8} has no kernel for it\n", name);
    return;
  }
  const auto result = fused_attention(qkv, sizes.causal, 0, backend);
  const auto grad = torch::randn(result.out.transpose(1, 2).sizes(), bf16).transpose(1, 2);
  const auto forward = measure([&] { return fused_attention(qkv, sizes.causal, 0, backend).out; }, seconds);
  const auto backward =
      measure([&] { return fused_attention_backward(grad, qkv, result, sizes.causal, 0, backend); }, seconds);

  // Of the first sequence.
  const auto exact_qkv = qkv.narrow(0, 0, 1).to(at::kFloat).requires_grad_();
  Tensor exact, exact_grad;
  {
    const at::AutoGradMode with_gradients(true);
    const auto parts = exact_qkv.permute({2, 0, 3, 1, 4});
    exact = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, sizes.causal);
    exact_grad = torch::autograd::grad({exact}, {exact_qkv}, {grad.narrow(0, 0, 1).to(at::kFloat)})[0];
  }
  const auto first = fused_attention_backward(grad, qkv, result, sizes.causal, 0, backend).narrow(0, 0, 1);
  fmt::print(
      "{:<8} forward {:7.1f} us, later {:7.1f}, error {:.1e};  backward {:7.1f} us, later {:7.1f}, error {:.1e}\n",
      name, forward.first, forward.later, relative(result.out.narrow(0, 0, 1), exact), backward.first, backward.later,
      relative(first, exact_grad));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    Sizes sizes{};
    sizes.batch = args.get("batch", 16);
    sizes.tokens = args.get("tokens", 1024);
    sizes.heads = args.get("heads", 12);
    sizes.size = args.get("size", 64);
    sizes.causal = !args.has("full");
    const auto only = args.get("backend", "");
    const auto seconds = args.get("seconds", 0.5);
    args.check_all_used();
    std::vector<std::string> known;
    for (const auto& [name, backend] : kBackends) known.push_back(name);
    if (!only.empty() && std::find(known.begin(), known.end(), only) == known.end())
      levin::fail_unknown("attention", "--backend", only, known);
    LEVIN_CHECK(torch::cuda::is_available(), "[attention] needs a GPU");
    const at::NoGradGuard no_grad;
    fmt::print("{} x {} tokens, {} heads of {}{}\n", sizes.batch, sizes.tokens, sizes.heads, sizes.size,
               sizes.causal ? ", causal" : "");
    for (const auto& [name, backend] : kBackends)
      if (only.empty() || only == name) run(name, backend, sizes, seconds);
  });
}
