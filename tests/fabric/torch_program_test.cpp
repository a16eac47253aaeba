// What LibTorch programs do after setup without Fabric: under several ranks it is right, or one line that names the
// call.
#include <cmath>
#include <filesystem>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/probe.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

struct VaeImpl : torch::nn::Module {
  VaeImpl()
      : first(register_module("first", torch::nn::Linear(6, 8))),
        second(register_module("second", torch::nn::Linear(8, 6))) {}
  Tensor forward(const Tensor& x) { return decode(torch::tanh(first(x))); }
  Tensor decode(const Tensor& z) const { return const_cast<torch::nn::Linear&>(second)(z); }
  Tensor quiet(const Tensor& x) noexcept { return first(x); }
  Tensor twice(const Tensor& x) { return 2 * forward(x); }
  Tensor twice(const Tensor& x, const Tensor& y) { return forward(x) + forward(y); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Vae);

/// Rows of this rank.
Tensor rows_of(int rank, uint64_t seed = 1) {
  torch::manual_seed(seed * 100 + static_cast<uint64_t>(rank));
  return torch::randn({4, 6});
}

std::string numbers(const std::vector<Tensor>& tensors) {
  std::string text;
  for (const auto& tensor : tensors) text += detail::concat(tensor.to(at::kDouble).pow(2).sum().item<double>(), " ");
  return text;
}

/// The answers of the ranks of a probe.
std::vector<std::string> ranks_of(const std::string& probe, const std::string& strategy, int world = 2) {
  const testing::TemporaryFolder folder;
  EXPECT_EQ(testing::launch_probe(probe, world, {folder.path().string(), strategy}), 0) << strategy;
  return testing::read_answers(folder.path(), world);
}

struct Setting {
  explicit Setting(const std::vector<std::string>& arguments, const std::string& precision = "32-true")
      : folder(arguments.at(0)), fabric({.accelerator = "cpu", .strategy = arguments.at(1), .precision = precision}) {
    at::set_num_threads(1);
    fabric.launch();
    torch::manual_seed(3);
    model = Vae();
  }
  std::filesystem::path folder;
  Fabric fabric;
  Vae model{nullptr};
};

LEVIN_PROBE(called_past_setup) {
  Setting s(arguments);
  auto net = s.fabric.setup(s.model);
  const auto x = rows_of(s.fabric.global_rank());
  const auto right = net(x).pow(2).mean();
  s.fabric.backward(right);
  std::string text = error_of([&] { s.fabric.backward(net->forward(x).pow(2).mean()); });
  text += "\n" + error_of([&] { s.fabric.backward(s.model(x).pow(2).mean()); });
  // A call that is in the loss makes what stands beside it right.
  text += "\n" + error_of([&] { s.fabric.backward(net(x).pow(2).mean() + net->second->weight.pow(2).sum()); });
  testing::write_answer(s.folder, text);
}

TEST(TorchProgram, ForwardPastSetupIsRefusedUnderDdp) {
  for (const auto& answer : ranks_of("called_past_setup", "ddp"))
    EXPECT_EQ(answer,
              "[fabric.backward] the loss uses \"second.bias\" of VaeImpl, and no call of the module that setup "
              "returned: call that one, net(x) or net.call(&Net::method, x), not net->forward(x) or the module that "
              "setup was given\n"
              "[fabric.backward] the loss uses \"second.bias\" of VaeImpl, and no call of the module that setup "
              "returned: call that one, net(x) or net.call(&Net::method, x), not net->forward(x) or the module that "
              "setup was given\nno error");
}

LEVIN_PROBE(forward_of_shards) {
  char name[] = "program";
  char* words[] = {name};
  const auto line = testing::captured_stderr([&] {
    EXPECT_EQ(run_main(1, words,
                       [&](Args&) {
                         Setting s(arguments);
                         auto net = s.fabric.setup(s.model);
                         (void)net->forward(rows_of(0));
                       }),
              1);
  });
  testing::write_answer(arguments.at(0), line);
}

TEST(TorchProgram, ForwardPastSetupOfShardsIsExplained) {
  const testing::TemporaryFolder folder;
  (void)testing::launch_probe("forward_of_shards", 2, {folder.path().string(), "fsdp"});
  EXPECT_THAT(testing::read_answers(folder.path(), 2)[0],
              HasSubstr("under strategy \"fsdp\" parameters are shards outside of the module that setup returned: call "
                        "net(x), not net->forward(x))"));
}

TEST(TorchProgram, ForwardPastSetupIsRefusedInMixedPrecision) {
  Fabric fabric({.accelerator = "cpu", .precision = "bf16-mixed"});
  Vae model;
  auto net = fabric.setup(model);
  const auto x = rows_of(0);
  EXPECT_THAT(error_of([&] { fabric.backward(net->forward(x).mean()); }), HasSubstr("call that one, net(x)"));
  EXPECT_EQ(error_of([&] { fabric.backward(net(x).mean()); }), "no error");
  // The graph of an earlier call that is still there does not make it right.
  const auto before = net(x).mean();
  fabric.backward(before);
  EXPECT_THAT(error_of([&] { fabric.backward(model->forward(x).mean()); }), HasSubstr("call that one, net(x)"));
  // One process in float32 has nothing to do around a call.
  Fabric plain({.accelerator = "cpu"});
  auto same = plain.setup(Vae());
  EXPECT_EQ(error_of([&] { plain.backward(same->forward(x).mean()); }), "no error");
}

TEST(TorchProgram, ModulesMayShareParameters) {
  Fabric fabric({.accelerator = "cpu", .precision = "bf16-mixed"});
  Vae model;
  auto net = fabric.setup(model);
  torch::nn::Sequential tail(model->second);
  auto other = fabric.setup(tail);
  EXPECT_EQ(error_of([&] { fabric.backward(net(rows_of(0)).mean()); }), "no error");
}

LEVIN_PROBE(clips_and_clears_by_torch) {
  Setting s(arguments);
  torch::optim::Adam adam(s.model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-3));
  auto [net, optimizer] = s.fabric.setup(s.model, adam);
  std::string text;
  for (uint64_t step = 1; step < 5; ++step) {
    adam.zero_grad();
    s.fabric.backward(net(rows_of(s.fabric.global_rank(), step)).pow(2).mean());
    const auto norm = torch::nn::utils::clip_grad_norm_(s.model->parameters(), 0.05);
    text += detail::concat(std::round(norm * 1e4) / 1e4, " ");
    adam.step();
    if (step == 2) adam.zero_grad(/*set_to_none=*/false);
  }
  auto params = s.model->parameters();
  text += detail::concat(torch::nn::utils::clip_grad_norm_(params, 1.0) > 0);
  const auto path = s.folder / "full";
  s.fabric.save(path.string(), {{"model", net}}, SaveOptions{.full = true});
  const auto saved = load_checkpoint(path);
  for (const auto& [name, value] : saved.at("model").to_dict())
    text += detail::concat(" ", std::round(value.to_tensor().to(at::kDouble).sum().item<double>() * 1e4) / 1e4);
  testing::write_answer(s.folder, text);
}

