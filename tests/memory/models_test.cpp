// Programs as people write them with LibTorch: what a step takes on the CPU, against what was predicted; and what the
// functions of an estimate may be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/devices/memory_counter.h"
#include "levin/memory/estimate.h"
#include "levin/nn/layers.h"
#include "levin/nn/unit.h"
#include "levin/optim/adam.h"
#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
namespace F = torch::nn::functional;
namespace tnn = torch::nn;

const auto kLong = torch::dtype(at::kLong);

/// The peak of the third step, with Adam, on the CPU.
template <class Make, class Forward, class Loss>
int64_t measure(const Make& make, const Forward& forward, const Loss& loss, const Batch& batch) {
  at::set_num_threads(1);
  MemoryCounter counter;
  detail::CalledModel model(make());
  optim::Adam optimizer(model->parameters());
  for (int step = 0; step < 3; ++step) {
    counter.reset_peak();
    Tensor value;
    {
      const auto out = forward(model, batch);
      value = loss(out, batch);
    }
    value.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return counter.peak();
}

template <class Make, class Forward, class Loss>
void expect_predicted(const Make& make, const Forward& forward, const Loss& loss, const Batch& batch,
                      double within = 0.05) {
  const auto measured = measure(make, forward, loss, batch);
  const auto predicted = estimate_memory(make, forward, loss, batch, {.device = at::kCPU});
  int64_t given = 0;  // the batch was there before
  for (const auto& [name, tensor] : batch) given += static_cast<int64_t>(tensor.nbytes());
  const auto ratio = static_cast<double>(predicted.device_peak - given) / static_cast<double>(measured);
  EXPECT_NEAR(ratio, 1, within) << "predicted " << predicted.device_peak - given << ", measured " << measured;
}

const auto kImage = [](auto& model, const Batch& batch) { return model(batch["x"]); };
const auto kClasses = [](const Tensor& scores, const Batch& batch) { return F::cross_entropy(scores, batch["y"]); };

// ---- digits

struct DigitsImpl : tnn::Module {
  DigitsImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  Tensor forward(Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(dropped(conv2(x)), 2)).flatten(1);
    x = torch::dropout(torch::relu(fc1(x)), 0.5, is_training());
    return torch::log_softmax(fc2(x), 1);
  }
  tnn::Conv2d conv1{tnn::Conv2dOptions(1, 10, 5)}, conv2{tnn::Conv2dOptions(10, 20, 5)};
  tnn::Dropout2d dropped;
  tnn::Linear fc1{320, 50}, fc2{50, 10};
};
TORCH_MODULE(Digits);

TEST(ModelMemory, OfDigits) {
  expect_predicted([] { return Digits(); }, kImage,
                   [](const Tensor& scores, const Batch& batch) { return torch::nll_loss(scores, batch["y"]); },
                   {{"x", torch::randn({64, 1, 28, 28})}, {"y", torch::randint(10, {64}, kLong)}});
}

// ---- a variational autoencoder that returns a struct

struct Decoded {
  Tensor image, mean, spread;
};
struct AutoencoderImpl : tnn::Module {
  AutoencoderImpl() {
    register_module("in", in);
    register_module("mean", mean);
    register_module("spread", spread);
    register_module("hidden", hidden);
    register_module("out", out);
  }
  Decoded forward(const Tensor& x) {
    const auto h = torch::relu(in(x));
    const auto m = mean(h), s = spread(h);
    const auto z = is_training() ? m + torch::randn_like(s) * (s / 2).exp() : m;
    return {torch::sigmoid(out(torch::relu(hidden(z)))), m, s};
  }
  tnn::Linear in{784, 256}, mean{256, 20}, spread{256, 20}, hidden{20, 256}, out{256, 784};
};
TORCH_MODULE(Autoencoder);

TEST(ModelMemory, OfAnAutoencoder) {
  expect_predicted([] { return Autoencoder(); }, kImage,
                   [](const Decoded& out, const Batch& batch) {
                     const auto options = F::BinaryCrossEntropyFuncOptions().reduction(torch::kSum);
                     const auto divergence = -0.5 * torch::sum(1 + out.spread - out.mean.pow(2) - out.spread.exp());
                     return F::binary_cross_entropy(out.image, batch["x"], options) + divergence;
                   },
                   {{"x", torch::rand({256, 784})}});
}

// ---- segmentation: an encoder of residual blocks, a decoder with skips

