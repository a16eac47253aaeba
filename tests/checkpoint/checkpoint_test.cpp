#include "levin/checkpoint/checkpoint.h"

#include <limits>

#include "levin/checkpoint/module_state.h"
#include "levin/core/files.h"
#include "levin/core/seed.h"
#include "levin/core/version.h"
#include "levin/io/weights/safetensors.h"
#include "levin/io/weights/safetensors_model.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    fc1 = register_module("fc1", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    fc2 = register_module("fc2", torch::nn::Linear(torch::nn::LinearOptions(8, 2).bias(false)));
  }
  torch::nn::Linear fc1{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear fc2{nullptr};
};
TORCH_MODULE(Net);

/// An optimizer in torch's shape of state: integer names, tensors and numbers side by side.
struct FakeOptimizer : OptimizerImpl {
  StateDict state{
      {"state", StateDict{{"0", StateDict{{"step", torch::tensor(3.0F)}, {"exp_avg", torch::randn({4, 8})}}},
                          {"10", StateDict{{"step", 7}, {"exp_avg", torch::randn({2})}}},
                          {"2", StateDict{{"momentum", StateValue()}}}}},
      {"param_groups", StateList{StateDict{{"lr", 0.1},
                                           {"betas", StateList{0.9, 0.999}},
                                           {"amsgrad", false},
                                           {"eps", 1e-8},
                                           {"params", StateList{0, 10, 2}}}}}};
  std::vector<Tensor> none;

  std::string name() const override { return "Fake"; }
  void step() override {}
  void zero_grad(bool) override {}
  size_t num_groups() const override { return 1; }
  std::vector<Tensor>& params(size_t) override { return none; }
  double* find_hyper(size_t, std::string_view) override { return nullptr; }
  StateDict state_dict() const override { return state; }
  void load_state_dict(const StateDict& loaded) override { state = loaded; }
};

/// Bit by bit: kinds, order, names, numbers, tensors.
void expect_equal(const StateValue& a, const StateValue& b, const std::string& at) {
  ASSERT_EQ(a.variant().index(), b.variant().index()) << at;
  std::visit(
      [&]<class T>(const T& v) {
        const auto& w = std::get<T>(b.variant());
        if constexpr (std::same_as<T, Tensor>) {
          ASSERT_EQ(v.defined(), w.defined()) << at;
          if (!v.defined()) return;
          EXPECT_EQ(v.scalar_type(), w.scalar_type()) << at;
          EXPECT_EQ(v.sizes(), w.sizes()) << at;
          EXPECT_EQ(std::memcmp(v.contiguous().data_ptr(), w.contiguous().data_ptr(), v.nbytes()), 0) << at;
        } else if constexpr (std::same_as<T, double>) {
          EXPECT_EQ(std::memcmp(&v, &w, sizeof(v)), 0) << at << " " << v << " " << w;
        } else if constexpr (std::same_as<T, StateList>) {
          ASSERT_EQ(v.size(), w.size()) << at;
          for (size_t i = 0; i < v.size(); ++i) expect_equal(v[i], w[i], fmt::format("{}.{}", at, i));
        } else if constexpr (std::same_as<T, StateDict>) {
          ASSERT_EQ(v.size(), w.size()) << at;
          auto other = w.begin();
          for (const auto& [name, value] : v) {
            EXPECT_EQ(name, other->first) << at;
            expect_equal(value, other->second, at + "." + name);
            ++other;
          }
        } else {
          EXPECT_EQ(v, w) << at;
        }
      },
      a.variant());
}

std::vector<Tensor> clones(const torch::nn::Module& module) {
  std::vector<Tensor> tensors;
  for (const auto& t : module.parameters()) tensors.push_back(t.detach().clone());
  for (const auto& t : module.buffers()) tensors.push_back(t.clone());
  return tensors;
}
bool same(const torch::nn::Module& module, const std::vector<Tensor>& tensors) {
  const auto now = clones(module);
  for (size_t i = 0; i < now.size(); ++i)
    if (!torch::equal(now[i], tensors[i])) return false;
  return now.size() == tensors.size();
}

using CheckpointTest = testing::FolderTest;

