#include "levin/nn/checkpointing/checkpointing.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "levin/core/error.h"
#include "levin/nn/checkpointing/activation_offload.h"
#include "levin/nn/checkpointing/after_recompute.h"
#include "levin/nn/layers.h"
#include "levin/nn/saved_tensors.h"
#include "levin/nn/unit.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

namespace tnn = torch::nn;
using testing::error_of;
using ::testing::HasSubstr;

struct MlpImpl : tnn::Module {
  explicit MlpImpl(int64_t n) {
    norm = register_module("norm", nn::LayerNorm(tnn::LayerNormOptions({n})));
    up = register_module("up", nn::Linear(n, 4 * n));
    down = register_module("down", nn::Linear(4 * n, n));
    dropout = register_module("dropout", nn::Dropout(0.5));
  }
  Tensor forward(const Tensor& x) {
    ++runs;
    return x + dropout(down(at::gelu(up(norm(x)))));
  }
  nn::LayerNorm norm = nullptr;
  nn::Linear up = nullptr, down = nullptr;
  nn::Dropout dropout = nullptr;
  int runs = 0;
};
LEVIN_MODULE(Mlp);

struct TowerImpl : tnn::Module {
  TowerImpl(int64_t n, int64_t depth) {
    for (int64_t i = 0; i < depth; ++i) blocks.push_back(register_module("b" + std::to_string(i), Mlp(n)));
  }
  Tensor forward(Tensor x) {
    ++runs;
    for (auto& block : blocks) x = block(x);
    return x.tanh();
  }
  std::vector<Mlp> blocks;
  int runs = 0;
};
LEVIN_MODULE(Tower);

struct ModelImpl : tnn::Module {
  explicit ModelImpl(int64_t n = 16, int64_t towers = 2, int64_t depth = 2) {
    for (int64_t i = 0; i < towers; ++i) parts.push_back(register_module("t" + std::to_string(i), Tower(n, depth)));
    head = register_module("head", nn::Linear(n, 3));
  }
  Tensor forward(Tensor x) {
    for (auto& part : parts) x = part(x);
    return head(x);
  }
  int runs() const {
    int sum = 0;
    for (const auto& part : parts)
      for (const auto& block : part->blocks) sum += block->runs;
    return sum;
  }
  std::vector<Tower> parts;
  nn::Linear head = nullptr;
};
LEVIN_MODULE(Model);

template <class M>
struct Result {
  M model;
  std::vector<Tensor> grads;
  Tensor loss, rng;
};

Tensor rng_state() {
  return at::detail::getDefaultCPUGenerator().get_state();
}

/// One step from a fixed seed: `prepare(model)` sets it up, `step(model, x)` gives the loss.
template <class M, class Prepare, class Step>
Result<M> train(M model, const Prepare& prepare, const Step& step) {
  prepare(model);
  torch::manual_seed(7);
  auto x = torch::randn({8, 16}).requires_grad_();
  Result<M> result{model, {}, step(model, x), {}};
  result.loss.backward();
  result.rng = rng_state();
  result.grads = {x.grad()};
  for (const auto& parameter : model->parameters()) result.grads.push_back(parameter.grad());
  return result;
}

template <class M>
void expect_equal(const Result<M>& a, const Result<M>& b) {
  EXPECT_TRUE(torch::equal(a.loss, b.loss));
  EXPECT_TRUE(torch::equal(a.rng, b.rng));
  ASSERT_EQ(a.grads.size(), b.grads.size());
  for (size_t i = 0; i < a.grads.size(); ++i) {
    ASSERT_EQ(a.grads[i].defined(), b.grads[i].defined()) << i;
    EXPECT_TRUE(!a.grads[i].defined() || torch::equal(a.grads[i], b.grads[i])) << i;
  }
}

Model make_model() {
  torch::manual_seed(1);
  return Model();
}

const auto kNothing = [](auto&) {};
const auto kPlainStep = [](auto& model, const Tensor& x) { return model(x).pow(2).sum(); };

