#include "levin/nn/deferred_init.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/nn/init.h"
#include "levin/nn/layers.h"
#include "levin/nn/tie.h"

namespace levin {
namespace {

namespace tnn = torch::nn;

/// Everything that constructors do to tensors, in one.
struct ZooImpl : tnn::Module {
  explicit ZooImpl(int64_t n = 8) {
    a = register_module("a", nn::Linear(n, 2 * n));
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 4, 3)));
    norm = register_module("norm", nn::BatchNorm2d(4));
    layer = register_module("layer", nn::LayerNorm(nn::LayerNormOptions({n})));
    dropout = register_module("dropout", nn::Dropout(0.5));
    embedding = register_module("embedding", nn::Embedding(nn::EmbeddingOptions(10, n).padding_idx(3)));
    head = register_module("head", nn::Linear(nn::LinearOptions(n, 10).bias(false)));
    lstm = register_module("lstm", nn::LSTM(n, n));
    attention = register_module("attention", nn::MultiheadAttention(n, 2));
    scale = register_parameter("scale", torch::full({n}, 0.5));
    drawn = register_parameter("drawn", torch::randn({n, n}));
    cut = register_parameter("cut", torch::empty({n, n}));
    nn::init::trunc_normal_(cut, 0, 0.02);
    torch::nn::init::orthogonal_(register_parameter("orthogonal", torch::empty({n, n})));
    torch::nn::init::eye_(register_parameter("eye", torch::empty({n, n})));
    torch::nn::init::sparse_(register_parameter("sparse", torch::empty({n, n})), 0.5);
    torch::nn::init::kaiming_normal_(register_parameter("kaiming", torch::empty({n, n})));
    scaled = register_parameter("scaled", torch::randn({n}) * 0.02);  // out of place: cannot wait
    {
      torch::NoGradGuard no_grad;
      cut.narrow(0, 0, 2).zero_();  // a view
      a->weight[0].uniform_(2, 3);  // another
    }
    first_row = a->weight.detach()[0];  // an alias that is kept
    counts = register_buffer("counts", torch::arange(n));
    table = register_buffer("table", torch::arange(n, torch::kFloat).div(n).cos());
    given = register_buffer("given", torch::tensor({1.5f, 2.5f}));
    noise = register_buffer("noise", torch::rand({n}));
    plain = torch::empty({n}).normal_();  // a member that is not registered
    tie(*this, head->weight, embedding->weight);
    last = register_parameter("last", torch::empty({n}).uniform_());
  }
  Tensor forward(const Tensor& x) { return dropout(a(x)); }

  nn::Linear a = nullptr, head = nullptr;
  nn::Conv2d conv = nullptr;
  nn::BatchNorm2d norm = nullptr;
  nn::LayerNorm layer = nullptr;
  nn::Dropout dropout = nullptr;
  nn::Embedding embedding = nullptr;
  nn::LSTM lstm = nullptr;
  nn::MultiheadAttention attention = nullptr;
  Tensor scale, drawn, cut, scaled, first_row, counts, table, given, noise, plain, last;
};
LEVIN_MODULE(Zoo);

void expect_same(tnn::Module& made, tnn::Module& reference) {
  const auto compare = [](const auto& mine, const auto& theirs) {
    ASSERT_EQ(mine.size(), theirs.size());
    for (const auto& item : theirs) {
      ASSERT_TRUE(mine.contains(item.key()));
      EXPECT_EQ(mine[item.key()].scalar_type(), item.value().scalar_type()) << item.key();
      EXPECT_EQ(mine[item.key()].strides(), item.value().strides()) << item.key();
      EXPECT_TRUE(torch::equal(mine[item.key()], item.value())) << item.key();
      EXPECT_EQ(mine[item.key()].requires_grad(), item.value().requires_grad()) << item.key();
    }
  };
  compare(made.named_parameters(), reference.named_parameters());
  compare(made.named_buffers(), reference.named_buffers());
}

struct Eager {
  Eager() {
    torch::manual_seed(3);
    module = Zoo();
    after = torch::rand({4});
  }
  Zoo module = nullptr;
  Tensor after;
};

