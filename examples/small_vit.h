#pragma once
// A small vision transformer in plain LibTorch, for the two programs that show what Fabric changes.
#include <torch/torch.h>

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t dim, int64_t heads)
      : heads_(heads),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})))),
        qkv(register_module("qkv", torch::nn::Linear(dim, 3 * dim))),
        proj(register_module("proj", torch::nn::Linear(dim, dim))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})))),
        up(register_module("up", torch::nn::Linear(dim, 2 * dim))),
        down(register_module("down", torch::nn::Linear(2 * dim, dim))) {}

  torch::Tensor forward(torch::Tensor x) {                                                     // [B, T, C]
    const auto parts = qkv(norm1(x)).unflatten(-1, {3, heads_, -1}).permute({2, 0, 3, 1, 4});  // [3, B, H, T, D]
    const auto attention = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    x = x + proj(attention.transpose(1, 2).flatten(2));
    return x + down(torch::gelu(up(norm2(x))));
  }

  int64_t heads_;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, proj;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct SmallViTImpl : torch::nn::Module {
  explicit SmallViTImpl(int64_t dim = 64, int64_t depth = 4, int64_t classes = 10)
      : patches(register_module("patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, dim, 7).stride(7)))),
        position(register_parameter("position", torch::randn({1, 16, dim}) * 0.02)),
        blocks(register_module("blocks", torch::nn::Sequential())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})))),
        head(register_module("head", torch::nn::Linear(dim, classes))) {
    for (int64_t i = 0; i < depth; ++i) blocks->push_back(Block(dim, 4));
  }

  torch::Tensor forward(const torch::Tensor& images) {  // [B, 1, 28, 28]
    auto x = patches(images).flatten(2).transpose(1, 2) + position;
    return head(norm(blocks->forward(x)).mean(1));
  }

  torch::nn::Conv2d patches;
  torch::Tensor position;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(SmallViT);

/// Images of ten classes that need no file: a fixed pattern per class, shifted and under noise.
inline std::pair<torch::Tensor, torch::Tensor> drawn_images(int64_t count, uint64_t seed) {
  auto generator = torch::make_generator<at::CPUGeneratorImpl>(0);
  const auto patterns = torch::rand({10, 1, 28, 28}, generator).gt(0.6).to(torch::kFloat);
  generator.set_current_seed(seed);
  const auto labels = torch::randint(0, 10, {count}, generator, torch::kLong);
  const auto noise = torch::randn({count, 1, 28, 28}, generator);
  return {patterns.index_select(0, labels) + 0.8 * noise, labels};
}

/// The samples in a random order, in batches.
inline std::vector<std::pair<torch::Tensor, torch::Tensor>> shuffled_batches(const torch::Tensor& images,
                                                                             const torch::Tensor& labels,
                                                                             int64_t batch_size) {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> batches;
  for (const auto& index : torch::randperm(images.size(0)).split(batch_size))
    batches.emplace_back(images.index_select(0, index), labels.index_select(0, index));
  return batches;
}
