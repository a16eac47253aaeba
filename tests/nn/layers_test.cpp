#include "levin/nn/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/nn/functional.h"
#include "levin/nn/summary.h"
#include "levin/nn/tie.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

namespace tnn = torch::nn;
using testing::error_of;

TEST(Layers, AreTorchsOwn) {
  torch::manual_seed(0);
  nn::Linear mine(4, 3);
  torch::manual_seed(0);
  tnn::Linear theirs(4, 3);
  const auto x = torch::randn({2, 4});
  EXPECT_TRUE(torch::equal(mine(x), theirs(x)));
  EXPECT_FALSE(nn::Linear(nn::LinearOptions(4, 3).bias(false))->bias.defined());
  nn::Conv2d conv(nn::Conv2dOptions(3, 6, 3).stride(2).padding(1));
  EXPECT_EQ(conv(torch::ones({1, 3, 8, 8})).sizes(), (std::vector<int64_t>{1, 6, 4, 4}));
  nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(8, 2));
  const auto y = torch::randn({5, 1, 8});
  EXPECT_EQ(std::get<0>(attention(y, y, y)).sizes(), y.sizes());
  nn::LSTM lstm(4, 6);
  EXPECT_EQ(std::get<0>(lstm(torch::ones({3, 1, 4}))).size(2), 6);
  tnn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 4, 3)), nn::BatchNorm2d(4), nn::ReLU(), nn::MaxPool2d(2),
                      nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions(1)), nn::Flatten(), nn::Dropout(0.1),
                      nn::Linear(4, 2));
  EXPECT_EQ(net->forward(torch::ones({2, 3, 8, 8})).sizes(), (std::vector<int64_t>{2, 2}));
  std::ostringstream text;
  text << mine;
  EXPECT_EQ(text.str(), "torch::nn::Linear(in_features=4, out_features=3, bias=true)");
}

TEST(Functional, IsTorchs) {
  const auto logits = torch::randn({4, 3});
  const auto target = torch::tensor({0, 2, 1, 1});
  namespace F = torch::nn::functional;
  EXPECT_TRUE(torch::equal(cross_entropy(logits, target), F::cross_entropy(logits, target)));
  EXPECT_TRUE(torch::equal(
      cross_entropy(logits, target, {.ignore_index = 1, .reduction = "sum", .label_smoothing = 0.1}),
      F::cross_entropy(logits, target,
                       F::CrossEntropyFuncOptions().ignore_index(1).reduction(torch::kSum).label_smoothing(0.1))));
  EXPECT_EQ(error_of([&] { cross_entropy(logits, target, {.reduction = "men"}); }),
            "[cross_entropy] reduction \"men\" is not known; did you mean \"mean\"? (known: mean, sum, none)");
  EXPECT_THAT(error_of([&] { cross_entropy(logits, target.unsqueeze(1)); }),
              ::testing::HasSubstr("logits [4, 3] need class indices of 1 dimension(s)"));
  EXPECT_THAT(error_of([&] {
                levin::mse_loss(torch::ones({4}), torch::ones({4, 1}));
              }),
              ::testing::HasSubstr("they must be equal"));
  EXPECT_TRUE(torch::equal(levin::mse_loss(logits, logits + 2), torch::tensor(4.0f)));
}

TEST(Functional, Accuracy) {
  const auto logits = torch::tensor({{0.1f, 0.7f, 0.2f}, {0.5f, 0.3f, 0.2f}});
  EXPECT_EQ(accuracy(logits, torch::tensor({1, 1})).item<float>(), 0.5);
  EXPECT_EQ(accuracy(logits, torch::tensor({1, 1}), 2).item<float>(), 1.0);
  EXPECT_THAT(error_of([&] { accuracy(logits, torch::tensor({1, 1}), 4); }), ::testing::HasSubstr("not in 1 to 3"));
}

struct LmImpl : tnn::Module {
  LmImpl() {
    embedding = register_module("embedding", nn::Embedding(10, 4));
    body = register_module("body", nn::Linear(4, 4));
    head = register_module("head", nn::Linear(nn::LinearOptions(4, 10).bias(false)));
    scale = register_parameter("scale", torch::ones({4}));
    tie(*this, head->weight, embedding->weight);
  }
  Tensor forward(const Tensor& ids) { return head(body(embedding(ids)) * scale); }
  nn::Embedding embedding = nullptr;
  nn::Linear body = nullptr, head = nullptr;
  Tensor scale;
};
LEVIN_MODULE(Lm);