TEST(DeferredInit, EqualsEagerInitBitForBitAndSoDoesTheGenerator) {
  Eager eager;
  torch::manual_seed(3);
  auto made = init_module([] { return Zoo(); }, {.deferred = true});
  EXPECT_TRUE(is_deferred(*made));
  EXPECT_TRUE(is_deferred(made->a->weight));
  EXPECT_FALSE(is_deferred(made->plain)) << "nobody would find it later";
  EXPECT_FALSE(is_deferred(made->scaled));
  EXPECT_EQ(made->a->weight.sizes(), (std::vector<int64_t>{16, 8}));
  EXPECT_TRUE(made->a->weight.requires_grad());
  materialize(*made);
  EXPECT_FALSE(is_deferred(*made));
  expect_same(*made, *eager.module);
  EXPECT_TRUE(torch::equal(made->plain, eager.module->plain));
  EXPECT_TRUE(torch::equal(made->first_row, eager.module->first_row));
  EXPECT_TRUE(made->first_row.is_alias_of(made->a->weight));
  EXPECT_TRUE(made->head->weight.is_same(made->embedding->weight));
  EXPECT_TRUE(torch::equal(torch::rand({4}), eager.after)) << "the generator stands where it would have stood";
  made(torch::ones({2, 8})).sum().backward();
  EXPECT_TRUE(made->a->weight.grad().defined());
}

TEST(DeferredInit, AnyOrderOfMaterializingGivesTheSame) {
  Eager eager;
  for (const bool backwards : {false, true}) {
    torch::manual_seed(3);
    auto made = init_module([] { return Zoo(); }, {.deferred = true});
    auto parts = made->children();
    if (backwards) std::reverse(parts.begin(), parts.end());
    for (const auto& part : parts) materialize(*part);
    EXPECT_TRUE(is_deferred(*made));
    materialize(*made);
    expect_same(*made, *eager.module);
    EXPECT_TRUE(torch::equal(torch::rand({4}), eager.after));
  }
}

TEST(DeferredInit, ADisturbedGeneratorIsLeftAlone) {
  Eager eager;
  torch::manual_seed(3);
  auto made = init_module([] { return Zoo(); }, {.deferred = true});
  torch::manual_seed(11);
  const auto first = torch::rand({4});
  materialize(*made);
  expect_same(*made, *eager.module);
  const auto second = torch::rand({4});
  torch::manual_seed(11);
  EXPECT_TRUE(torch::equal(first, torch::rand({4})));
  EXPECT_TRUE(torch::equal(second, torch::rand({4})));
}

TEST(DeferredInit, UseBeforeMaterializeIsAnErrorNotACrash) {
  auto made = init_module([] { return nn::Linear(4, 4); }, {.deferred = true});
  try {
    made(torch::ones({2, 4}));
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("call levin::materialize(module) before it is used"));
  }
  materialize(*made);
  EXPECT_TRUE(made(torch::ones({2, 4})).isfinite().all().item<bool>());
}

TEST(DeferredInit, NothingIsAllocatedAndDroppingFreesAll) {
  // 2 TB of weights would be noticed.
  auto made = init_module([] { return nn::Linear(1 << 20, 1 << 19); }, {.deferred = true});
  EXPECT_EQ(made->weight.numel(), int64_t{1} << 39);
  made = nullptr;
}

TEST(DeferredInit, OutsideTensorsAreNotTouched) {
  auto outside = torch::ones({4});
  auto linear = tnn::Linear(4, 4);
  const auto before = linear->weight.clone();
  auto made = init_module(
      [&] {
        auto holder = nn::Linear(4, 4);
        outside.add_(1);                              // runs at once
        holder->register_buffer("outside", outside);  // joins the module as it is
        holder->register_module("linear", linear);
        torch::NoGradGuard no_grad;
        holder->bias.copy_(outside);  // needs data from outside: runs at once
        return holder;
      },
      {.dtype = at::kDouble, .deferred = true});
  EXPECT_TRUE(torch::equal(outside, torch::full({4}, 2.0)));
  EXPECT_EQ(outside.scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(linear->weight, before));
  EXPECT_TRUE(is_deferred(made->weight));
  EXPECT_FALSE(is_deferred(made->bias));
  materialize(*made);
  EXPECT_EQ(made->weight.scalar_type(), at::kDouble);
  EXPECT_TRUE(torch::equal(made->bias, torch::full({4}, 2.0, at::kDouble)));
  EXPECT_TRUE(torch::equal(linear->weight, before));
}

