// Training with models that several ranks have together, against one process on the whole batch.
#include "levin/strategies/tensor_parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "levin/devices/memory_counter.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/tensor/functions.h"
#include "levin/testing/error_of.h"
#include "levin/testing/forwarding_collective.h"
#include "levin/testing/temporary_folder.h"
#include "tests/strategies/parallel/parallel_training.h"

namespace levin::tensor_training_tests {
namespace {

using namespace levin::testing;

using ::testing::AllOf;
using ::testing::HasSubstr;

struct TrainingCase {
  std::string name;
  int ranks;
  TensorParallelOptions options;
  /// Folders of language models, or "vit".
  std::vector<std::string> models;
  int steps = 10;
};

class TensorTraining : public ::testing::TestWithParam<TrainingCase> {};

TEST_P(TensorTraining, EqualsOneProcess) {
  const auto& [case_name, ranks, options, names, steps] = GetParam();
  std::vector<Outcome> expected;
  for (const auto& name : names) expected.push_back(trained(*one_rank(), subject_of(name), "single_device", steps));
  run_ranks(ranks, [&, &given = options, count = steps, &all = names](Collective& group) {
    for (size_t i = 0; i < all.size(); ++i)
      expect_close(trained(group, subject_of(all[i]), given, count), expected[i], all[i]);
  });
}

// Three heads over two ranks (gpt2), two heads of keys over four (llama), norms of heads (qwen3), ALiBi (bloom).
INSTANTIATE_TEST_SUITE_P(
    Ranks, TensorTraining,
    ::testing::Values(
        TrainingCase{"tensor2", 2, {}, {"gpt2"}},
        TrainingCase{"tensor2_others", 2, {}, {"llama", "bloom", "bert_masked", "vit"}, all_meshes() ? 10 : 2},
        TrainingCase{"tensor4", 4, {}, {"llama", "vit"}, 2},
        TrainingCase{"data2_tensor2", 4, {.size = 2}, {"gpt2", "vit"}, 2},
        TrainingCase{"sequence4", 4, {.sequence_parallel = true}, {"qwen3"}, 2},
        TrainingCase{"data2_sequence2", 4, {.size = 2, .sequence_parallel = true}, {"gpt2", "bert_masked"}, 2}),
    [](const auto& each) { return each.param.name; });

/// Counts what is sent.
class Counting : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  void all_reduce(Tensor& tensor, ReduceOp op) override {
    ++reduced;
    bytes += 2 * static_cast<int64_t>(tensor.nbytes());  // of a ring, but for (n - 1) / n
    ForwardingCollective::all_reduce(tensor, op);
  }
  Tensor all_gather(const Tensor& tensor) override {
    ++gathered;
    bytes += static_cast<int64_t>(tensor.nbytes()) * size();
    return ForwardingCollective::all_gather(tensor);
  }
  Tensor reduce_scatter(const Tensor& input, ReduceOp op) override {
    ++scattered;
    bytes += static_cast<int64_t>(input.nbytes());
    return ForwardingCollective::reduce_scatter(input, op);
  }
  void clear() { reduced = gathered = scattered = bytes = 0; }
  int64_t reduced = 0, gathered = 0, scattered = 0, bytes = 0;
};

models::DecoderOptions small(int64_t layers) {
  return {.vocab_size = 64,
          .max_positions = 16,
          .num_layers = layers,
          .num_heads = 4,
          .hidden_dim = 32,
          .norm = "rms",
          .activation = "silu_gated",
          .positions = "rotary",
          .tied_head = false};
}

/// What two models send, where one has a block more than the other: {forward, backward}.
TEST(TensorParallel, ABlockSendsTwiceForwardAndTwiceBackward) {
  run_ranks(2, [&](Collective& group) {
    for (const bool sequence : {false, true}) {
      const auto sent = [&](int64_t layers) {
        const auto counting = std::make_shared<Counting>(group);
        torch::manual_seed(3);
        auto model = models::decoder(small(layers));
        split_tensors(*model, {.size = 2, .sequence_parallel = sequence}, counting);
        const auto loss = model(tokens_of(0), models::next_tokens(tokens_of(0)));
        const auto forward = *counting;
        counting->clear();
        loss.backward();
        return std::pair{forward, *counting};
      };
      const auto [forward_1, backward_1] = sent(1);
      const auto [forward_2, backward_2] = sent(2);
      const int64_t activation = 4 * 8 * 32 * 4;
      for (const auto& [more, less] : {std::pair{&forward_2, &forward_1}, std::pair{&backward_2, &backward_1}}) {
        EXPECT_EQ(more->reduced - less->reduced, sequence ? 0 : 2);
        EXPECT_EQ(more->gathered - less->gathered, sequence ? 2 : 0);
        EXPECT_EQ(more->scattered - less->scattered, sequence ? 2 : 0);
        EXPECT_EQ(more->bytes - less->bytes, 2 * 2 * activation) << "sequence " << sequence;
      }
    }
  });
}

TEST(TensorParallel, CheckpointedBlocksAndAccumulatedGradientsAreTheSame) {
  const auto alone = trained(*one_rank(), language("llama"), "single_device", 3);
  run_ranks(2, [&](Collective& group) {
    auto subject = language("llama");
    const auto checkpoints = attach_checkpointing(*subject.module, policy::by_class<models::DecoderBlock>());
    const auto got = trained(group, std::move(subject), TensorParallelOptions{.size = 2}, 3, {.accumulate = 2});
    expect_close(got.grads, alone.grads, "gradient");
    expect_close(got.params, alone.params, "parameter");
  });
}

/// Bytes of the parameters, and of what forward keeps for backward.
std::pair<int64_t, int64_t> held(Collective& group, const TensorParallelOptions& options) {
  MemoryCounter counter;
  auto sizes = small(4);
  sizes.vocab_size = 128;
  sizes.hidden_dim = 64;
  sizes.max_positions = 64;
  auto model = models::decoder(sizes);
  if (options.size > 1) split_tensors(*model, options, {&group, [](Collective*) {}});
  const auto parameters = counter.allocated();
  const auto ids = torch::randint(0, 128, {4, 64}, torch::kLong);
  const auto hidden = model->hidden_states(ids);
  return {parameters, counter.allocated() - parameters};
}

TEST(TensorParallel, MemoryIsDividedByTheRanks) {
  const auto [parameters, activations] = held(*one_rank(), {});
  run_ranks(4, [&, all = parameters, kept = activations](Collective& group) {
    const auto split = held(group, {.size = 4});
    const auto sequence = held(group, {.size = 4, .sequence_parallel = true});
    // Norms are whole on every rank.
    EXPECT_LT(split.first, all * 0.26);
    EXPECT_EQ(split.first, sequence.first);
    // Without it norms and residual sums are kept on every rank.
    EXPECT_LT(split.second, kept * 0.7);
    EXPECT_LT(sequence.second, kept * 0.45);
  });
}

TEST(TensorParallel, CheckpointsDoNotDependOnTheRanks) {
  const TemporaryFolder root;
  const auto expected = train_part(*one_rank(), "single_device", 0, 4, {}, {});
  run_ranks(4, [&](Collective& group) {
    return train_part(group, TensorParallelOptions{.size = 2}, 0, 2, {}, root / "by_2");
  });
  EXPECT_FALSE(checkpoint_info(root / "by_2").sharded);
  // One process and four ranks continue it; four have two heads of keys among them.
  expect_close(train_part(*one_rank(), "single_device", 2, 4, root / "by_2", {}), expected, "one process");
  run_ranks(4, [&](Collective& group) {
    expect_close(train_part(group, TensorParallelOptions{}, 2, 4, root / "by_2", root / "by_4"), expected, "4 ranks");
  });
  expect_close(train_part(*one_rank(), "single_device", 4, 4, root / "by_4", {}), expected, "saved by 4 ranks");
}

TEST(TensorParallel, FoldersAreWrittenFromRanks) {
  const TemporaryFolder root;
  const auto folders = std::filesystem::path(source_dir()) / "tests/models/fixtures/language";
  const std::vector<std::string> names{"gpt2", "llama", "bloom", "bert_masked"};
  run_ranks(3, [&](Collective& group) {
    for (const auto& name : names) {
      const auto model = models::open_model(folders / name, {.ranks = {&group, [](Collective*) {}}});
      models::save_model(model, root / name);
    }
  });
  for (const auto& name : names) {
    const auto before = models::open_model(folders / name), after = models::open_model(root / name);
    const auto wanted = before.module().parameters(), got = after.module().parameters();
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(got[i], wanted[i])) << name << " " << i;
  }
}

