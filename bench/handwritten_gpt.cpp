// A training step of GPT-2's sizes in eager mode, of a model as users write it from torch's own layers: attention by
// two products and a softmax, GELU by its formula. AdamW, bf16-mixed on a GPU and float32 on the CPU; beside it the
// same text in Python.
//   handwritten_gpt [--tiny] [--batch N] [--seconds S] [--rounds N]
#include <chrono>
#include <cmath>
#include <limits>
#include <numbers>

#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "levin/levin.h"

namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;
namespace nn = torch::nn;

struct Sizes {
  int64_t vocab = 50304, context = 1024, width = 768, heads = 12, layers = 12;
};

struct SelfAttentionImpl : nn::Module {
  explicit SelfAttentionImpl(const Sizes& s)
      : heads(s.heads),
        qkv(register_module("qkv", nn::Linear(s.width, 3 * s.width))),
        out(register_module("out", nn::Linear(s.width, s.width))),
        later(register_buffer("later", torch::ones({s.context, s.context}, at::kBool).triu(1))) {}

  Tensor forward(const Tensor& x) {  // [B, T, C]
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = qkv(x).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const auto q = parts[0], k = parts[1], v = parts[2];  // [B, heads, T, C / heads]
    auto scores = q.matmul(k.transpose(-2, -1)) / std::sqrt(static_cast<double>(width / heads));
    const auto hidden = later.narrow(0, 0, length).narrow(1, 0, length);
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    const auto mixed = scores.softmax(-1).matmul(v);
    return out(mixed.transpose(1, 2).reshape({batch, length, width}));
  }

  int64_t heads;
  nn::Linear qkv, out;
  Tensor later;
};
TORCH_MODULE(SelfAttention);

struct BlockImpl : nn::Module {
  explicit BlockImpl(const Sizes& s)
      : norm_1(register_module("norm_1", nn::LayerNorm(nn::LayerNormOptions({s.width})))),
        attention(register_module("attention", SelfAttention(s))),
        norm_2(register_module("norm_2", nn::LayerNorm(nn::LayerNormOptions({s.width})))),
        up(register_module("up", nn::Linear(s.width, 4 * s.width))),
        down(register_module("down", nn::Linear(4 * s.width, s.width))) {}

  Tensor forward(const Tensor& given) {
    const auto x = given + attention(norm_1(given));
    const auto h = up(norm_2(x));
    const auto inner = std::sqrt(2 / std::numbers::pi) * (h + 0.044715 * h.pow(3));
    return x + down(0.5 * h * (1 + inner.tanh()));
  }

  nn::LayerNorm norm_1;
  SelfAttention attention;
  nn::LayerNorm norm_2;
  nn::Linear up, down;
};
LEVIN_MODULE(Block);

struct HandwrittenGptImpl : nn::Module {
  explicit HandwrittenGptImpl(const Sizes& s)
      : tokens(register_module("tokens", nn::Embedding(s.vocab, s.width))),
        places(register_module("places", nn::Embedding(s.context, s.width))),
        blocks(register_module("blocks", nn::ModuleList())),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({s.width})))),
        head(register_module("head", nn::Linear(nn::LinearOptions(s.width, s.vocab).bias(false)))) {
    for (int64_t i = 0; i < s.layers; ++i) blocks->push_back(Block(s));
  }

  /// The loss of `ids` [B, T] whose next tokens are `next`.
  Tensor forward(const Tensor& ids, const Tensor& next) {
    auto x = tokens(ids) + places(torch::arange(ids.size(1), ids.options()));
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    const auto logits = head(norm(x));
    return nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}), next.view({-1}));
  }

  nn::Embedding tokens, places;
  nn::ModuleList blocks;
  nn::LayerNorm norm;
  nn::Linear head;
};
LEVIN_MODULE(HandwrittenGpt);

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const bool tiny = args.get("tiny", false);
    const auto batch = args.get("batch", tiny ? 2 : 16);
    const auto seconds = args.get("seconds", tiny ? 0.1 : 2.0);
    const auto rounds = args.get("rounds", tiny ? 2 : 5);
    args.check_all_used();
    const bool on_gpu = torch::cuda::is_available();
    const auto sizes = tiny ? Sizes{.vocab = 256, .context = 32, .width = 64, .heads = 2, .layers = 2} : Sizes{};
    if (!on_gpu && !tiny) {
      fmt::print("{}\n", R"({"skip": "no GPU; --tiny runs a small model on the CPU"})");
      return;
    }
    torch::manual_seed(0);
    levin::Fabric fabric({.accelerator = on_gpu ? "cuda" : "cpu", .precision = on_gpu ? "bf16-mixed" : "32-true"});
    HandwrittenGpt model(sizes);
    auto [net, optimizer] =
        fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 1e-4, .weight_decay = 0.01}));
    const auto text = torch::randint(sizes.vocab, {batch, sizes.context + 1}, at::kLong).to(fabric.device());
    const auto ids = text.slice(1, 0, sizes.context).contiguous(), next = text.slice(1, 1).contiguous();

    Tensor loss;
    const auto step = [&, &net = net, &optimizer = optimizer] {
      optimizer.zero_grad();
      loss = net(ids, next);
      fabric.backward(loss);
      optimizer.step();
    };
    for (int i = 0; i < 5; ++i) step();
    const auto first = loss.item<double>();
    std::vector<double> times;
    for (int64_t round = 0; round < rounds; ++round) {
      const auto start = Clock::now();
      const auto so_far = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
      int64_t steps = 0;
      for (; so_far() < seconds; loss.item<double>())
        for (int i = 0; i < 5; ++i, ++steps) step();
      times.push_back(1e3 * so_far() / static_cast<double>(steps));
    }
    std::sort(times.begin(), times.end());
    const auto last = loss.item<double>();
    LEVIN_CHECK(last < first, "[handwritten_gpt] the loss went from ", first, " to ", last);
    fmt::print("{{\"case\": \"handwritten_gpt{}\", \"value\": {:.3f}, \"unit\": \"ms\"}}\n", tiny ? ", tiny" : "",
               times[times.size() / 2]);
  });
}