TEST_F(CheckpointTest, EverythingBoundComesBack) {
  Net net;
  net->norm->running_mean.fill_(3);
  auto fake = std::make_shared<FakeOptimizer>();
  Optimizer opt{fake};
  int64_t epoch = 7;
  int small = -3;
  double best = 0.1 + 0.2;
  float loss = 0.3F;
  bool flag = true;
  std::string tag = "täg \"q\"";
  Tensor x = torch::randn({3});
  std::vector<double> history{1, 2.5};
  StateDict extra{{"a", 1}, {"b", StateDict{{"c", "d"}}}};
  auto rng = RngState::capture();
  State state{{"model", net}, {"optimizer", opt}, {"epoch", epoch},     {"small", small},
              {"best", best}, {"loss", loss},     {"flag", flag},       {"tag", tag},
              {"x", x},       {"rng", rng},       {"history", history}, {"extra", extra}};
  const auto before = state.state_dict();
  const auto weights = clones(*net);
  const auto optimizer_state = fake->state;
  const auto x_before = x.clone();
  const auto rng_before = rng.cpu.clone();
  save_checkpoint(folder_ / "last", state);

  for (auto& p : net->parameters()) p.detach().zero_();
  net->norm->running_mean.zero_();
  fake->state = {};
  epoch = small = 0;
  best = loss = 0;
  flag = false;
  tag.clear();
  auto* const place = x.data_ptr();
  x.zero_();
  history.clear();
  extra = {};
  rng.cpu = Tensor();
  const auto leftover = load_checkpoint(folder_ / "last", state);
  EXPECT_TRUE(leftover.empty());
  EXPECT_TRUE(same(*net, weights));
  expect_equal(fake->state, optimizer_state, "optimizer");
  EXPECT_EQ(epoch, 7);
  EXPECT_EQ(small, -3);
  EXPECT_EQ(best, 0.1 + 0.2);
  EXPECT_EQ(loss, 0.3F);
  EXPECT_TRUE(flag);
  EXPECT_EQ(tag, "täg \"q\"");
  EXPECT_TRUE(torch::equal(x, x_before));
  EXPECT_EQ(x.data_ptr(), place);
  EXPECT_TRUE(torch::equal(rng.cpu, rng_before));
  EXPECT_EQ(history, (std::vector<double>{1, 2.5}));
  EXPECT_EQ(extra.at("b").to_dict().at("c").to_string(), "d");
}

TEST_F(CheckpointTest, TreesComeBackBitByBit) {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const auto infinity = std::numeric_limits<double>::infinity();
  StateDict state{{"whole", 1.0},
                  {"int", 1},
                  {"big", std::numeric_limits<int64_t>::min()},
                  {"odd", 0.1},
                  {"tiny", std::numeric_limits<double>::denorm_min()},
                  {"minus", -0.0},
                  {"nan", nan},
                  {"inf", StateList{infinity, -infinity}},
                  {"nothing", StateValue()},
                  {"undefined", Tensor()},
                  {"bytes", std::string("\xff\x00z", 3)},
                  {"empty", StateDict{}},
                  {"list", StateList{}},
                  {"$tensor", StateDict{{"$tensor", "x"}}},
                  {"$$a", StateDict{{"$$$b", 1}}},
                  {"", StateDict{{"", torch::ones({2})}}},
                  {"a", StateDict{{"b.c", torch::full({2}, 1)}, {"b", StateDict{{"c", torch::full({2}, 2)}}}}},
                  {"a.b", StateDict{{"c", torch::full({2}, 3)}}},
                  {"a/../b", StateDict{{"x", torch::full({2}, 4)}}},
                  {"a?..?b", StateDict{{"x", torch::full({2}, 5)}}},
                  {"top", torch::full({2}, 6)},
                  {"tensors", StateDict{{"top", torch::full({2}, 7)}}},
                  {"mixed", StateList{torch::ones({2}).to(at::kBFloat16), StateDict{{"t", torch::ones({0, 3})}}, true}},
                  {"half", torch::randn({3, 5}).to(at::kHalf).t()},
                  {std::string(300, 'n'), StateDict{{"x", torch::randn({2})}}}};
  save_checkpoint(folder_ / "tree", state);
  expect_equal(load_checkpoint(folder_ / "tree"), state, "state");
  for (const auto& entry : fs::directory_iterator(folder_ / "tree"))
    EXPECT_TRUE(entry.is_regular_file()) << entry.path();
}

TEST_F(CheckpointTest, TheModelsFileIsPlainWeights) {
  Net net;
  State state{{"model", net}};
  save_checkpoint(folder_ / "last", state);
  const SafetensorsFile file(folder_ / "last/model.safetensors");
  EXPECT_TRUE(torch::equal(file.read("fc1.weight"), net->fc1->weight));
  EXPECT_TRUE(file.find("norm.num_batches_tracked"));
  EXPECT_FALSE(file.find("fc2.bias"));
  const auto info = checkpoint_info(folder_ / "last");
  EXPECT_EQ(info.levin_version, kVersion);
  EXPECT_STREQ(kVersion, LEVIN_PROJECT_VERSION);
  EXPECT_EQ(info.torch_version, TORCH_VERSION);
  EXPECT_EQ(info.keys, std::vector<std::string>{"model"});
}