/// Keeps what a unit gave last.
struct Remember : Interceptor {
  void around(Call& call) override {
    call.proceed();
    call.each_output([&](Tensor& y) { last = y.detach().clone(); });
  }
  Tensor last;
};

TEST(TensorParallel, RandomNumbersAreSharedOutsideAndOwnInside) {
  const auto results = run_ranks(2, [&](Collective& group) {
    auto options = small(1);
    options.dropout = 0.5;
    options.attention_dropout = 0.5;
    torch::manual_seed(7 + group.rank());
    auto model = models::decoder(options);
    // Heads that are all alike: what differs between ranks is what they drew.
    const at::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(0.01);
    model->tokens->weight.copy_(torch::linspace(-1, 1, 64 * 32).view({64, 32}));
    Trainee trainee(group, TensorParallelOptions{}, *model);
    auto inside = std::make_shared<Remember>(), outside = std::make_shared<Remember>();
    model->blocks[0]->attention->out->attach(inside, Order::kInnermost).keep();
    model->blocks[0]->attach(outside, Order::kInnermost).keep();
    const auto ids = tokens_of(0);
    const auto logits = model(ids);
    const auto again = model(ids);
    EXPECT_FALSE(torch::equal(logits, again));
    return std::vector<Tensor>{inside->last, outside->last, again};
  });
  EXPECT_FALSE(torch::allclose(results[0].tensors[0], results[1].tensors[0]));
  EXPECT_TRUE(torch::equal(results[0].tensors[1], results[1].tensors[1]));
  EXPECT_TRUE(torch::equal(results[0].tensors[2], results[1].tensors[2]));
}