struct ResidualImpl : tnn::Module {
  ResidualImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(tnn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        conv2(tnn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
        norm1(out),
        norm2(out) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    if (in == out && stride == 1) return;
    shortcut->push_back(tnn::Conv2d(tnn::Conv2dOptions(in, out, 1).stride(stride).bias(false)));
    shortcut->push_back(tnn::BatchNorm2d(out));
    register_module("shortcut", shortcut);
  }
  Tensor forward(const Tensor& x) {
    const auto y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (shortcut->is_empty() ? x : shortcut->forward(x)));
  }
  tnn::Conv2d conv1, conv2;
  tnn::BatchNorm2d norm1, norm2;
  tnn::Sequential shortcut;
};
TORCH_MODULE(Residual);

struct SegmenterImpl : tnn::Module {
  SegmenterImpl() {
    register_module("down1", down1);
    register_module("down2", down2);
    register_module("down3", down3);
    register_module("up2", up2);
    register_module("up1", up1);
    register_module("head", head);
  }
  static Tensor joined(const Tensor& low, const Tensor& skip) {
    const std::vector<int64_t> size{skip.size(2), skip.size(3)};
    return torch::cat({F::interpolate(low, F::InterpolateFuncOptions().size(size).mode(torch::kNearest)), skip}, 1);
  }
  Tensor forward(const Tensor& x) {
    const auto a = down1(x), b = down2(a), c = down3(b);
    return head(up1(joined(up2(joined(c, b)), a)));
  }
  Residual down1{3, 32, 1}, down2{32, 64, 2}, down3{64, 128, 2}, up2{192, 64, 1}, up1{96, 32, 1};
  tnn::Conv2d head{tnn::Conv2dOptions(32, 8, 1)};
};
TORCH_MODULE(Segmenter);

TEST(ModelMemory, OfSegmentation) {
  expect_predicted([] { return Segmenter(); }, kImage, kClasses,
                   {{"x", torch::randn({2, 3, 48, 48})}, {"y", torch::randint(8, {2, 48, 48}, kLong)}});
}

// ---- a generator and its critic

tnn::Sequential make_generator() {
  return tnn::Sequential(
      tnn::ConvTranspose2d(tnn::ConvTranspose2dOptions(64, 128, 4).bias(false)), tnn::BatchNorm2d(128), tnn::ReLU(),
      tnn::ConvTranspose2d(tnn::ConvTranspose2dOptions(128, 64, 3).stride(2).padding(1).bias(false)),
      tnn::BatchNorm2d(64), tnn::ReLU(),
      tnn::ConvTranspose2d(tnn::ConvTranspose2dOptions(64, 32, 4).stride(2).padding(1).bias(false)),
      tnn::BatchNorm2d(32), tnn::ReLU(),
      tnn::ConvTranspose2d(tnn::ConvTranspose2dOptions(32, 1, 4).stride(2).padding(1).bias(false)), tnn::Tanh());
}
tnn::Sequential make_critic() {
  const auto leaky = [] { return tnn::LeakyReLU(tnn::LeakyReLUOptions().negative_slope(0.2)); };
  return tnn::Sequential(
      tnn::Conv2d(tnn::Conv2dOptions(1, 64, 4).stride(2).padding(1).bias(false)), leaky(),
      tnn::Conv2d(tnn::Conv2dOptions(64, 128, 4).stride(2).padding(1).bias(false)), tnn::BatchNorm2d(128), leaky(),
      tnn::Conv2d(tnn::Conv2dOptions(128, 1, 4).stride(1).padding(0).bias(false)), tnn::Flatten(), tnn::Sigmoid());
}

TEST(ModelMemory, OfAGeneratorAndItsCritic) {
  expect_predicted(
      make_generator, kImage, [](const Tensor& out, const Batch&) { return out.pow(2).mean(); },
      {{"x", torch::randn({16, 64, 1, 1})}}, /*within=*/0.17);
  expect_predicted(
      make_critic, kImage,
      [](const Tensor& out, const Batch& batch) { return torch::binary_cross_entropy(out, batch["y"].expand_as(out)); },
      {{"x", torch::randn({16, 1, 28, 28})}, {"y", torch::ones({1, 1})}});
}

// ---- a language model of LSTMs that returns nested tuples