TEST(Tie, MakesOneParameterOfTwo) {
  Lm lm;
  EXPECT_TRUE(lm->head->weight.is_same(lm->embedding->weight));
  EXPECT_TRUE(lm->named_parameters()["head.weight"].is_same(lm->embedding->weight));
  EXPECT_EQ(lm->parameters().size(), 5u);
  const auto unique = named_unique_parameters(*lm);
  ASSERT_EQ(unique.size(), 4u);
  EXPECT_EQ(unique[1].name, "embedding.weight");
  EXPECT_THAT(unique[1].aliases, ::testing::ElementsAre("head.weight"));
  EXPECT_EQ(unique_parameters(*lm).size(), 4u);
  lm(torch::tensor({1, 2})).sum().backward();
  EXPECT_TRUE(lm->head->weight.grad().is_same(lm->embedding->weight.grad()));
  lm->to(at::kDouble);
  EXPECT_TRUE(lm->head->weight.is_same(lm->embedding->weight));
  EXPECT_EQ(lm->head->weight.scalar_type(), at::kDouble);
}

TEST(Tie, RefusesWhatCannotBeOne) {
  Lm lm;
  tnn::Linear other(4, 10), wrong(4, 9);
  const auto before = wrong->weight;
  EXPECT_THAT(error_of([&] { tie(*lm, wrong->weight, lm->embedding->weight); }),
              ::testing::HasSubstr("shape, dtype and device must be equal"));
  EXPECT_THAT(error_of([&] { tie(*lm, other->weight, lm->embedding->weight); }),
              ::testing::HasSubstr("is not registered in"));
  EXPECT_TRUE(wrong->weight.is_same(before));
  tie(other, other->weight, lm->embedding->weight);
  EXPECT_TRUE(other->parameters()[0].is_same(lm->embedding->weight));
}

TEST(Summary, CountsAndPrints) {
  Lm lm;
  lm->body->weight.set_requires_grad(false);
  lm->body->eval();
  const auto summary = summarize(*lm, {.sample = [&] { lm(torch::tensor({1, 2, 3})); }});
  EXPECT_EQ(summary.total, 40 + 20 + 4);
  EXPECT_EQ(summary.trainable, 40 + 4 + 4);
  EXPECT_EQ(summary.train_modules, 2);
  EXPECT_EQ(summary.eval_modules, 1);
  ASSERT_EQ(summary.rows.size(), 4u);
  EXPECT_EQ(summary.rows[2].params, 0) << "tied: counted with the embedding";
  EXPECT_EQ(summary.rows[1].out_sizes, "[3, 4]");
  EXPECT_TRUE(lm->head->is_training());
  EXPECT_FALSE(lm->body->is_training());
  EXPECT_EQ(lm->head->num_interceptors(), 0u);
  EXPECT_EQ(
      summary.text(),
      R"(  | Name         | Type      | Params | Shapes      | DType | Size  | Trained | Mode  | In sizes | Out sizes
------------------------------------------------------------------------------------------------------------
0 | embedding    | Embedding | 40     | [10, 4]     | Float | 160 B | yes     | train | [3]      | [3, 4]
1 | body         | Linear    | 20     | [4, 4], [4] | Float | 80 B  | part    | eval  | [3, 4]   | [3, 4]
2 | head         | Linear    | 0      | [10, 4]     |       | 0 B   |         | train | [3, 4]   | [3, 10]
3 | other params | n/a       | 4      | [4]         | Float | 16 B  | yes     | n/a   |          |
------------------------------------------------------------------------------------------------------------
48        Trainable params
16        Non-trainable params
64        Total params
0.000     Total estimated model params size (MB)
2         Modules in train mode
1         Modules in eval mode
)");
}

TEST(Summary, DepthSaysHowMuch) {
  struct DeepImpl : tnn::Module {
    DeepImpl() {
      auto inner = register_module("inner", std::make_shared<LmImpl>());
      register_module("outer", nn::Linear(2, 2));
    }
  } deep;
  EXPECT_EQ(summarize(deep, {.max_depth = 0}).rows.size(), 0u);
  EXPECT_EQ(summarize(deep, {.max_depth = 1}).rows.size(), 2u);
  const auto all = summarize(deep, {.max_depth = -1});
  ASSERT_EQ(all.rows.size(), 5u);
  EXPECT_EQ(all.rows[0].params, 64);
  EXPECT_EQ(all.rows[2].name, "inner.body");
  EXPECT_EQ(all.total, 70);
  EXPECT_THAT(summarize(deep, {.max_depth = 0}).text(), ::testing::StartsWith("70 "));
}

}  // namespace
}  // namespace levin
