#include <filesystem>

#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

using testing::error_of;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width = 8)
      : a(register_module("a", torch::nn::Linear(4, width))), b(register_module("b", torch::nn::Linear(width, 3))) {}
  Tensor forward(const Tensor& x) {
    seen = x.scalar_type();
    made = torch::ones({1}).scalar_type();
    auto h = a(x);
    computed = h.scalar_type();
    return b(torch::relu(h));
  }
  Tensor encode(const Tensor& x, bool deep) { return deep ? torch::relu(a(x)) : x; }
  torch::nn::Linear a, b;
  c10::ScalarType seen{}, made{}, computed{};
};
TORCH_MODULE(Net);

struct Output {
  Tensor logits;
  std::optional<Tensor> loss;
  int64_t tokens = 0;
};
struct StructNet : torch::nn::Module {
  StructNet() : layer(register_module("layer", torch::nn::Linear(4, 2))) {}
  Output forward(const Tensor& x, const Tensor& target = {}) {
    Output out{layer(x), {}, x.size(0)};
    if (target.defined()) out.loss = torch::mse_loss(out.logits, target.to(out.logits.dtype()));
    return out;
  }
  torch::nn::Linear layer;
};

struct Graph {
  Tensor nodes;
  std::vector<Tensor> edges;
  int64_t count = 0;
};

template <class Model, class Optimizer_, class Backward>
std::vector<Tensor> train(Model& model, Optimizer_& optimizer, std::vector<Tensor> params, Backward&& backward) {
  torch::manual_seed(7);
  for (int step = 0; step < 10; ++step) {
    const auto x = torch::randn({6, 4});
    const auto y = torch::randint(0, 3, {6});
    backward(torch::nn::functional::cross_entropy(model(x), y));
    optimizer.step();
    optimizer.zero_grad();
  }
  return params;
}

TEST(Fabric, LoopIsBitEqualToPlainLibTorch) {
  torch::manual_seed(1);
  Net plain;
  torch::optim::Adam plain_optimizer(plain->parameters(), 1e-2);
  const auto expected = train(plain, plain_optimizer, plain->parameters(), [](const Tensor& loss) { loss.backward(); });

  torch::manual_seed(1);
  Net model;
  torch::optim::Adam torch_optimizer(model->parameters(), 1e-2);
  Fabric fabric({.accelerator = "cpu"});
  auto [net, optimizer] = fabric.setup(model, torch_optimizer);
  const auto params = train(net, optimizer, model->parameters(), [&](const Tensor& loss) { fabric.backward(loss); });
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(torch::equal(params[i], expected[i]));
}

TEST(Fabric, TakesAUsersOwnProgramUnchanged) {
  Fabric fabric({.accelerator = "cpu", .precision = "bf16-true"});
  auto shared = std::make_shared<StructNet>();
  torch::optim::Adam adam(shared->parameters(), 1e-3);
  auto [net, optimizer] = fabric.setup(shared, adam);
  const auto out = net(torch::ones({5, 4}), torch::zeros({5, 2}));
  EXPECT_EQ(out.logits.scalar_type(), at::kFloat);
  EXPECT_EQ(out.loss->scalar_type(), at::kFloat);
  EXPECT_EQ(out.tokens, 5);
  EXPECT_EQ(shared->layer->weight.scalar_type(), at::kBFloat16);
  fabric.backward(*out.loss);
  optimizer.step();

  auto sequential = fabric.setup(torch::nn::Sequential(torch::nn::Linear(4, 3), torch::nn::ReLU()));
  EXPECT_EQ(sequential(torch::ones({2, 4})).sizes(), (std::vector<int64_t>{2, 3}));

  std::vector<Graph> data{{torch::ones({2}), {torch::ones({1})}, 1}, {torch::zeros({3}), {}, 2}};
  int64_t count = 0;
  auto loader = fabric.setup_dataloaders(data);
  for (auto& graph : loader) count += graph.count + graph.nodes.size(0);
  EXPECT_EQ(count, 8);

  auto torch_loader =
      torch::data::make_data_loader(torch::data::datasets::TensorDataset(torch::arange(10))
                                        .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
                                    4);
  int64_t samples = 0;
  auto wrapped = fabric.setup_dataloaders(std::move(torch_loader));
  for (auto& batch : wrapped) samples += batch.data.size(0);
  EXPECT_EQ(samples, 10);
}

