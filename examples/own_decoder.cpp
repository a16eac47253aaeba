// A transformer of your own over a mesh: data x tensor x pipeline parallel. For that the model has a plan of how its
// layers are split, its attention heads() and take_heads(), its head take_vocab(). The loop is the same everywhere.
//   own_decoder [--devices 1] [--strategy auto] [--steps 20]
//   own_decoder --devices 4 --strategy model_parallel:pp=2,tp=2,microbatches=4
//   own_decoder --devices 8 --strategy model_parallel:pp=2,dp_shard=2,tp=2,sequence_parallel,microbatches=4
#include "levin/levin.h"
#include "levin/nn/tensor/functions.h"

namespace {

using torch::Tensor;
namespace nn = levin::nn;
constexpr int64_t kVocabulary = 61, kWidth = 48, kHeads = 4, kTokens = 16;

struct AttentionImpl : torch::nn::Module, levin::TensorParallelPart {
  AttentionImpl() {
    qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", nn::Linear(kWidth, kWidth));
  }
  // Asked before the split. Then this rank has some heads, with their rows of qkv and columns of out.
  levin::HeadCounts heads() const override { return {.heads = kHeads, .kv_heads = kHeads, .width = kWidth / kHeads}; }
  void take_heads(const levin::HeadShare& share) override { own_heads = share.heads.count; }
  Tensor forward(const Tensor& x) {
    const auto parts = qkv(x).view({x.size(0), -1, 3, own_heads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    return out(mixed.transpose(1, 2).flatten(2));
  }
  int64_t own_heads = kHeads;
  nn::Linear qkv{nullptr}, out{nullptr};
};
LEVIN_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm_1 = register_module("norm_1", nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    attention = register_module("attention", Attention());
    norm_2 = register_module("norm_2", nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    up = register_module("up", nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", nn::Linear(4 * kWidth, kWidth));
  }
  Tensor forward(const Tensor& x) {
    const auto y = x + attention(norm_1(x));
    return y + down(torch::gelu(up(norm_2(y))));
  }
  nn::LayerNorm norm_1{nullptr}, norm_2{nullptr};
  Attention attention{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};
LEVIN_MODULE(Block);

struct HeadImpl : torch::nn::Module, levin::TensorParallelPart {
  HeadImpl() { weight = register_parameter("weight", torch::randn({kVocabulary, kWidth}) * 0.02); }
  void take_vocab(const std::shared_ptr<const levin::VocabShare>& share) override { rows = share; }
  Tensor forward(const Tensor& x, const Tensor& targets) {
    // x is whole on every rank, so its gradient is summed; logits of the whole vocabulary are nowhere.
    if (rows) return nn::vocab_cross_entropy(nn::copied_to_ranks(x, rows->ranks), weight, targets, *rows);
    return levin::cross_entropy(at::linear(x, weight).flatten(0, 1), targets.flatten());
  }
  std::shared_ptr<const levin::VocabShare> rows;
  Tensor weight;
};
LEVIN_MODULE(Head);

struct DecoderImpl : torch::nn::Module, levin::TensorParallelPart {
  DecoderImpl() {
    tokens = register_module("tokens", nn::Embedding(kVocabulary, kWidth));
    positions = register_module("positions", nn::Embedding(kTokens, kWidth));
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block()));
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head = register_module("head", Head());
  }
  levin::TensorPlan tensor_plan() const override {
    using enum levin::TensorRole;
    return {{"tokens", kVocabEmbedding}, {"block*.attention.qkv", kQkv}, {"block*.attention.out", kHeadRow},
            {"block*.up", kColumn},      {"block*.down", kRow},          {"head", kVocabHead},
            {"block0", kSequenceBegin},  // with sequence_parallel: from here a rank has some of the tokens
            {"norm", kSequenceEnd}};
  }
  Tensor forward(const Tensor& ids, const Tensor& targets) {
    auto x = tokens(ids) + positions(at::arange(ids.size(1), ids.options()));
    for (auto& block : blocks) x = block(x);
    return head(norm(x), targets);
  }
  nn::Embedding tokens{nullptr}, positions{nullptr};
  std::vector<Block> blocks;
  nn::LayerNorm norm{nullptr};
  Head head{nullptr};
};
LEVIN_MODULE(Decoder);

void train(levin::Args& args) {
  levin::Fabric fabric({.strategy = args.get("strategy", "auto"), .devices = args.get("devices", "1")});
  const auto steps = args.get("steps", 20);
  args.check_all_used();
  fabric.launch(args);
  levin::Fabric::seed_everything(1, {.verbose = false});
  auto model = fabric.init_module([] { return Decoder(); });
  auto [net, optimizer] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 3e-3}));
  // Each token is the one before it, and three. Ranks of tp and pp see the same batches, those of dp others.
  const auto ids = (torch::randint(kVocabulary, {16 * steps, 1}) + 3 * torch::arange(kTokens + 1)) % kVocabulary;
  auto loader = fabric.setup_dataloaders(
      levin::make_loader(levin::TensorDataset({{"ids", ids.slice(1, 0, kTokens)}, {"next", ids.slice(1, 1)}}),
                         {.batch_size = 16 / fabric.strategy().data_place().size}));
  for (int64_t step = 1; auto& batch : loader) {
    const auto before = levin::traffic(fabric.strategy().group());
    auto loss = fabric.forward_backward(net, batch, [&](auto& part) { return net(part["ids"], part["next"]); });
    optimizer.step();
    optimizer.zero_grad();
    const auto sent = (levin::traffic(fabric.strategy().group()) - before).sent();
    loss = fabric.all_reduce(loss);
    fabric.print("step ", step++, " loss ", loss.item<double>(), ", rank 0 sends ", sent, " bytes");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, train);
}