TEST(TorchProgram, ClipsByTheFullNormAndClearsGradients) {
  const auto wanted = ranks_of("clips_and_clears_by_torch", "ddp");
  EXPECT_EQ(wanted[0], wanted[1]);
  for (const char* strategy : {"fsdp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3", "colossalai"})
    for (const auto& answer : ranks_of("clips_and_clears_by_torch", strategy)) EXPECT_EQ(answer, wanted[0]) << strategy;
}

LEVIN_PROBE(freezes_later) {
  Setting s(arguments);
  auto net = s.fabric.setup(s.model);
  s.fabric.backward(net(rows_of(0)).pow(2).mean());
  s.model->zero_grad();
  for (auto& parameter : s.model->first->parameters()) parameter.requires_grad_(false);
  testing::write_answer(s.folder, error_of([&] { s.fabric.backward(net(rows_of(0)).pow(2).mean()); }));
}

TEST(TorchProgram, FreezingAfterSetupIsNamed) {
  const auto answer = ranks_of("freezes_later", "ddp")[0];
  EXPECT_THAT(answer, HasSubstr("parameters \"first.weight\", \"first.bias\" frozen after setup on "));
  EXPECT_THAT(answer, HasSubstr("freeze before fabric.setup"));
  EXPECT_EQ(ranks_of("freezes_later", "ddp_find_unused_parameters_true")[0], "no error");
  EXPECT_EQ(ranks_of("freezes_later", "fsdp")[0], "no error");
}