TEST(CheckpointingTest, GivesTheSameGradientsAndRandomNumbers) {
  const auto plain = train(make_model(), kNothing, kPlainStep);
  for (const bool early : {true, false}) {
    const auto kept = train(
        make_model(), [&](auto& m) { checkpoint_activations(m, policy::by_class<Mlp>(), {.early_stop = early}); },
        kPlainStep);
    expect_equal(plain, kept);
    EXPECT_EQ(kept.model->runs(), 2 * plain.model->runs()) << "each block runs again, once";
  }
}

TEST(CheckpointingTest, WithoutTheStateOfTheGeneratorDropoutDiffers) {
  const auto plain = train(make_model(), kNothing, kPlainStep);
  const auto kept = train(
      make_model(), [](auto& m) { checkpoint_activations(m, policy::by_class<Mlp>(), {.preserve_rng_state = false}); },
      kPlainStep);
  EXPECT_TRUE(torch::equal(plain.loss, kept.loss));
  EXPECT_FALSE(torch::equal(plain.grads[0], kept.grads[0]));
}

TEST(CheckpointingTest, NestedUnitsAreRecomputedOneByOne) {
  const auto plain = train(make_model(), kNothing, kPlainStep);
  const auto nested = train(
      make_model(), [](auto& m) { checkpoint_activations(m, policy::by_class<Tower, Mlp>()); }, kPlainStep);
  expect_equal(plain, nested);
  EXPECT_EQ(nested.model->parts[0]->runs, 2);
  EXPECT_EQ(nested.model->parts[0]->blocks[0]->runs, 3);
  // With another list of options at each level, and every layer on its own too.
  const auto layered = train(
      make_model(),
      [](auto& m) {
        checkpoint_activations(m, policy::by_class<Tower>(), {.early_stop = false});
        checkpoint_activations(m, policy::by_class<Mlp>(), {.determinism_check = false});
        checkpoint_activations(m, policy::by_class<nn::Linear, nn::Dropout>());
      },
      kPlainStep);
  expect_equal(plain, layered);
}