struct LanguageImpl : tnn::Module {
  using States = std::tuple<Tensor, Tensor>;
  LanguageImpl() {
    register_module("table", table);
    register_module("lstm", lstm);
    register_module("head", head);
  }
  std::tuple<Tensor, States> forward(const Tensor& tokens, const Tensor& h, const Tensor& c) {
    auto [out, states] = lstm(table(tokens), States{h, c});
    return {head(out.reshape({-1, out.size(2)})), states};
  }
  tnn::Embedding table{500, 64};
  tnn::LSTM lstm{tnn::LSTMOptions(64, 96).num_layers(2).batch_first(true)};
  tnn::Linear head{96, 500};
};
TORCH_MODULE(Language);

TEST(ModelMemory, OfALanguageModel) {
  expect_predicted([] { return Language(); },
                   [](auto& model, const Batch& batch) { return model(batch["x"], batch["h"], batch["c"]); },
                   [](const std::tuple<Tensor, std::tuple<Tensor, Tensor>>& out, const Batch& batch) {
                     return F::cross_entropy(std::get<0>(out), batch["y"].reshape({-1}));
                   },
                   {{"x", torch::randint(500, {16, 30}, kLong)},
                    {"h", torch::zeros({2, 16, 96})},
                    {"c", torch::zeros({2, 16, 96})},
                    {"y", torch::randint(500, {16, 30}, kLong)}});
}

// ---- proximal policy optimization: a shared_ptr, a forward of two arguments

struct Acted {
  Tensor chances, value, entropy;
};
struct Policy : tnn::Module {
  Policy() {
    register_module("body", body);
    register_module("actor", actor);
    register_module("critic", critic);
  }
  Acted forward(const Tensor& seen, const Tensor& actions) {
    const auto h = body->forward(seen);
    const auto log_chances = torch::log_softmax(actor(h), 1);
    return {log_chances.gather(1, actions), critic(h), -(log_chances.exp() * log_chances).sum(1).mean()};
  }
  tnn::Sequential body{tnn::Linear(32, 128), tnn::Tanh(), tnn::Linear(128, 128), tnn::Tanh()};
  tnn::Linear actor{128, 4}, critic{128, 1};
};

TEST(ModelMemory, OfAPolicy) {
  expect_predicted([] { return std::make_shared<Policy>(); },
                   [](auto& policy, const Batch& batch) { return policy(batch["seen"], batch["actions"]); },
                   [](const Acted& out, const Batch& batch) {
                     const auto ratio = (out.chances - batch["old"]).exp();
                     const auto clipped = ratio.clamp(0.8, 1.2) * batch["advantage"];
                     const auto gain = torch::min(ratio * batch["advantage"], clipped).mean();
                     return F::smooth_l1_loss(out.value, batch["return"]) - gain - 0.01 * out.entropy;
                   },
                   {{"seen", torch::randn({512, 32})},
                    {"actions", torch::randint(4, {512, 1}, kLong)},
                    {"old", torch::randn({512, 1})},
                    {"advantage", torch::randn({512, 1})},
                    {"return", torch::randn({512, 1})}},
                   /*within=*/0.2);
}

// ---- images: a subclass of Sequential with functions as layers, and a deep residual net

struct SmallAlexNetImpl : tnn::SequentialImpl {
  SmallAlexNetImpl() {
    push_back(tnn::Conv2d(tnn::Conv2dOptions(3, 32, 11).stride(4).padding(2)));
    push_back(tnn::Functional(torch::relu));
    push_back(tnn::Functional(torch::max_pool2d, 3, 2, 0, 1, false));
    push_back(tnn::Conv2d(tnn::Conv2dOptions(32, 64, 5).padding(2)));
    push_back(tnn::Functional(torch::relu));
    push_back(tnn::Functional(torch::max_pool2d, 3, 2, 0, 1, false));
    push_back(tnn::Conv2d(tnn::Conv2dOptions(64, 64, 3).padding(1)));
    push_back(tnn::Functional(torch::relu));
    push_back(tnn::Functional([](const Tensor& x) { return x.flatten(1); }));
    push_back(tnn::Dropout());
    push_back(tnn::Linear(64 * 6 * 6, 256));
    push_back(tnn::Functional(torch::relu));
    push_back(tnn::Linear(256, 10));
  }
};
TORCH_MODULE(SmallAlexNet);

TEST(ModelMemory, OfASubclassOfSequential) {
  expect_predicted([] { return SmallAlexNet(); }, kImage, kClasses,
                   {{"x", torch::randn({8, 3, 112, 112})}, {"y", torch::randint(10, {8}, kLong)}});
}