TEST(DeferredInit, RandomNumbersDrawnInBetweenAreTheEagerOnes) {
  const auto make = [] {
    auto first = tnn::Linear(4, 4);
    const auto drawn = torch::rand({1}).item<float>();  // a constructor that throws dice
    auto list = tnn::Sequential(first, tnn::Linear(4, drawn < 0.5 ? 3 : 5));
    list->register_buffer("drawn", torch::full({1}, drawn));
    return list;
  };
  for (const int seed : {1, 2, 3}) {
    torch::manual_seed(seed);
    auto eager = make();
    torch::manual_seed(seed);
    auto made = init_module(make, {.deferred = true});
    materialize(*made);
    expect_same(*made, *eager);
  }
}

TEST(InitModule, DtypeWhereItWasLeftOpen) {
  auto made = init_module([] { return Zoo(); }, {.dtype = at::kDouble});
  EXPECT_EQ(made->a->weight.scalar_type(), at::kDouble);
  EXPECT_EQ(made->norm->running_mean.scalar_type(), at::kDouble);
  EXPECT_EQ(made->scale.scalar_type(), at::kDouble);
  EXPECT_EQ(made->counts.scalar_type(), at::kLong);
  EXPECT_EQ(made->table.scalar_type(), at::kFloat) << "asked for by name";
  EXPECT_EQ(made->norm->num_batches_tracked.scalar_type(), at::kLong);
  EXPECT_EQ(init_module([] { return nn::Linear(2, 2); }, {.dtype = at::kBFloat16})->bias.scalar_type(), at::kBFloat16);
  EXPECT_EQ(torch::empty({1}).scalar_type(), at::kFloat) << "nothing outside the scope";
}

TEST(InitModule, DeviceWhereItWasLeftOpen) {
  auto made = init_module([] { return nn::Linear(4, 4); }, {.device = c10::Device("meta")});
  EXPECT_TRUE(made->weight.is_meta());
  EXPECT_TRUE(torch::empty({1}).is_cpu());
}

TEST(InitModule, EmptyAllocatesParametersAndInitializesBuffers) {
  auto made = init_module([] { return Zoo(); }, {.empty = true});
  EXPECT_FALSE(is_deferred(*made));
  EXPECT_TRUE(torch::equal(made->counts, torch::arange(8)));
  EXPECT_TRUE(torch::equal(made->norm->running_var, torch::ones({4})));
  EXPECT_TRUE(torch::equal(made->given, torch::tensor({1.5f, 2.5f})));
  torch::NoGradGuard no_grad;
  for (auto& parameter : made->parameters()) parameter.fill_(1);
  EXPECT_EQ(made->a->weight.sum().item<float>(), 128);
  EXPECT_EQ(made->first_row.sum().item<float>(), 8);
}

TEST(InitModule, ScopesNestAndEndWithAnException) {
  EXPECT_THROW(init_module([]() -> nn::Linear { throw std::runtime_error("no"); }, {.deferred = true}),
               std::runtime_error);
  EXPECT_FALSE(is_deferred(torch::empty({4})));
  auto outer = init_module(
      [] {
        auto inner = init_module([] { return nn::Linear(4, 4); }, {.dtype = at::kDouble});
        return tnn::Sequential(inner, nn::Linear(4, 4));
      },
      {.deferred = true});
  EXPECT_FALSE(is_deferred(outer->parameters()[0]));
  EXPECT_TRUE(is_deferred(outer->parameters()[2]));
  EXPECT_THROW(init_module([] { return nn::Linear(nullptr); }), Error);
  EXPECT_THROW(init_module([] { return nn::Linear(1, 1); }, {.empty = true, .deferred = true}), Error);
}

}  // namespace
}  // namespace levin