class AutocastOn {
 public:
  AutocastOn() {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~AutocastOn() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
};

/// Sharding frees what the units behind no longer need when a unit has its activations again.
TEST(CheckpointingTest, TellsThatAUnitHasItsActivationsAgain) {
  for (const bool early_stop : {false, true}) {
    SCOPED_TRACE(early_stop);
    Model model;
    std::vector<int> order;
    std::vector<Attachment> attached =
        attach_checkpointing(*model, policy::by_class<Mlp>(), {.early_stop = early_stop});
    int number = 0;
    for (auto& part : model->parts)
      for (auto& block : part->blocks)
        attached.push_back(
            block->attach(std::make_shared<detail::AfterRecompute>([&order, i = number++] { order.push_back(i); }),
                          Order::kRecompute));
    const auto loss = model(torch::ones({2, 16})).sum();
    EXPECT_TRUE(order.empty());
    loss.backward();
    EXPECT_EQ(order, (std::vector<int>{3, 2, 1, 0}));
  }
}

TEST(CheckpointingTest, AutocastIsThatOfTheForward) {
  const auto outside = [](auto& model, const Tensor& x) {
    Tensor y;
    {
      const AutocastOn autocast;
      y = model(x);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    }
    return y.to(at::kFloat).pow(2).sum();
  };
  const auto prepare = [](auto& m) { checkpoint_activations(m, policy::by_class<Tower, Mlp>()); };
  expect_equal(train(make_model(), kNothing, outside), train(make_model(), prepare, outside));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  // Backward inside of autocast, forward without.
  const auto backward_inside = [&](bool kept) {
    auto model = make_model();
    if (kept) prepare(model);
    torch::manual_seed(7);
    auto x = torch::randn({8, 16}).requires_grad_();
    auto loss = kPlainStep(model, x);
    const AutocastOn autocast;
    loss.backward();
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    return x.grad();
  };
  EXPECT_TRUE(torch::equal(backward_inside(true), backward_inside(false)));
}

struct FactoryImpl : tnn::Module {
  Tensor forward(const Tensor& x) { return (x * torch::full({1}, 1.5)).exp(); }
};
LEVIN_MODULE(Factory);

TEST(CheckpointingTest, TheDefaultDtypeIsThatOfTheForward) {
  tnn::Sequential model(Factory{});
  checkpoint_activations(model, policy::by_class<Factory>());
  auto x = torch::ones({2}, at::kFloat).requires_grad_();
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  auto y = model->forward(x);
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  EXPECT_EQ(y.scalar_type(), at::kDouble);
  y.sum().backward();
  EXPECT_EQ(torch::get_default_dtype(), caffe2::TypeMeta::Make<float>());
  EXPECT_FLOAT_EQ(x.grad()[0].item<float>(), static_cast<float>(1.5 * std::exp(1.5)));
}

// ---- shapes of forward

struct Out {
  Tensor y;
  std::optional<Tensor> aux;
  std::vector<Tensor> more;
};
struct RichImpl : tnn::Module {
  explicit RichImpl(int64_t n) { fc = register_module("fc", nn::Linear(n, n)); }
  Out forward(const Tensor& x, const std::optional<Tensor>& mask = {}, int64_t scale = 3) {
    same = x.is_same(mask.value_or(Tensor()));
    auto h = at::dropout(at::gelu(fc(x)), 0.5, is_training());
    if (mask) h = h * *mask;
    return {x + h, h.sum(), {h * scale, h.sigmoid()}};
  }
  nn::Linear fc = nullptr;
  bool same = false;
};
LEVIN_MODULE(Rich);
struct RichModelImpl : tnn::Module {
  RichModelImpl() { rich = register_module("rich", Rich(16)); }
  Tensor forward(const Tensor& x) {
    auto a = rich(x * 2);
    auto b = rich(a.y, torch::linspace(0, 1, 16), 5);  // the same unit twice
    auto c = rich(b.y, b.y);                           // one tensor as two arguments
    EXPECT_TRUE(rich->same);
    return c.y.sum() + *c.aux + b.more[0].pow(2).sum() + c.more[1].sin().sum() + *a.aux;
  }
  Rich rich = nullptr;
};
LEVIN_MODULE(RichModel);

RichModel make_rich() {
  torch::manual_seed(3);
  return RichModel();
}
const auto kSum = [](auto& model, const Tensor& x) { return model(x).sum(); };

TEST(CheckpointingTest, StructsMasksAndUnitsCalledSeveralTimes) {
  expect_equal(train(make_rich(), kNothing, kSum),
               train(
                   make_rich(), [](auto& m) { checkpoint_activations(m, policy::by_class<Rich>()); }, kSum));
}

TEST(CheckpointingTest, RetainedGraphsRunAgain) {
  const auto twice = [](auto& model, const Tensor& x) {
    auto loss = model(x).pow(2).sum();
    loss.backward({}, true);
    return loss;
  };
  const auto plain = train(make_model(), kNothing, twice);
  const auto kept = train(
      make_model(), [](auto& m) { checkpoint_activations(m, policy::by_class<Tower, Mlp>()); }, twice);
  expect_equal(plain, kept);
  EXPECT_EQ(kept.model->parts[0]->runs, 3) << "forward and two backwards";
}

TEST(CheckpointingTest, GradientsOfGradients) {
  const auto penalty = [](auto& model, const Tensor& x) {
    auto y = model(x).pow(2).sum();
    auto grads = torch::autograd::grad({y}, {x}, {}, true, true);
    return y + grads[0].pow(2).sum();
  };
  expect_equal(train(make_model(), kNothing, penalty),
               train(
                   make_model(), [](auto& m) { checkpoint_activations(m, policy::by_class<Mlp>()); }, penalty));
}

struct PenaltyImpl : tnn::Module {
  explicit PenaltyImpl(int64_t n) { fc = register_module("fc", nn::Linear(n, n)); }
  Tensor forward(const Tensor& x) {
    auto y = at::dropout(fc(x).tanh(), 0.5, true);
    auto grads = torch::autograd::grad({y.sum()}, {fc->weight}, {}, true, true);
    return y.exp() + grads[0].pow(2).sum();
  }
  nn::Linear fc = nullptr;
};
LEVIN_MODULE(Penalty);

TEST(CheckpointingTest, AForwardThatRunsABackward) {
  const auto make = [] {
    torch::manual_seed(5);
    return tnn::Sequential(Penalty(16), Penalty(16));
  };
  const auto step = [](tnn::Sequential& model, const Tensor& x) { return model->forward(x).sum(); };
  for (const bool early : {true, false})
    expect_equal(
        train(make(), kNothing, step),
        train(
            make(), [&](auto& m) { checkpoint_activations(m, policy::by_class<Penalty>(), {.early_stop = early}); },
            step));
}

TEST(CheckpointingTest, WithoutGradientsNothingHappens) {
  auto model = make_model();
  checkpoint_activations(model, policy::by_class<Mlp>());
  const c10::AutoGradMode no_grad(false);
  SavedBytes saved;
  (void)model(torch::randn({8, 16}));
  EXPECT_EQ(saved.storages(), 0);
  EXPECT_EQ(model->runs(), 4);
}

TEST(CheckpointingTest, LastsAsLongAsTheAttachment) {
  auto model = make_model();
  {
    auto attachments = attach_checkpointing(*model, policy::by_class<Mlp>());
    EXPECT_EQ(attachments.size(), 4u);
    EXPECT_EQ(model->parts[0]->blocks[0]->num_interceptors(), 1u);
  }
  EXPECT_EQ(model->parts[0]->blocks[0]->num_interceptors(), 0u);
  checkpoint_activations(*model, policy::by_class<Mlp>());
  EXPECT_EQ(model->parts[0]->blocks[0]->num_interceptors(), 1u);
  EXPECT_THROW(checkpoint_activations(model, policy::by_class<Rich>()), Error);
}

// ---- memory

TEST(CheckpointingTest, KeepsTheInputsAlone) {
  torch::manual_seed(1);
  auto model = Model(16, 1, 4);
  const auto x = torch::randn({8, 16});
  const int64_t row = 8 * 16 * 4;  // bytes of x
  {
    SavedBytes saved(*model);
    auto y = model->parts[0](x);
    // A block saves: its input, statistics of the norm [8, 1] twice, the norm's result, 4x up and 4x gelu, the mask of
    // dropout and what it divides by; the tower its result.
    EXPECT_GT(saved.bytes(), 4 * (1 + 1 + 4 + 4) * row);
  }
  checkpoint_activations(model, policy::by_class<Mlp>());
  {
    SavedBytes saved(*model);
    auto y = model->parts[0](x);
    EXPECT_EQ(saved.bytes(), 4 * row + row);  // the inputs of four blocks, and the result of tanh
  }
  checkpoint_activations(model, policy::by_class<Tower>());
  SavedBytes saved(*model);
  auto y = model->parts[0](x);
  EXPECT_EQ(saved.bytes(), row);
}

/// Storages of activations that are alive, seen at the end of the block's parts.
struct WatchedImpl : tnn::Module {
  Tensor forward(const Tensor& x) {
    auto a = x.exp(), b = a.sin(), c = b.tanh();
    for (const auto& each : {a, b, c}) made.push_back(each.storage().getWeakStorageImpl());
    return c * 2;
  }
  int alive() const {
    int count = 0;
    for (const auto& each : made) count += !each.expired();
    return count;
  }
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
};
LEVIN_MODULE(Watched);

TEST(CheckpointingTest, RecomputedTensorsGoAsTheyAreConsumed) {
  Watched first, second;
  tnn::Sequential model(first, second);
  checkpoint_activations(model, policy::by_class<Watched>(), {.early_stop = false});
  auto x = torch::ones({4}).requires_grad_();
  auto y = model->forward(x);
  EXPECT_EQ(first->alive(), 0);
  EXPECT_EQ(second->alive(), 0);
  y.register_hook([&](Tensor) { EXPECT_EQ(second->alive(), 0); });
  y.sum().backward({}, true);
  EXPECT_EQ(first->alive(), 0) << "also when the graph stays";
  EXPECT_EQ(second->alive(), 0);
  y.sum().backward();
  y.reset();
  EXPECT_EQ(first->made.size(), 9u);
  EXPECT_FLOAT_EQ(x.grad().sum().item<float>(), 2 * x.grad()[0].item<float>() * 2);
}

TEST(CheckpointingTest, ParametersAndTheirViewsAreHeldAsTheyAre) {
  torch::manual_seed(1);
  tnn::Sequential model(Mlp(16));
  checkpoint_activations(model, policy::by_class<Mlp>());
  auto y = model->forward(torch::randn({8, 16}));
  // What sharding does between forward and backward: the memory goes and comes back, the tensors stay.
  auto expected = std::vector<Tensor>();
  for (const auto& parameter : model->parameters()) {
    expected.push_back(parameter.detach().clone());
    at::AutoDispatchBelowADInplaceOrView raw;
    const_cast<Tensor&>(parameter).zero_();
  }
  const auto parameters = model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::AutoDispatchBelowADInplaceOrView raw;
    parameters[i].copy_(expected[i]);
  }
  y.sum().backward();
  EXPECT_TRUE(parameters[0].grad().defined());
  {
    SavedBytes all;
    auto again = model->forward(torch::randn({8, 16}));
    all.ignore(*model);
    EXPECT_EQ(all.bytes(), 8 * 16 * 4) << "nothing of a parameter but itself";
  }
}