TEST(Fabric, ModelComputesInThePrecisionAsked) {
  const auto x = torch::randn({2, 4});
  auto check = [&](const char* precision, c10::ScalarType params, c10::ScalarType input, c10::ScalarType inside,
                   c10::ScalarType made) {
    Fabric fabric({.accelerator = "cpu", .precision = precision});
    Net model;
    auto net = fabric.setup(model);
    const auto y = net(x);
    EXPECT_EQ(model->a->weight.scalar_type(), params) << precision;
    EXPECT_EQ(model->seen, input) << precision;
    EXPECT_EQ(model->computed, inside) << precision;
    EXPECT_EQ(model->made, made) << precision;
    EXPECT_EQ(y.scalar_type(), at::kFloat) << precision;
    EXPECT_EQ(c10::get_default_dtype_as_scalartype(), at::kFloat);
  };
  check("32-true", at::kFloat, at::kFloat, at::kFloat, at::kFloat);
  check("64-true", at::kDouble, at::kDouble, at::kDouble, at::kDouble);
  check("bf16-true", at::kBFloat16, at::kBFloat16, at::kBFloat16, at::kBFloat16);
  check("16-true", at::kHalf, at::kHalf, at::kHalf, at::kHalf);
  check("bf16-mixed", at::kFloat, at::kFloat, at::kBFloat16, at::kFloat);
  check("16-mixed", at::kFloat, at::kFloat, at::kBFloat16, at::kFloat);
}

TEST(Fabric, OtherMethodsRunUnderTheSameCare) {
  Fabric fabric({.accelerator = "cpu", .precision = "bf16-mixed"});
  auto net = fabric.setup(Net());
  EXPECT_EQ(net.call(&NetImpl::encode, torch::ones({2, 4}), true).scalar_type(), at::kFloat);
  const auto scope = fabric.autocast();
  EXPECT_EQ(net->encode(torch::ones({2, 4}), true).scalar_type(), at::kBFloat16);
}

TEST(Fabric, RefusesInOneLine) {
  EXPECT_NE(error_of([] { Fabric({.accelerator = "tpuu"}); }).find("accelerator \"tpuu\" is not known"),
            std::string::npos);
  EXPECT_NE(error_of([] { Fabric({.strategy = "dpp"}); }).find("did you mean \"ddp\""), std::string::npos);
  EXPECT_NE(error_of([] { Fabric({.devices = 0}); }).find("devices 0"), std::string::npos);
  EXPECT_NE(error_of([] { Fabric({.num_nodes = 0}); }).find("num_nodes 0"), std::string::npos);
  EXPECT_NE(error_of([] { Fabric({.precision = "bf17"}); }).find("did you mean \"bf16\""), std::string::npos);
  EXPECT_NE(error_of([] {
              Fabric fabric({.accelerator = "cpu", .devices = 2});
              fabric.launch();
            }).find("launch(argc, argv)"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              Fabric fabric({.accelerator = "cpu", .devices = 2});
              (void)fabric.setup(Net());
            }).find("fabric.launch(args) before setup"),
            std::string::npos);
  Fabric fabric({.accelerator = "cpu"});
  EXPECT_NE(error_of([&] { (void)fabric.setup(Net(nullptr)); }).find("the module is empty"), std::string::npos);
  Net model;
  optim::SGD optimizer(model->parameters(), {.lr = 0.1});
  auto [net, opt] = fabric.setup(model, optimizer);
  EXPECT_NE(error_of([&] { (void)fabric.setup_optimizers(optimizer); }).find("was set up already"), std::string::npos);
  EXPECT_NE(error_of([&] { fabric.backward(Tensor()); }).find("empty tensor"), std::string::npos);
  EXPECT_NE(error_of([&] { fabric.backward(torch::ones({})); }).find("needs no gradient"), std::string::npos);
  EXPECT_NE(error_of([&, &o = opt] { fabric.clip_gradients(o, {}); }).find("exactly one of"), std::string::npos);
  EXPECT_NE(
      error_of([&, &o = opt] { fabric.clip_gradients(o, {.clip_val = 1, .max_norm = 1}); }).find("exactly one of"),
      std::string::npos);
  EXPECT_NE(error_of([&] { fabric.logger(); }).find("no logger was given"), std::string::npos);
}

TEST(Fabric, ClipsToExactlyTheNorm) {
  Fabric fabric({.accelerator = "cpu"});
  Net model;
  auto [net, optimizer] = fabric.setup(model, optim::SGD(model->parameters(), {.lr = 0.1}));
  fabric.backward(net(torch::randn({8, 4})).pow(2).sum() * 100);
  const auto before = fabric.clip_gradients(net, optimizer, {.max_norm = 0.05});
  EXPECT_GT(before.item<double>(), 0.05);
  std::vector<Tensor> norms;
  for (auto& p : model->parameters()) norms.push_back(p.grad().norm());
  EXPECT_NEAR(torch::stack(norms).norm().item<double>(), 0.05, 1e-6);
  fabric.clip_gradients(optimizer, {.clip_val = 1e-10});
  for (auto& p : model->parameters()) EXPECT_LE(p.grad().abs().max().item<double>(), 1.0001e-10);
  EXPECT_NE(error_of([&, &o = optimizer] {
              model->a->weight.mutable_grad().fill_(NAN);
              fabric.clip_gradients(o, {.max_norm = 1});
            }).find("non-finite"),
            std::string::npos);
}