LEVIN_PROBE(thaws_later) {
  Setting s(arguments);
  for (auto& parameter : s.model->first->parameters()) parameter.requires_grad_(false);
  auto net = s.fabric.setup(s.model);
  s.fabric.backward(net(rows_of(s.fabric.global_rank())).pow(2).mean());
  for (auto& parameter : s.model->first->parameters()) parameter.requires_grad_(true);
  for (int micro = 0; micro < 2; ++micro) {
    const auto quiet = s.fabric.no_backward_sync(net, micro == 0);
    s.fabric.backward(net(rows_of(s.fabric.global_rank(), 2)).pow(2).mean());
  }
  std::vector<Tensor> gradients;
  for (const auto& parameter : s.model->parameters()) gradients.push_back(parameter.grad());
  testing::write_answer(s.folder, numbers(gradients));
}

TEST(TorchProgram, ThawedParametersAreAveraged) {
  const auto answers = ranks_of("thaws_later", "ddp");
  EXPECT_EQ(answers[0], answers[1]);
}

struct Digits : torch::data::datasets::Dataset<Digits> {
  torch::data::Example<> get(size_t index) override {
    return {at::full({2}, static_cast<double>(index)), at::scalar_tensor(static_cast<int64_t>(index), at::kLong)};
  }
  std::optional<size_t> size() const override { return 10; }
};

LEVIN_PROBE(torch_loader) {
  Setting s(arguments);
  const auto data = Digits().map(torch::data::transforms::Stack<>());
  auto of_torch = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(data, 2);
  std::string text = error_of([&] { (void)s.fabric.setup_dataloaders(of_torch); });
  auto kept = s.fabric.setup_dataloaders(of_torch, {.use_distributed_sampler = false});
  for (const auto& batch : kept) text += detail::concat(" ", batch.target.sum().item<int64_t>());
  text += "\n";
  auto split = torch::data::make_data_loader(
      data,
      torch::data::samplers::DistributedSequentialSampler(10, static_cast<size_t>(s.fabric.world_size()),
                                                          static_cast<size_t>(s.fabric.global_rank())),
      torch::data::DataLoaderOptions(2));
  auto own = s.fabric.setup_dataloaders(split);
  for (const auto& batch : own) text += detail::concat(" ", batch.target.sum().item<int64_t>());
  text += "\n";
  auto ours = s.fabric.setup_dataloaders(make_loader(data, {.batch_size = 2, .num_workers = 2}));
  for (const auto& batch : ours) text += detail::concat(" ", batch.target.sum().item<int64_t>());
  testing::write_answer(s.folder, text);
}

TEST(TorchProgram, TorchLoadersAreSplitOrRefused) {
  const auto answers = ranks_of("torch_loader", "ddp");
  const std::string refused =
      "[fabric.setup_dataloaders] torch's data loader would give all of its batches to every one of 2 ranks; write "
      "levin::make_loader(dataset, {.batch_size = ..., .shuffle = true}) for it, give it a "
      "torch::data::samplers::DistributedRandomSampler(size, fabric.world_size(), fabric.global_rank()), or pass "
      "{.use_distributed_sampler = false} 1 5 9 13 17\n";
  EXPECT_EQ(answers[0], refused + " 1 5 4\n 2 10 8");
  EXPECT_EQ(answers[1], refused + " 11 15 9\n 4 12 9");
}