TEST(TensorParallel, AModelThatDoesNotFitIsRefusedByName) {
  run_ranks(2, [&](Collective& group) {
    const auto refused = [&](auto& model, const TensorParallelOptions& options) {
      return error_of([&] { Trainee(group, options, *model); });
    };
    SmallNet plain;
    EXPECT_THAT(refused(plain, {}), HasSubstr("no module of SmallNet says how it is split"));
    EXPECT_THAT(refused(plain, {.plan = {{"a", TensorRole::kColumn}}}), HasSubstr("\"a\" is a Linear"));
    auto model = models::decoder(small(1));
    EXPECT_THAT(refused(model, {.size = 3}),
                HasSubstr("dp_replicate -1 x tp 3 needs a multiple of 3 ranks, and there are 2"));
    EXPECT_THAT(refused(model, {.plan = {{"block.*", TensorRole::kRegion}}}), HasSubstr("no module has a name as"));
    const auto before = model->blocks[0]->mlp->up->weight.sizes().vec();
    EXPECT_THAT(refused(model, {.plan = {{"blocks.0.mlp.up", TensorRole::kColumn}, {"norm", TensorRole::kVocabHead}}}),
                HasSubstr("\"norm\" has no table"));
    EXPECT_EQ(model->blocks[0]->mlp->up->weight.sizes().vec(), before);
    auto split = models::decoder(small(1));
    const Trainee once(group, TensorParallelOptions{}, *split);
    EXPECT_THAT(refused(split, {}), HasSubstr("is split over ranks already"));
    auto odd = models::decoder(small(1));
    split_tensors(*odd, {.sequence_parallel = true}, {&group, [](Collective*) {}});
    const auto ids = tokens_of(0).slice(1, 0, 7);
    EXPECT_THAT(error_of([&] { odd(ids, models::next_tokens(ids)); }), HasSubstr("a sequence of 7 is not a multiple"));
  });
}

/// Queries, keys and values in layers of their own.
struct SeparateAttentionImpl : torch::nn::Module, TensorParallelPart {
  SeparateAttentionImpl() {
    q = register_module("q", nn::Linear(48, 48));
    kv = register_module("kv", nn::Linear(48, 24));
    out = register_module("out", nn::Linear(48, 48));
  }
  HeadCounts heads() const override { return {.heads = 4, .kv_heads = 2, .width = 12}; }
  Tensor forward(const Tensor& x) { return out(q(x)); }
  nn::Linear q{nullptr}, kv{nullptr}, out{nullptr};
};
LEVIN_MODULE(SeparateAttention);

TEST(TensorParallel, SeparateLayersOfHeadsThatDoNotDivideAreRefusedByName) {
  run_ranks(3, [&](Collective& group) {
    const auto refused = [&](const TensorPlan& plan) {
      SeparateAttention attention;
      return error_of([&] { split_tensors(*attention, {.plan = plan}, {&group, [](Collective*) {}}); });
    };
    EXPECT_THAT(refused({{"q", TensorRole::kColumn}, {"out", TensorRole::kHeadRow}}),
                HasSubstr("[tensor_parallel] \"q\" has the rows of 4 heads, which 3 ranks do not share evenly; put "
                          "queries, keys and values into one layer with the role kQkv"));
    EXPECT_THAT(refused({{"out", TensorRole::kRow}}), HasSubstr("\"out\" has the columns of 4 heads, which 3 ranks"));
  });
  run_ranks(2, [&](Collective& group) {
    SeparateAttention attention;
    split_tensors(*attention,
                  {.plan = {{"q", TensorRole::kColumn}, {"kv", TensorRole::kColumn}, {"out", TensorRole::kRow}}},
                  {&group, [](Collective*) {}});
    EXPECT_EQ(attention->q->weight.size(0), 24);
    EXPECT_EQ(attention->kv->weight.size(0), 12);
  });
}

}  // namespace
}  // namespace levin::tensor_training_tests