struct DeepImpl : tnn::Module {
  DeepImpl() {
    for (const auto& [in, out, stride] :
         {std::tuple(3, 16, 1), {16, 16, 1}, {16, 32, 2}, {32, 32, 1}, {32, 64, 2}, {64, 64, 1}})
      blocks->push_back(Residual(in, out, stride));
    register_module("blocks", blocks);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) { return head(torch::adaptive_avg_pool2d(blocks->forward(x), {1, 1}).flatten(1)); }
  tnn::Sequential blocks;
  tnn::Linear head{64, 10};
};
TORCH_MODULE(Deep);

TEST(ModelMemory, OfADeepResidualNet) {
  expect_predicted([] { return Deep(); }, kImage, kClasses,
                   {{"x", torch::randn({8, 3, 32, 32})}, {"y", torch::randint(10, {8}, kLong)}});
}

// ---- constructors that load weights

struct LoadedImpl : tnn::Module {
  explicit LoadedImpl(const std::string& path) {
    register_module("body", body);
    torch::load(body, path);
    table = register_buffer("table", loaded_table(path));
  }
  static Tensor loaded_table(const std::string& path) {
    Tensor table;
    torch::load(table, path + ".table");
    return table;
  }
  Tensor forward(const Tensor& x) { return body->forward(x) + table; }
  tnn::Linear body{64, 64};
  Tensor table;
};
TORCH_MODULE(Loaded);

TEST(ModelMemory, OfAConstructorThatLoadsWeights) {
  const testing::TemporaryFolder folder;
  const auto path = (folder.path() / "body.pt").string();
  torch::save(tnn::Linear(64, 64), path);
  torch::save(torch::randn({64}), path + ".table");
  const Batch batch{{"x", torch::randn({256, 64})}};
  const auto loss = [](const Tensor& out, const Batch&) { return out.pow(2).mean(); };
  const auto loaded = estimate_memory([&] { return Loaded(path); }, kImage, loss, batch, {.device = at::kCPU});
  EXPECT_EQ(loaded.num_parameters, 64 * 64 + 64);
  expect_predicted([&] { return Loaded(path); }, kImage, loss, batch);
  // In the dtype of the run, as setup converts it.
  const auto narrow = estimate_memory([&] { return Loaded(path); }, kImage, loss, batch,
                                      {.precision = "bf16-true", .device = at::kCPU});
  EXPECT_LT(narrow.parameters, loaded.parameters);
}

TEST(ModelMemory, OfAModelThatWasMadeOutsideIsRefusedAndUnchanged) {
  tnn::Linear outside(8, 8);
  const auto weight = outside->weight.detach().clone();
  const auto line = error_of([&] {
    estimate_memory([&] { return outside; }, kImage, [](const Tensor& out, const Batch&) { return out.sum(); },
                    {{"x", torch::randn({4, 8})}});
  });
  EXPECT_THAT(line, HasSubstr("the parameters were made outside of the function"));
  EXPECT_TRUE(at::equal(outside->weight, weight));
}

// ---- what depends on values

struct MaskingImpl : tnn::Module {
  Tensor forward(const Tensor& x) { return x.masked_select(x > 0); }
};
LEVIN_MODULE(Masking);
struct MaskedNetImpl : tnn::Module {
  MaskedNetImpl() { masking = register_module("masking", Masking()); }
  Tensor forward(const Tensor& x) { return masking(x * scale); }
  Masking masking{nullptr};
  Tensor scale = register_parameter("scale", torch::ones({8}));
};
TORCH_MODULE(MaskedNet);

TEST(ModelMemory, RefusalsNameOperatorUnitAndWhatToWrite) {
  const Batch batch{{"x", torch::randn({4, 8})}};
  const auto line = error_of([&] {
    estimate_memory([] { return MaskedNet(); }, kImage, [](const Tensor& out, const Batch&) { return out.sum(); },
                    batch);
  });
  EXPECT_THAT(
      line, HasSubstr("[estimate_memory] the step uses aten::masked_select: the number of results depends on values"));
  EXPECT_THAT(line, HasSubstr("multiply by the mask"));
  EXPECT_THAT(line, HasSubstr("unit masking (Masking)"));
  const auto made = error_of([&] {
    estimate_memory(
        [] {
          tnn::Linear net(8, 8);
          if (net->weight.sum().item<double>() > 1e9) net->weight.zero_();
          return net;
        },
        kImage, [](const Tensor& out, const Batch&) { return out.sum(); }, batch);
  });
  EXPECT_THAT(made, HasSubstr("the constructor"));
  EXPECT_THAT(made, HasSubstr("_local_scalar_dense"));
}

}  // namespace
}  // namespace levin