/// Four chunks of two or three numbers.
struct Chunks : torch::data::datasets::ChunkDataReader<torch::data::Example<>> {
  using BatchType = ChunkType;
  ChunkType read_chunk(size_t chunk) override {
    ChunkType examples;
    for (size_t i = 0; i < 2 + chunk % 2; ++i)
      examples.emplace_back(at::full({2}, static_cast<double>(chunk)),
                            at::scalar_tensor(static_cast<int64_t>(10 * chunk + i), at::kLong));
    return examples;
  }
  size_t chunk_count() override { return 4; }
  void reset() override {}
};

/// A dataset of torch that decides itself what comes next.
struct Countdown : torch::data::datasets::StatefulDataset<Countdown, torch::data::Example<>> {
  std::optional<torch::data::Example<>> get_batch(size_t size) override {
    if (left == 0) return std::nullopt;
    --left;
    return torch::data::Example<>(at::zeros({static_cast<int64_t>(size), 1}), at::full({1}, left));
  }
  void reset() override { left = 3; }
  std::optional<size_t> size() const override { return 3; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
  int64_t left = 3;
};

template <class ChunkSampler>
auto chunk_loader(const ChunkSampler& sampler) {
  namespace data = torch::data;
  auto dataset = data::datasets::make_shared_dataset<
      data::datasets::ChunkDataset<Chunks, ChunkSampler, data::samplers::SequentialSampler>>(
      Chunks(), sampler, data::samplers::SequentialSampler(0), data::datasets::ChunkDatasetOptions(1, 2));
  return data::make_data_loader(dataset.map(data::transforms::Stack<>()), data::DataLoaderOptions(2).workers(0));
}

template <class Loader>
std::string targets_of(Loader& loader) {
  std::string text;
  for (const auto& batch : loader) text += detail::concat(" ", batch.target.sum().template item<int64_t>());
  return text;
}

LEVIN_PROBE(stateful_loader) {
  Setting s(arguments);
  namespace samplers = torch::data::samplers;
  const auto world = static_cast<size_t>(s.fabric.world_size()), rank = static_cast<size_t>(s.fabric.global_rank());
  std::string text;
  const auto said = testing::captured_stderr([&] {
    auto same = chunk_loader(samplers::SequentialSampler(4));
    text += error_of([&] { (void)s.fabric.setup_dataloaders(same); });
    auto own = s.fabric.setup_dataloaders(chunk_loader(samplers::DistributedSequentialSampler(4, world, rank)));
    text += "\n" + targets_of(own);
    auto countdown = torch::data::make_data_loader(Countdown(), torch::data::DataLoaderOptions(2).workers(0));
    text += "\n" + error_of([&] { (void)s.fabric.setup_dataloaders(countdown); });
    auto kept = s.fabric.setup_dataloaders(countdown, {.use_distributed_sampler = false});
    text += "\n" + targets_of(kept);
  });
  testing::write_answer(s.folder, text + "\n" + said);
}

TEST(TorchProgram, StatefulLoadersAreSplitOrRefused) {
  const auto answers = ranks_of("stateful_loader", "ddp");
  const std::string refused =
      "[fabric.setup_dataloaders] the dataset of this torch data loader decides itself what comes next, and would give "
      "the same to every one of 2 ranks; give a ChunkDataset a torch::data::samplers::DistributedRandomSampler(chunks, "
      "fabric.world_size(), fabric.global_rank()) as its chunk sampler; where a dataset of your own takes its part by "
      "fabric.global_rank(), pass {.use_distributed_sampler = false}\n";
  // Chunks 0 and 1, 2 and 3: 0 1, 10 11 12, and 20 21, 30 31 32. Nothing is said of what is split already.
  EXPECT_EQ(answers[0], refused + " 1 21 12\n" + refused + " 2 1 0\n");
  EXPECT_EQ(answers[1], refused + " 41 61 32\n" + refused + " 2 1 0\n");
}

TEST(TorchProgram, LoadersOfTorchDatasetsResume) {
  Fabric fabric({.accelerator = "cpu"});
  const auto tensors = torch::data::datasets::TensorDataset(at::arange(12).view({6, 2}));
  auto loader = fabric.setup_dataloaders(make_loader(tensors, {.batch_size = 2, .shuffle = true, .seed = 3}));
  const auto sum_of = [](const auto& batch) {
    int64_t sum = 0;
    for (const auto& example : batch) sum = 100 * sum + example.data.sum().template item<int64_t>();
    return sum;
  };
  std::vector<int64_t> whole, rest;
  StateDict saved;
  for (const auto& batch : loader) {
    whole.push_back(sum_of(batch));
    if (whole.size() == 1) saved = loader.state_dict();
  }
  auto again = fabric.setup_dataloaders(make_loader(tensors, {.batch_size = 2, .shuffle = true, .seed = 3}));
  State state{{"loader", again}};
  again.load_state_dict(saved);
  for (const auto& batch : again) rest.push_back(sum_of(batch));
  ASSERT_EQ(whole.size(), 3u);
  EXPECT_EQ(rest, (std::vector<int64_t>{whole[1], whole[2]}));
}

/// The model after three steps, each rank with rows of its own: all rows are the same on any number of ranks. The
/// loss is a mean, or a sum that is made the sum of all ranks.
template <class Make>
std::vector<Tensor> trained_on_rows(const std::vector<std::string>& arguments, Make make, bool sync_batchnorm,
                                    bool sum = false) {
  Fabric fabric(
      {.accelerator = "cpu", .strategy = arguments.at(1), .precision = "64-true", .sync_batchnorm = sync_batchnorm});
  at::set_num_threads(1);
  fabric.launch();
  torch::manual_seed(3);
  auto model = make();
  torch::optim::SGD sgd(unique_parameters(*model), torch::optim::SGDOptions(0.1));
  auto [net, optimizer] = fabric.setup(model, sgd);
  for (int step = 0; step < 3; ++step) {
    const auto mine = torch::randn({12, 6}, at::kDouble).slice(0, fabric.global_rank(), 12, fabric.world_size());
    const auto wrong = net(mine).pow(2);
    if (sum)
      fabric.backward(wrong.sum() / 50 * fabric.world_size());
    else
      fabric.backward(wrong.mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto path = (std::filesystem::path(arguments.at(0)) / "trained").string();
  fabric.save(path, {{"model", net}}, SaveOptions{.full = true});
  const auto saved = load_checkpoint(path);
  std::vector<Tensor> all;
  for (const auto& [name, value] : saved.at("model").to_dict()) all.push_back(value.to_tensor());
  return all;
}

/// Ten decimals of every tensor.
std::string rounded(const std::vector<Tensor>& tensors) {
  std::string text;
  for (const auto& tensor : tensors)
    text += detail::concat(std::llround(tensor.to(at::kDouble).pow(2).sum().item<double>() * 1e10), " ");
  return text;
}

LEVIN_PROBE(normalizes_batches) {
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(6, 5), torch::nn::BatchNorm1d(5), torch::nn::Linear(5, 2));
  };
  testing::write_answer(arguments.at(0), rounded(trained_on_rows(arguments, make, true)) + "\n" +
                                             rounded(trained_on_rows(arguments, make, false)));
}

TEST(TorchProgram, BatchNormIsThatOfAllRanks) {
  const auto halves = [](const std::string& text) {
    const auto end = text.find('\n');
    return std::pair(text.substr(0, end), text.substr(end + 1));
  };
  const auto alone = halves(ranks_of("normalizes_batches", "auto", 1)[0]);
  EXPECT_EQ(alone.first, alone.second);
  for (const char* strategy : {"ddp", "fsdp"}) {
    const auto ranks = halves(ranks_of("normalizes_batches", strategy)[0]);
    EXPECT_EQ(ranks.first, alone.first) << strategy;
    EXPECT_NE(ranks.second, alone.second) << strategy;
  }
}

struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : in(register_module("in", torch::nn::Linear(6, 5))),
        out(register_module("out", torch::nn::Linear(torch::nn::LinearOptions(6, 5).bias(false)))) {
    tie(*this, out->weight, in->weight);
  }
  Tensor forward(const Tensor& x) { return in(x)*out(x); }
  torch::nn::Linear in, out;
};
TORCH_MODULE(Tied);