TEST(Fabric, InitModuleMakesParametersInPlaceAndDtype) {
  Fabric fabric({.accelerator = "cpu", .precision = "bf16-true"});
  auto model = fabric.init_module([] { return Net(16); });
  EXPECT_EQ(model->a->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(model->a->weight.size(0), 16);
  EXPECT_EQ(torch::ones({1}).scalar_type(), at::kFloat);
  auto meta = fabric.init_module([] { return Net(16); }, {.meta = true});
  EXPECT_TRUE(is_deferred(*meta));
  auto net = fabric.setup(meta);
  EXPECT_FALSE(is_deferred(*meta));
  EXPECT_TRUE(net(torch::ones({1, 4})).isfinite().all().item<bool>());
  {
    const auto scope = fabric.init_tensor();
    EXPECT_EQ(torch::ones({2}).scalar_type(), at::kBFloat16);
  }
}

TEST(Fabric, SavesAndResumesExactly) {
  const testing::TemporaryFolder folder;
  const auto path = (folder / "resume").string();
  auto run = [&](int from, int to, bool load, bool save) {
    torch::manual_seed(3);
    Fabric fabric({.accelerator = "cpu"});
    Net model;
    auto [net, optimizer] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-2}));
    int64_t step = 0;
    std::string tag = "fresh";
    State state{{"model", net}, {"optimizer", optimizer}, {"step", step}, {"tag", tag}};
    if (load) {
      fabric.load(path, state);
      EXPECT_EQ(step, from);
      EXPECT_EQ(tag, "saved");
    }
    for (step = from; step < to; ++step) {
      const auto x = torch::arange(8, at::kFloat).view({2, 4}) * (step + 1);
      fabric.backward(net(x).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    tag = "saved";
    if (save) fabric.save(path, state);
    return model->parameters();
  };
  const auto whole = run(0, 8, false, false);
  run(0, 4, false, true);
  const auto resumed = run(4, 8, true, false);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::equal(whole[i], resumed[i]));

  Fabric fabric({.accelerator = "cpu"});
  auto net = fabric.setup(Net());
  const auto rest = fabric.load(path, {{"model", net}});
  EXPECT_TRUE(rest.contains("optimizer"));
  EXPECT_EQ(rest.at("step").to_int(), 4);
  EXPECT_EQ(fabric.load(path).at("tag").to_string(), "saved");
}

struct Counter : CallbackBase {
  void on_epoch_end(int epoch) { sum += epoch; }
  int sum = 0;
};
struct Other : CallbackBase {};

TEST(Fabric, CallsCallbacksThatHaveTheMethod) {
  auto counter = std::make_shared<Counter>();
  Fabric fabric({.accelerator = "cpu", .callbacks = {counter, std::make_shared<Other>()}});
  fabric.call(&Counter::on_epoch_end, 3);
  fabric.call(&Counter::on_epoch_end, 4);
  EXPECT_EQ(counter->sum, 7);
}

TEST(Fabric, OneProcessIsAWorldOfOne) {
  Fabric fabric({.accelerator = "cpu"});
  fabric.launch();
  EXPECT_EQ(fabric.world_size(), 1);
  EXPECT_TRUE(fabric.is_global_zero());
  EXPECT_EQ(fabric.all_gather(torch::ones({3})).sizes(), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(fabric.all_reduce(torch::ones({3})).sum().item<float>(), 3);
  EXPECT_EQ(fabric.broadcast(std::string("x")), "x");
  EXPECT_EQ(fabric.broadcast(4), 4);
  EXPECT_EQ(fabric.rank_zero_first([] { return 5; }), 5);
  EXPECT_THROW(fabric.all_reduce(torch::ones({1}), "median"), Error);
  fabric.barrier();
}

TEST(Fabric, ResolvesWithoutHardware) {
  const auto plan = resolve({.devices = 4, .num_nodes = 2, .precision = "bf16"}, 8);
  EXPECT_EQ(plan.accelerator, "cuda");
  EXPECT_EQ(plan.world_size(), 8);
  EXPECT_EQ(plan.precision.name, "bf16-mixed");
  EXPECT_EQ(resolve({}, 0).accelerator, "cpu");
  EXPECT_EQ(resolve({.accelerator = "cpu", .devices = 3}, 0).to_string(), "cpu x 3, ddp, 32-true");
  EXPECT_THROW(resolve({.accelerator = "gpu"}, 0), Error);
  EXPECT_THROW(resolve({.devices = 9}, 8), Error);
  EXPECT_THROW(resolve({.strategy = "single_device", .devices = 2}, 8), Error);
}

}  // namespace
}  // namespace levin
