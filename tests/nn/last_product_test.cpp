// The last product of a checkpointed unit is left out when the unit runs again: nobody needs its result.
#include <gtest/gtest.h>

#include "levin/kernels/linear/linear_detail.h"
#include "levin/models/decoder.h"
#include "levin/models/vit.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/checkpointing/returns_last_layer.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/saved_tensors.h"
#include "levin/nn/unit.h"
#include "levin/testing/operator_counts.h"
#include "levin/testing/plays_cuda.h"

namespace levin {
namespace {

using kernels::detail::fused_linear;
using testing::OperatorCounts;
using testing::PlaysCuda;

enum class Tail { kNone, kSum, kRead, kTanh };

/// Two layers of the kind that computes before it saves, as on CUDA.
struct TwoLayersImpl : torch::nn::Module {
  explicit TwoLayersImpl(Tail asked, int64_t n = 8) : tail(asked) {
    for (auto* weight : {&up, &down})
      *weight = register_parameter(weight == &up ? "up" : "down", 0.3 * torch::randn({n, n}));
    bias = register_parameter("bias", torch::randn({n}));
  }
  Tensor forward(const Tensor& x) {
    ++begun;
    const auto hidden = fused_linear(x, up, bias, up).tanh();
    const auto result = fused_linear(hidden, down, bias, down);
    ++ended;
    if (tail == Tail::kSum) return result + x;
    if (tail == Tail::kRead) read = result.detach();
    if (tail == Tail::kTanh) return result.tanh();
    return result;
  }

  Tail tail;
  Tensor up, down, bias, read;
  int begun = 0, ended = 0;
};
LEVIN_MODULE(TwoLayers);

struct ReturningImpl : TwoLayersImpl, nn::ReturnsLastLayer {
  using TwoLayersImpl::TwoLayersImpl;
};
LEVIN_MODULE(Returning);

struct Outcome {
  std::vector<Tensor> grads;
  int products = 0, begun = 0, ended = 0;
};

/// One step of three units; products are counted in backward.
template <class Block, class Prepare>
Outcome step(Tail tail, const Prepare& prepare) {
  torch::manual_seed(3);
  std::vector<Block> blocks;
  torch::nn::Sequential model;
  for (int i = 0; i < 3; ++i) model->push_back(blocks.emplace_back(Block(tail)));
  const auto attachments = prepare(model);
  auto x = torch::randn({4, 8}).requires_grad_();
  auto y = model->forward(x);
  Outcome outcome;
  {
    const OperatorCounts counted;
    y.square().sum().backward();
    outcome.products = counted["aten::linear"];
  }
  outcome.grads = {x.grad()};
  for (const auto& parameter : model->parameters()) outcome.grads.push_back(parameter.grad());
  for (auto& block : blocks) outcome.begun += block->begun, outcome.ended += block->ended;
  return outcome;
}

template <class Block>
auto checkpointed(const CheckpointOptions& options = {}) {
  return [options](auto& model) { return attach_checkpointing(*model, policy::by_class<Block>(), options); };
}
const auto kPlain = [](auto&) { return std::vector<Attachment>(); };

void expect_equal(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.grads.size(), b.grads.size());
  for (size_t i = 0; i < a.grads.size(); ++i) EXPECT_TRUE(torch::equal(a.grads[i], b.grads[i])) << i;
}

TEST(LastProduct, IsLeftOut) {
  for (const auto tail : {Tail::kNone, Tail::kSum, Tail::kRead}) {
    SCOPED_TRACE(static_cast<int>(tail));
    const auto plain = step<TwoLayers>(tail, kPlain);
    const auto kept = step<TwoLayers>(tail, checkpointed<TwoLayers>());
    expect_equal(plain, kept);
    EXPECT_EQ(plain.products, 0);
    EXPECT_EQ(kept.products, 3) << "the first product of each unit";
    EXPECT_EQ(kept.begun, 6);
    EXPECT_EQ(kept.ended, 3) << "the forward ends at the product";
  }
  const auto whole = step<TwoLayers>(Tail::kNone, checkpointed<TwoLayers>({.early_stop = false}));
  EXPECT_EQ(whole.products, 6);
  EXPECT_EQ(whole.ended, 6);
}

TEST(LastProduct, IsLeftOutWithoutAnExceptionWhereTheUnitReturnsIt) {
  const auto plain = step<Returning>(Tail::kNone, kPlain);
  const auto kept = step<Returning>(Tail::kNone, checkpointed<Returning>());
  expect_equal(plain, kept);
  EXPECT_EQ(kept.products, 3);
  EXPECT_EQ(kept.ended, 6) << "the forward continues";
  // Something follows that autograd knows of.
  const auto summed = step<Returning>(Tail::kSum, checkpointed<Returning>());
  expect_equal(step<Returning>(Tail::kSum, kPlain), summed);
  EXPECT_EQ(summed.products, 3);
  EXPECT_EQ(summed.ended, 3);
  // What the last operation saves is its result.
  const auto bounded = step<Returning>(Tail::kTanh, checkpointed<Returning>());
  expect_equal(step<Returning>(Tail::kTanh, kPlain), bounded);
  EXPECT_EQ(bounded.products, 6);
}

/// Reads every result that it sees.
struct Reader : Interceptor {
  void around(Call& call) override {
    call.proceed();
    call.each_output([&](Tensor& output) { results.push_back(output.detach()); });
  }
  std::vector<Tensor> results;
};

TEST(LastProduct, IsNeverSeenWithoutValues) {
  const auto reader = std::make_shared<Reader>();
  const auto kept = step<Returning>(Tail::kNone, [&](auto& model) {
    auto attachments = attach_checkpointing(*model, policy::by_class<Returning>());
    for (const auto& child : model->children())
      attachments.push_back(dynamic_cast<Unit&>(*child).attach(reader, Order::kInnermost));
    return attachments;
  });
  expect_equal(step<Returning>(Tail::kNone, kPlain), kept);
  EXPECT_EQ(kept.products, 3);
  EXPECT_EQ(kept.ended, 3) << "running again ends by an exception";
  EXPECT_EQ(reader->results.size(), 3u);
}

TEST(LastProduct, IsThereForAForwardWithoutGradientsAndForWhatIsNotCheckpointed) {
  torch::manual_seed(3);
  Returning block(Tail::kNone);
  const auto x = torch::randn({4, 8});
  const auto expected = block(x);
  torch::nn::Sequential model(block);
  const auto attachments = attach_checkpointing(*model, policy::all_units());
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(block(x), expected));
  }
  auto first = block(x), second = block(x);
  first.sum().backward();
  second.sum().backward();
  EXPECT_TRUE(torch::equal(block(x), expected));
}