LEVIN_PROBE(sums_losses_of_tied_weights) {
  testing::write_answer(arguments.at(0), rounded(trained_on_rows(
                                             arguments, [] { return Tied(); }, false, true)));
}

TEST(TorchProgram, TiedWeightsAndSummedLossesEqualOneProcess) {
  const auto alone = ranks_of("sums_losses_of_tied_weights", "auto", 1)[0];
  for (const char* strategy : {"ddp", "fsdp", "deepspeed_stage_2"})
    EXPECT_EQ(ranks_of("sums_losses_of_tied_weights", strategy)[0], alone) << strategy;
}

LEVIN_PROBE(resumes_generators) {
  Setting s(arguments);
  auto net = s.fabric.setup(s.model);
  auto own = at::make_generator<at::CPUGeneratorImpl>(5);
  auto random = s.fabric.generators({own});
  torch::manual_seed(static_cast<uint64_t>(10 + s.fabric.global_rank()));
  (void)torch::rand({3});
  (void)torch::rand({3}, own);
  const State state{{"model", net}, {"random", random}};
  const auto path = (s.folder / "state").string();
  s.fabric.save(path, state);
  const auto drawn = at::cat({torch::rand({4}), torch::rand({4}, own)});
  torch::manual_seed(99);
  own.set_current_seed(98);
  s.fabric.load(path, state);
  EXPECT_TRUE(at::equal(drawn, at::cat({torch::rand({4}), torch::rand({4}, own)})));
  testing::write_answer(s.folder, numbers({drawn}));
}