TEST(CheckpointingTest, RunningStatisticsChangeOnce) {
  const auto make = [] {
    torch::manual_seed(5);
    return tnn::Sequential(nn::Linear(16, 16), nn::BatchNorm1d(16), nn::Linear(16, 16));
  };
  auto plain = make(), kept = make();
  checkpoint_activations(kept, policy::all_units());
  const auto x = torch::randn({8, 16});
  for (int i = 0; i < 2; ++i)
    for (auto* model : {&plain, &kept}) (*model)->forward(x).pow(2).sum().backward();
  const auto a = plain->buffers(), b = kept->buffers();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
  for (size_t i = 0; i < plain->parameters().size(); ++i)
    EXPECT_TRUE(torch::equal(plain->parameters()[i].grad(), kept->parameters()[i].grad())) << i;
}

// ---- selective

constexpr auto kCountKey = c10::DispatchKey::CustomRNGKeyId;
thread_local std::map<std::string, int>* executed = nullptr;

void count_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (executed) ++(*executed)[op.schema().name()];
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCountKey), stack);
}

/// Counts the kernels that really run, by a key below all others.
class CountExecuted {
 public:
  CountExecuted() : include_(kCountKey) {
    static const auto library = [] {
      torch::Library made(torch::Library::IMPL, "_", kCountKey, __FILE__, __LINE__);
      made.fallback(torch::CppFunction::makeFallthrough());
      return made;
    }();
    static const auto operators = [] {
      torch::Library made(torch::Library::IMPL, "aten", kCountKey, __FILE__, __LINE__);
      for (const auto* name : {"addmm", "gelu"})
        made.impl(name, torch::CppFunction::makeFromBoxedFunction<&count_operator>());
      return made;
    }();
    executed = &counts;
  }
  ~CountExecuted() { executed = nullptr; }
  std::map<std::string, int> counts;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

TEST(SelectiveCheckpointingTest, KeptResultsAreNotComputedAgain) {
  const CountExecuted elsewhere;  // the key that counts is set for both
  const auto plain = train(make_model(), kNothing, kPlainStep);
  const auto count = [&](const CheckpointOptions& options) {
    CountExecuted counter;
    const auto kept = train(
        make_model(), [&](auto& m) { checkpoint_activations(m, policy::by_class<Mlp>(), options); }, kPlainStep);
    expect_equal(plain, kept);
    return counter.counts;
  };
  auto all = count({.early_stop = false});
  auto some = count({.early_stop = false, .keep_results_of = CheckpointOptions::matrix_products()});
  EXPECT_EQ(all["aten::addmm"], 9 + 8);
  EXPECT_EQ(some["aten::addmm"], 9);
  EXPECT_EQ(some["aten::gelu"], all["aten::gelu"]);
  EXPECT_EQ(all["aten::gelu"], 8);
  auto early = count({.early_stop = true});
  EXPECT_EQ(early["aten::addmm"], 9 + 8);
}

TEST(SelectiveCheckpointingTest, RandomResultsLeaveTheGeneratorWhereItWas) {
  const auto plain = train(make_model(), kNothing, kPlainStep);
  for (const auto& options :
       {CheckpointOptions{.keep_results_of = {"aten::native_dropout", "aten::bernoulli", "aten::mm", "aten::addmm"}},
        CheckpointOptions{.keep_results_of = {"aten::gelu", "aten::native_layer_norm"}}}) {
    expect_equal(plain,
                 train(
                     make_model(), [&](auto& m) { checkpoint_activations(m, policy::by_class<Tower, Mlp>(), options); },
                     kPlainStep));
  }
}

struct InPlaceImpl : tnn::Module {
  explicit InPlaceImpl(int64_t n) { fc = register_module("fc", nn::Linear(n, n)); }
  Tensor forward(const Tensor& x) { return fc(x).add_(1).exp(); }
  nn::Linear fc = nullptr;
};
LEVIN_MODULE(InPlace);

TEST(SelectiveCheckpointingTest, ResultsThatChangeInPlaceAreComputedAgain) {
  const auto make = [] {
    torch::manual_seed(5);
    return tnn::Sequential(InPlace(16), nn::Linear(16, 16), InPlace(16));
  };
  const auto step = [](tnn::Sequential& model, const Tensor& x) { return (model->forward(x) * 1e-3).sum(); };
  expect_equal(train(make(), kNothing, step), train(
                                                  make(),
                                                  [](auto& m) {
                                                    checkpoint_activations(
                                                        m, policy::by_class<InPlace>(),
                                                        {.keep_results_of = CheckpointOptions::matrix_products()});
                                                  },
                                                  step));
}

TEST(SelectiveCheckpointingTest, RefusesOperatorsThatCannotBeKept) {
  auto model = make_model();
  const auto refuse = [&](const std::string& name) {
    return error_of([&] { checkpoint_activations(model, policy::by_class<Mlp>(), {.keep_results_of = {name}}); });
  };
  EXPECT_THAT(refuse("aten::admm"), HasSubstr("did you mean \"aten::addmm\"?"));
  EXPECT_THAT(refuse("aten::linear"), HasSubstr("made of other operators"));
  EXPECT_THAT(refuse("aten::transpose"), HasSubstr("returns no tensors of its own"));
}

// ---- host memory

TEST(ActivationOffloadTest, InputsOfCheckpointedUnitsWaitOnTheHost) {
  const auto plain = train(make_model(), kNothing, kPlainStep);
  for (const auto& options : {CheckpointOptions{.cpu_offload = true, .offload = {.min_bytes = 0}},
                              CheckpointOptions{.cpu_offload = true,
                              .offload = {.min_bytes = 0},
                              .early_stop = false,
                              .keep_results_of = CheckpointOptions::matrix_products()}}) {
    expect_equal(plain,
                 train(
                     make_model(), [&](auto& m) { checkpoint_activations(m, policy::by_class<Tower, Mlp>(), options); },
                     kPlainStep));
    expect_equal(plain, train(
                            make_model(), [&](auto& m) { checkpoint_activations(m, policy::by_class<Mlp>(), options); },
                            kPlainStep));
  }
  const CheckpointOptions options{.cpu_offload = true, .offload = {.min_bytes = 0}};
  expect_equal(train(make_rich(), kNothing, kSum),
               train(
                   make_rich(), [&](auto& m) { checkpoint_activations(m, policy::by_class<Rich>(), options); }, kSum));
}

TEST(ActivationOffloadTest, TheDeviceLetsGoOfOffloadedInputs) {
  Watched first, second;
  tnn::Sequential model(first, second);
  checkpoint_activations(model, policy::by_class<Watched>(), {.cpu_offload = true, .offload = {.min_bytes = 0}});
  auto x = torch::ones({4}).requires_grad_();
  c10::weak_intrusive_ptr<c10::StorageImpl> between{c10::intrusive_ptr<c10::StorageImpl>()};
  const Attachment watch = second->attach(
      [&] {
        struct Seen : Interceptor {
          c10::weak_intrusive_ptr<c10::StorageImpl>* target = nullptr;
          void around(Call& call) override {
            call.each_input([&](Tensor& t) { *target = t.storage().getWeakStorageImpl(); });
            call.proceed();
          }
        };
        auto seen = std::make_shared<Seen>();
        seen->target = &between;
        return seen;
      }(),
      Order::kProfiler);
  auto y = model->forward(x);
  EXPECT_TRUE(between.expired());
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(ActivationOffloadTest, SavedTensorsGoToTheHostAndComeBack) {
  const auto twice = [](auto& model, const Tensor& x) {
    auto loss = model(x).pow(2).sum();
    loss.backward({}, true);
    return loss;
  };
  const auto plain = train(make_model(), kNothing, twice);
  for (const int64_t min_bytes : {0, 600, 1 << 20})
    expect_equal(plain, train(
                            make_model(),
                            [&](auto& m) {
                              offload_activations(m, policy::by_class<Tower, Mlp>(),
                                                  {.min_bytes = min_bytes, .max_in_flight = 1});
                            },
                            twice));
  expect_equal(
      train(make_rich(), kNothing, kSum),
      train(
          make_rich(), [](auto& m) { offload_activations(m, policy::by_class<Rich>(), {.min_bytes = 0}); }, kSum));
  // Together: what is checkpointed is not moved.
  expect_equal(plain, train(
                          make_model(),
                          [](auto& m) {
                            offload_activations(m, policy::by_class<Tower>(), {.min_bytes = 0});
                            checkpoint_activations(m, policy::by_class<Mlp>());
                          },
                          twice));
}

struct ViewsImpl : tnn::Module {
  explicit ViewsImpl(int64_t n) { fc = register_module("fc", nn::Linear(n, 3 * n)); }
  Tensor forward(const Tensor& x) {
    auto parts = fc(x).chunk(3, 1);  // three views of one storage, with gaps
    made = parts[0].storage().getWeakStorageImpl();
    return (parts[0] * parts[1]).t().expand({2, -1, -1}).mul(parts[2].t()).sum() + parts[0].select(0, 0).exp().sum();
  }
  nn::Linear fc = nullptr;
  c10::weak_intrusive_ptr<c10::StorageImpl> made{c10::intrusive_ptr<c10::StorageImpl>()};
};
LEVIN_MODULE(Views);

TEST(ActivationOffloadTest, ViewsShareOneCopyAndKeepTheirStrides) {
  const auto make = [] {
    torch::manual_seed(5);
    return tnn::Sequential(Views(16));
  };
  const auto step = [](tnn::Sequential& model, const Tensor& x) { return model->forward(x); };
  expect_equal(train(make(), kNothing, step),
               train(
                   make(), [](auto& m) { offload_activations(m, policy::by_class<Views>(), {.min_bytes = 1}); }, step));
  auto model = make();
  offload_activations(model, policy::by_class<Views>(), {.min_bytes = 64});
  SavedBytes saved(*model);
  auto y = model->forward(torch::randn({8, 16}).requires_grad_() * 1);
  EXPECT_TRUE(model->ptr<Hooked<ViewsImpl>>(0)->made.expired());
  // The input, the three parts as one, their product, and the exp of a row.
  EXPECT_EQ(saved.bytes(), (8 * 16 + 8 * 48 + 8 * 16 + 16) * 4);
  y.backward();
}

TEST(ActivationOffloadTest, RefusesBadOptions) {
  auto model = make_model();
  EXPECT_THAT(error_of([&] { offload_activations(model, policy::by_class<Mlp>(), {.max_in_flight = 0}); }),
              HasSubstr("max_in_flight 0 must be positive"));
}

// ---- policy

TEST(RepeatedPolicyTest, ChoosesTheOutermostBlocksThatRepeat) {
  auto names = [](tnn::Module& root) {
    std::vector<std::string> all;
    for (const auto& each : select_units(root, policy::repeated())) all.push_back(each.name);
    return all;
  };
  EXPECT_EQ(names(*Model(16, 2, 2)), (std::vector<std::string>{"t0", "t1"}));
  EXPECT_EQ(names(*Model(16, 1, 3)), (std::vector<std::string>{"t0.b0", "t0.b1", "t0.b2"}));
  EXPECT_EQ(names(*tnn::Sequential(Mlp(4), Mlp(4), Rich(4), Rich(4))), (std::vector<std::string>{"0", "1"}));
  auto single = tnn::Sequential(Rich(64), Factory());
  EXPECT_FALSE(policy::has_repeated(*single));
  EXPECT_THAT(error_of([&] { select_units(*single, policy::repeated()); }),
              HasSubstr("policy::repeated() matches no unit below Sequential"));
  EXPECT_TRUE(policy::has_repeated(*Model()));
}

// ---- errors

struct UnsteadyImpl : tnn::Module {
  explicit UnsteadyImpl(std::string k) : kind(std::move(k)) {}
  Tensor forward(const Tensor& x) {
    const bool again = ++runs > 1;
    if (kind == "shape") return x.narrow(1, 0, again ? 3 : 4).exp().sum(1, true) + x;
    if (kind == "fewer") return again ? x.exp() : x.exp().exp();
    if (kind == "throw" && again) throw std::runtime_error("broken block");
    if (kind == "input") return x.add_(1).exp();
    return x.exp().exp();
  }
  std::string kind;
  int runs = 0;
};
LEVIN_MODULE(Unsteady);

TEST(CheckpointingErrorTest, ForwardsThatDoNotRepeatAreOneLine) {
  const auto run = [](const std::string& kind) {
    return error_of([&] {
      tnn::Sequential model(Unsteady{kind});
      checkpoint_activations(model, policy::by_class<Unsteady>());
      model->forward(torch::ones({2, 4}).requires_grad_() * 1).sum().backward();
    });
  };
  EXPECT_EQ(run("shape"),
            "[checkpointing] forward of Unsteady does not do the same when it runs again: tensor 0 that it saves was "
            "Float [2, 4] on cpu and is now Float [2, 3] on cpu");
  EXPECT_EQ(run("fewer"),
            "[checkpointing] forward of Unsteady does not do the same when it runs again: it saved 2 tensors for "
            "backward and now 1");
  EXPECT_THAT(run("input"), HasSubstr("forward of Unsteady changes input 0 in place"));
  EXPECT_EQ(run("none"), "no error");
}

TEST(CheckpointingErrorTest, AnExceptionInRecomputeLeavesEverythingAsItWas) {
  Unsteady unit{"throw"};
  tnn::Sequential model(unit);
  checkpoint_activations(model, policy::by_class<Unsteady>());
  auto x = torch::ones({2, 4}).requires_grad_();
  auto y = model->forward(x).sum();
  const auto before = rng_state();
  const AutocastOn autocast;
  EXPECT_THROW(y.backward({}, true), std::runtime_error);
  EXPECT_TRUE(torch::equal(rng_state(), before));
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(unit->call_phase(), Phase::kForward);
  unit->kind = "";
  y.backward();
  EXPECT_FLOAT_EQ(x.grad()[0][0].item<float>(), static_cast<float>(std::exp(1) * std::exp(std::exp(1))));
}

TEST(CheckpointingErrorTest, ChangesInPlaceAreFoundAsWithoutCheckpointing) {
  tnn::Sequential model(nn::Linear(4, 4), Unsteady{""});
  checkpoint_activations(model, policy::all_units());
  auto y = model->forward(torch::ones({2, 4}).requires_grad_());
  {
    const c10::AutoGradMode no_grad(false);
    model->parameters()[0].add_(1);
  }
  EXPECT_THAT(error_of([&] { y.sum().backward(); }), HasSubstr("Linear needs in backward was changed in place"));
}

TEST(CheckpointingErrorTest, ArgumentsThatCannotBeCopied) {
  struct OnceImpl : tnn::Module {
    Tensor forward(const Tensor& x, std::unique_ptr<int>) { return x.exp(); }
  };
  auto once = std::make_shared<Hooked<OnceImpl>>();
  tnn::Module root;
  root.register_module("once", std::static_pointer_cast<tnn::Module>(once));
  checkpoint_activations(root, policy::all_units());
  auto x = torch::ones({2}).requires_grad_();
  EXPECT_THAT(error_of([&] { once->forward(x, nullptr); }), HasSubstr("cannot be copied"));
}

}  // namespace
}  // namespace levin