TEST(LastProduct, RetainedGraphsAndGradientsOfGradients) {
  const auto run = [](bool kept) {
    torch::manual_seed(3);
    Returning block(Tail::kNone);
    torch::nn::Sequential model(block);
    std::vector<Attachment> attachments;
    if (kept) attachments = attach_checkpointing(*model, policy::all_units());
    auto x = torch::randn({4, 8}).requires_grad_();
    const auto loss = block(x).square().sum();
    const auto grad = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
    (loss + grad.square().sum()).backward({}, true);
    loss.backward();
    return std::vector<Tensor>{x.grad(), block->up.grad(), block->down.grad(), block->bias.grad()};
  };
  const auto plain = run(false), kept = run(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::allclose(plain[i], kept[i], 1e-5, 1e-6)) << i;
}

struct OuterImpl : torch::nn::Module {
  explicit OuterImpl(torch::nn::Sequential layers) : inner(register_module("inner", std::move(layers))) {}
  Tensor forward(const Tensor& x) { return inner->forward(x); }
  torch::nn::Sequential inner;
};
LEVIN_MODULE(Outer);

TEST(LastProduct, UnitsInsideOfUnits) {
  const auto run = [](bool kept) {
    torch::manual_seed(3);
    torch::nn::Sequential inner{Returning(Tail::kNone), Returning(Tail::kNone)};
    Outer outer(inner);
    std::vector<Attachment> attachments;
    if (kept) attachments = attach_checkpointing(*outer, policy::all_units());
    auto x = torch::randn({4, 8}).requires_grad_();
    outer(x).square().sum().backward();
    std::vector<Tensor> grads{x.grad()};
    for (const auto& parameter : outer->parameters()) grads.push_back(parameter.grad());
    return grads;
  };
  const auto plain = run(false), kept = run(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], kept[i])) << i;
}

/// Products of a backward on the GPU that meta tensors stand for.
template <class Net, class Forward>
int products_of_backward(Net& net, const Forward& forward) {
  const auto loss = forward(net).sum();
  const OperatorCounts counted;
  loss.backward();
  return counted["levin::matmul"] + counted["levin::matmul_and_sums"];
}

const auto kBfloatOnMeta = at::TensorOptions(at::kMeta).dtype(at::kBFloat16);
const auto kOnMeta = [] { return InitOptions{.device = c10::Device(c10::kMeta), .dtype = at::kBFloat16}; };

TEST(LastProduct, OfBlocksOfVisionTransformersOnCuda) {
  const PlaysCuda plays;
  const auto count = [&](bool kept) {
    auto vit = init_module(
        [] { return models::vit({.num_layers = 4, .num_heads = 2, .hidden_dim = 128, .mlp_dim = 256}); }, kOnMeta());
    if (kept) checkpoint_activations(vit, policy::by_class<models::EncoderBlock>());
    const auto tokens = at::empty({2, 197, 128}, kBfloatOnMeta);
    return products_of_backward(vit, [&](auto& net) { return net->encoder(tokens); });
  };
  EXPECT_EQ(count(true) - count(false), 4 * 3) << "of the four products of a block the last is not computed again";
}

TEST(LastProduct, OfBlocksOfDecodersOnCuda) {
  const PlaysCuda plays;
  const auto count = [&](bool kept) {
    auto decoder = init_module(
        [] {
          return models::decoder({.vocab_size = 100,
                                  .max_positions = 256,
                                  .num_layers = 3,
                                  .num_heads = 2,
                                  .hidden_dim = 128,
                                  .norm = "rms",
                                  .activation = "silu_gated",
                                  .positions = "none"});
        },
        kOnMeta());
    if (kept) checkpoint_activations(decoder, policy::by_class<models::DecoderBlock>());
    return products_of_backward(decoder, [&](auto& net) {
      nn::OpenStream stream{at::empty({2, 256, 128}, kBfloatOnMeta), {}};
      for (const auto& block : net->blocks)
        stream = nn::open_block<&models::DecoderBlockImpl::open>(block, std::move(stream), Tensor(), Tensor(), false);
      return stream.closed();
    });
  };
  EXPECT_EQ(count(true) - count(false), 3 * 4) << "of the five products of a block the last is not computed again";
}

}  // namespace
}  // namespace levin