TEST_F(CheckpointTest, WhatIsNotBoundIsReturned) {
  Net net;
  int64_t epoch = 4;
  Tensor x = torch::ones({2});
  save_checkpoint(folder_ / "last", {{"model", net}, {"epoch", epoch}, {"x", x}});
  State state{{"model", net}};
  const auto leftover = load_checkpoint(folder_ / "last", state);
  EXPECT_EQ(leftover.size(), 2U);
  EXPECT_EQ(leftover.at("epoch").to_int(), 4);
  EXPECT_TRUE(torch::equal(leftover.at("x").to_tensor(), x));
  EXPECT_TRUE(load_checkpoint(folder_ / "last", state, {.leftover = false}).empty());
}

TEST_F(CheckpointTest, OptionalNamesMayBeMissing) {
  int64_t there = 3, missing = 4;
  save_checkpoint(folder_ / "last", {{"there", there}});
  there = 0;
  const State both{{"there", there}, {"missing", missing}};
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "last", both); }), HasSubstr("missing"));
  load_checkpoint(folder_ / "last", both, {.optional = {"there", "missing"}});
  EXPECT_EQ(there, 3);
  EXPECT_EQ(missing, 4);
}

TEST_F(CheckpointTest, EverythingThatDoesNotFitIsListedAtOnceAndNothingChanges) {
  auto small = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
  save_checkpoint(folder_ / "last", {{"model", small}});
  auto other = torch::nn::Sequential(torch::nn::Linear(2, 4), torch::nn::ReLU(), torch::nn::Linear(4, 1));
  const auto before = clones(*other);
  int64_t epoch = 1;
  State state{{"model", other}, {"epoch", epoch}};
  const auto line = error_of([&] { load_checkpoint(folder_ / "last", state); });
  EXPECT_THAT(line, HasSubstr("missing: model.2.weight, model.2.bias, epoch"));
  EXPECT_THAT(line, HasSubstr("unexpected: model.1.weight, model.1.bias"));
  EXPECT_THAT(
      line, HasSubstr("wrong shape: model.0.weight ([3, 2] in the file, [4, 2] in the module), model.0.bias ([3] in"));
  EXPECT_TRUE(same(*other, before));
  // A wrong shape is refused even when strictness is not asked for.
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "last", state, {.strict = false}); }), HasSubstr("wrong shape"));
  auto partial = torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::ReLU(), torch::nn::Linear(4, 1));
  State loose{{"model", partial}, {"epoch", epoch}};
  load_checkpoint(folder_ / "last", loose, {.strict = false});
  EXPECT_TRUE(torch::equal(partial->parameters()[0], small->parameters()[0]));
  EXPECT_EQ(epoch, 1);
}

TEST_F(CheckpointTest, OtherKindsAndSizesOfVariablesAreNamed) {
  int64_t epoch = int64_t{1} << 40;
  std::string tag = "x";
  save_checkpoint(folder_ / "last", {{"epoch", epoch}, {"tag", tag}});
  int small = 5;
  State narrow{{"epoch", small}};
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "last", narrow); }), HasSubstr("\"epoch\" of"));
  EXPECT_EQ(small, 5);
  double number = 0;
  State wrong{{"tag", number}};
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "last", wrong); }),
              HasSubstr("expected a number, found a string"));
}

TEST_F(CheckpointTest, DtypesAreConverted) {
  Net net;
  net->to(at::kBFloat16);
  save_checkpoint(folder_ / "half", {{"model", net}});
  Net full;
  State state{{"model", full}};
  load_checkpoint(folder_ / "half", state);
  EXPECT_EQ(full->fc1->weight.scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(full->fc1->weight, net->fc1->weight.to(at::kFloat)));
}

TEST_F(CheckpointTest, FiltersKeepWhatTheySay) {
  Net net;
  int64_t epoch = 0;
  State state{{"model", net}, {"epoch", epoch}};
  save_checkpoint(
      folder_ / "last", state,
      {.filter = {{"model", [](std::string_view name, const StateValue&) { return name.starts_with("fc1"); }}}});
  EXPECT_EQ(SafetensorsFile(folder_ / "last/model.safetensors").entries().size(), 2U);
  const auto yes = [](std::string_view, const StateValue&) { return true; };
  EXPECT_THAT(error_of([&] {
                save_checkpoint(folder_ / "x", state, {.filter = {{"modle", yes}}});
              }),
              HasSubstr("did you mean \"model\"?"));
  EXPECT_THAT(error_of([&] {
                save_checkpoint(folder_ / "x", state, {.filter = {{"epoch", yes}}});
              }),
              HasSubstr("must be a function"));
}