TEST(TorchProgram, GeneratorsOfEveryRankAreState) {
  for (const char* strategy : {"ddp", "fsdp"}) {
    const auto answers = ranks_of("resumes_generators", strategy);
    EXPECT_NE(answers[0], answers[1]) << strategy;
  }
  ranks_of("resumes_generators", "auto", 1);
}

TEST(TorchProgram, CallsMethodsOfEveryKind) {
  Fabric fabric({.accelerator = "cpu", .precision = "bf16-mixed"});
  auto net = fabric.setup(Vae());
  const auto x = torch::ones({2, 6}), z = torch::ones({2, 8});
  EXPECT_EQ(net.call(&VaeImpl::decode, z).scalar_type(), at::kFloat);
  EXPECT_EQ(net.call(&VaeImpl::quiet, x).sizes(), at::IntArrayRef({2, 8}));
  const auto of_overload = net.call([](VaeImpl& module, const Tensor& a) { return module.twice(a, a); }, x);
  EXPECT_TRUE(at::equal(of_overload, 2 * net(x)));
}

TEST(TorchProgram, TakesOptimizersInUniquePointers) {
  Fabric fabric({});
  Vae model;
  auto adam = std::make_unique<torch::optim::Adam>(model->parameters(), 1e-2);
  auto [net, mine] = fabric.setup(model, adam);
  EXPECT_EQ(mine.lr(), 1e-2);
  Vae other;
  auto [net2, moved] = fabric.setup(other, std::make_unique<torch::optim::SGD>(other->parameters(), 0.5));
  EXPECT_EQ(moved.lr(), 0.5);
}

/// Functions of a program that take what setup returns.
void train(FabricModule<Vae>& net, Optimizer& optimizer, Fabric& fabric) {
  fabric.backward(net(rows_of(0)).pow(2).mean());
  optimizer.step();
}

TEST(TorchProgram, FunctionsTakeWhatSetupReturns) {
  Fabric fabric({.accelerator = "cpu"});
  Vae model;
  auto [net, optimizer] = fabric.setup(model, torch::optim::SGD(model->parameters(), 0.1));
  const auto before = model->first->weight.detach().clone();
  train(net, optimizer, fabric);
  EXPECT_FALSE(at::equal(before, model->first->weight));
}

}  // namespace
}  // namespace levin