TEST_F(CheckpointTest, TiedTensorsStandUnderEachNameAndEitherWillDo) {
  const auto tied = [] {
    auto both = std::make_shared<torch::nn::Module>();
    both->register_parameter("embedding", torch::randn({4, 3}));
    both->register_parameter("head", both->named_parameters(false)["embedding"]);
    return both;
  };
  auto net = tied();
  const auto weight = net->named_parameters()["embedding"].detach().clone();
  EXPECT_EQ(module_state_dict(*net).size(), 2U);
  save_checkpoint(folder_ / "last", {{"model", net}});
  EXPECT_EQ(SafetensorsFile(folder_ / "last/model.safetensors").entries().size(), 2U);
  auto again = tied();
  State state{{"model", again}};
  load_checkpoint(folder_ / "last", state);
  EXPECT_TRUE(torch::equal(again->named_parameters()["head"], weight));
  // A module that is not tied takes both.
  auto loose = std::make_shared<torch::nn::Module>();
  loose->register_parameter("embedding", torch::zeros({4, 3}));
  loose->register_parameter("head", torch::zeros({4, 3}));
  State untied{{"model", loose}};
  load_checkpoint(folder_ / "last", untied);
  EXPECT_TRUE(torch::equal(loose->named_parameters()["head"], weight));
  // A file from elsewhere has one of the names.
  for (const std::string name : {"embedding", "head"}) {
    write_safetensors(folder_ / "model.safetensors", {{name, torch::full({4, 3}, 2.0)}});
    load_raw(folder_ / "model.safetensors", again);
    EXPECT_EQ(again->named_parameters()["embedding"].sum().item<double>(), 24);
    again->named_parameters()["embedding"].detach().zero_();
  }
}

TEST_F(CheckpointTest, RawWeightsComeFromFilesShardsAndCheckpoints) {
  Net net;
  NamedTensors tensors;
  for (const auto& [name, value] : module_state_dict(*net)) tensors.emplace_back(name, value.to_tensor());
  write_safetensors(folder_ / "w.safetensors", tensors);
  write_safetensors_model(folder_ / "shards", tensors, 64);
  int64_t epoch = 0;
  save_checkpoint(folder_ / "last", {{"model", net}, {"epoch", epoch}});
  for (const auto* path : {"w.safetensors", "shards", "last"}) {
    Net other;
    load_raw(folder_ / path, other);
    EXPECT_TRUE(same(*other, clones(*net))) << path;
  }
  load_raw(folder_ / "last", StateRef(epoch), {.key = "epoch"});
  EXPECT_THAT(error_of([&] { load_raw(folder_ / "last", net, {.key = "modle"}); }),
              HasSubstr("did you mean \"model\"?"));
  EXPECT_THAT(error_of([&] { load_raw(folder_ / "w.safetensors", StateRef(epoch)); }), HasSubstr("only a module"));
  auto linear = torch::nn::Linear(2, 2);
  EXPECT_THAT(error_of([&] { load_raw(folder_ / "w.safetensors", linear); }),
              HasSubstr("missing: weight, bias; unexpected: fc1.bias"));
}

TEST(State, BindsWhatCanBeLoadedAgain) {
  using detail::StateBindable;
  static_assert(StateBindable<int64_t&> && StateBindable<int&> && StateBindable<double&> && StateBindable<bool&> &&
                StateBindable<std::string&> && StateBindable<Tensor&> && StateBindable<StateDict&>);
  static_assert(!StateBindable<int> && !StateBindable<double> && !StateBindable<std::string> &&
                !StateBindable<const int&> && !StateBindable<Tensor> && !StateBindable<const char(&)[3]>);
  static_assert(StateBindable<Net&> && StateBindable<Net> && StateBindable<const Net&> && StateBindable<NetImpl&> &&
                StateBindable<std::shared_ptr<NetImpl>> && StateBindable<torch::nn::Sequential&> &&
                !StateBindable<NetImpl>);
  static_assert(StateBindable<Optimizer&> && StateBindable<const Optimizer&> && StateBindable<Optimizer>);
  static_assert(StateBindable<RngState&> && !StateBindable<RngState> && !StateBindable<std::vector<Tensor>&>);
  int64_t epoch = 0;
  EXPECT_THROW((State{{"a", epoch}, {"a", epoch}}), Error);
}

/// A wrapper that says what is to be saved of it.
struct Wrapped {
  Net net;
  StateRef state_ref() const { return net; }
};

TEST_F(CheckpointTest, AWrapperMaySpeakForItsModule) {
  Wrapped wrapped;
  State state{{"model", wrapped}};
  save_checkpoint(folder_ / "last", state);
  Net net;
  load_raw(folder_ / "last", net);
  EXPECT_TRUE(same(*net, clones(*wrapped.net)));
}

}  // namespace
}  // namespace levin
