// torch::save and torch::load of a LibTorch program, before and after fabric.setup, under every strategy.
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/error_of.h"
#include "levin/testing/probe.h"
#include "levin/testing/temporary_folder.h"

namespace levin::torch_files {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : model(register_module("model", torch::nn::Sequential(torch::nn::Linear(6, 7), torch::nn::Tanh()))),
        norm(register_module("norm", torch::nn::BatchNorm1d(7))),
        last(register_module("last", torch::nn::Linear(7, 3))) {}
  // Batch statistics differ between one process and its ranks: the running ones are used, and loaded.
  Tensor forward(const Tensor& x) {
    norm->eval();
    return last(norm(model->forward(x)));
  }
  torch::nn::Sequential model;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};
TORCH_MODULE(Net);

constexpr int64_t kRows = 12;

Net make_net(uint64_t seed) {
  torch::manual_seed(seed);
  Net net;
  const at::NoGradGuard no_grad;
  for (auto& buffer : net->norm->buffers())
    if (buffer.is_floating_point()) buffer.copy_(torch::rand_like(buffer) + 1);
  return net;
}

/// The rows of a rank of the batch of one step.
Tensor rows_of(int step, int rank, int world) {
  torch::manual_seed(50 + static_cast<uint64_t>(step));
  const auto count = kRows / world;
  return torch::randn({kRows, 6}).slice(0, rank * count, (rank + 1) * count);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Net& net) {
  const auto params = net->parameters();
  if (name == "sgd") return std::make_unique<torch::optim::SGD>(params, torch::optim::SGDOptions(0.1).momentum(0.9));
  if (name == "rmsprop") return std::make_unique<torch::optim::RMSprop>(params, torch::optim::RMSpropOptions(0.01));
  if (name == "adagrad") return std::make_unique<torch::optim::Adagrad>(params, torch::optim::AdagradOptions(0.05));
  return std::make_unique<torch::optim::Adam>(params, torch::optim::AdamOptions(0.01).eps(1e-4));
}

/// The program as its owner has it.
void train_plain(Net& net, torch::optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    net->forward(rows_of(step, 0, 1)).pow(2).mean().backward();
    optimizer.step();
  }
}

std::map<std::string, Tensor> tensors_of(const Net& net) {
  std::map<std::string, Tensor> all;
  for (const auto& item : net->named_parameters()) all.emplace(item.key(), item.value().detach());
  for (const auto& item : net->named_buffers()) all.emplace(item.key(), item.value());
  return all;
}

/// The largest difference of the tensors of a module to those of one that a file has.
double distance(const Net& net, const fs::path& path) {
  Net other;
  torch::load(other, path.string());
  double most = 0;
  const auto theirs = tensors_of(other);
  for (const auto& [name, tensor] : tensors_of(net)) {
    EXPECT_EQ(tensor.sizes(), theirs.at(name).sizes()) << name;
    most = std::max(most, (tensor - theirs.at(name)).to(at::kDouble).abs().max().item<double>());
  }
  return most;
}

/// The states of two files of torch::save(optimizer), compared by the bits.
void expect_same_states(const std::string& kind, const fs::path& a, const fs::path& b) {
  StateDict states[2];
  int next = 0;
  for (const auto& path : {a, b}) {
    Net net;
    const auto optimizer = make_optimizer(kind, net);
    torch::load(*optimizer, path.string());
    states[next++] = optim::adapt(*optimizer).state_dict().at("state").to_dict();
  }
  ASSERT_EQ(states[0].size(), states[1].size());
  for (const auto& [number, state] : states[0])
    for (const auto& [name, value] : state.to_dict())
      EXPECT_TRUE(value.to_tensor().equal(states[1].at(number).to_dict().at(name).to_tensor()))
          << number << " " << name;
}

LEVIN_PROBE(resumes_files) {
  const fs::path folder = arguments.at(0);
  const auto& kind = arguments.at(2);
  at::set_num_threads(1);
  Fabric fabric({.accelerator = "cpu", .strategy = arguments.at(1)});
  fabric.launch();
  auto model = make_net(9);  // others than those that are loaded
  auto torch_optimizer = make_optimizer(kind, model);
  auto [net, optimizer] = fabric.setup(model, *torch_optimizer);
  const auto first_parameter = model->parameters().front();
  torch::load(model, (folder / "net.pt").string());
  torch::load(*torch_optimizer, (folder / "optimizer.pt").string());
  EXPECT_TRUE(first_parameter.is_same(model->parameters().front()));
  torch::save(model, (folder / "net_again.pt").string());
  torch::save(*torch_optimizer, (folder / "optimizer_again.pt").string());
  for (int step = 3; step < 6; ++step) {
    torch_optimizer->zero_grad();
    fabric.backward(net(rows_of(step, fabric.global_rank(), fabric.world_size())).pow(2).mean());
    torch_optimizer->step();
    if (step == 4) {  // what setup returned, and a stream of every rank
      std::stringstream of_net, of_optimizer;
      torch::save(net, of_net);
      torch::save(optimizer, of_optimizer);
      for (auto& parameter : model->parameters()) parameter.detach().zero_();
      torch::load(net, of_net);
      torch::load(optimizer, of_optimizer, torch::kCPU);
    }
  }
  torch::save(net, (folder / "net_end.pt").string());
  fabric.barrier();
}

struct Run {
  const char* strategy;
  int world;
  const char* optimizer = "adam";
};

/// Some of all strategies on 1, 2 and 3 ranks; LEVIN_ALL_TORCH_FILES=1: all of them, with every optimizer.
std::vector<Run> runs() {
  if (!std::getenv("LEVIN_ALL_TORCH_FILES"))
    return {{"auto", 1, "rmsprop"},          {"ddp", 2},
            {"fsdp", 2, "adagrad"},          {"fsdp", 3},
            {"deepspeed_stage_1", 2, "sgd"}, {"deepspeed_stage_2", 3},
            {"deepspeed_stage_3", 2},        {"deepspeed_stage_3_offload", 2},
            {"fsdp_cpu_offload", 2, "sgd"},  {"colossalai", 2}};
  std::vector<Run> all;
  for (const char* strategy : {"auto", "ddp", "ddp_find_unused_parameters_true", "fsdp", "fsdp_cpu_offload",
                               "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3",
                               "deepspeed_stage_2_offload", "deepspeed_stage_3_offload", "colossalai"})
    for (const int world : {1, 2, 3})
      for (const char* optimizer : {"adam", "sgd", "rmsprop", "adagrad"}) all.push_back({strategy, world, optimizer});
  return all;
}

TEST(TorchFiles, ProgramsResumeUnderEveryStrategy) {
  const testing::TemporaryFolder folder;
  const auto path = [&](const char* name) { return folder.path() / name; };
  for (const auto& [strategy, world, kind] : runs()) {
    SCOPED_TRACE(detail::concat(strategy, " x ", world, " ", kind));
    auto plain = make_net(4);
    const auto optimizer = make_optimizer(kind, plain);
    train_plain(plain, *optimizer, 0, 3);
    torch::save(plain, path("net.pt").string());
    torch::save(*optimizer, path("optimizer.pt").string());
    ASSERT_EQ(testing::launch_probe("resumes_files", world, {folder.path().string(), strategy, kind}), 0);
    EXPECT_EQ(distance(plain, path("net_again.pt")), 0);
    expect_same_states(kind, path("optimizer.pt"), path("optimizer_again.pt"));
    train_plain(plain, *optimizer, 3, 6);
    EXPECT_LE(distance(plain, path("net_end.pt")), world == 1 ? 0 : 2e-6);
  }
}

LEVIN_PROBE(refuses_files) {
  const fs::path folder = arguments.at(0);
  Fabric fabric({.accelerator = "cpu", .strategy = arguments.at(1)});
  fabric.launch();
  auto model = make_net(4);
  torch::nn::Linear other(2, 2);
  torch::optim::Adam adam(model->parameters(), 0.1), late(std::vector<Tensor>{torch::ones({2})}, 0.1);
  auto [net, optimizer] = fabric.setup(model, adam);
  const auto rank = std::to_string(fabric.global_rank());
  const auto own = (folder / ("own" + rank + ".pt")).string(), shared = (folder / "shared.pt").string();
  std::vector<std::string> lines;
  lines.push_back(error_of([&] { torch::save(model, own); }));
  lines.push_back(error_of([&] { torch::save(model->last->clone(), own); }));
  lines.push_back(error_of([&] { torch::save(model->last->weight, own); }));
  lines.push_back(error_of([&] { torch::save(model->parameters(), own); }));
  torch::optim::Adam second(model->parameters(), 0.1);
  lines.push_back(error_of([&] { torch::save(second, own); }));
  torch::save(adam, shared);
  lines.push_back(error_of([&] { torch::load(second, shared); }));
  lines.push_back(error_of([&] { torch::load(model, shared); }));
  lines.push_back(error_of([&] { torch::load(model, (folder / "none.pt").string()); }));
  // What was not set up is torch's.
  lines.push_back(error_of([&] {
    torch::save(other, own);
    torch::load(other, own);
    torch::save(late, own);
    torch::save(torch::ones({2}), own);
    Tensor tensor;
    torch::load(tensor, own);
    EXPECT_TRUE(tensor.equal(torch::ones({2})));
  }));
  testing::write_answer(folder, fmt::format("{}", fmt::join(lines, "\n")));
}

TEST(TorchFiles, AreNeverSilentShards) {
  const testing::TemporaryFolder folder;
  ASSERT_EQ(testing::launch_probe("refuses_files", 2, {folder.path().string(), "fsdp"}), 0);
  for (const auto& answer : testing::read_answers(folder.path(), 2)) {
    std::vector<std::string> lines;
    std::istringstream text(answer);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    ASSERT_EQ(lines.size(), 9u) << answer;
    EXPECT_THAT(lines[0], HasSubstr("under strategy \"fsdp\" all ranks write one file together, and they name"));
    EXPECT_THAT(lines[1], HasSubstr("a copy that clone() made after fabric.setup; clone the module before setup"));
    EXPECT_THAT(lines[2],
                HasSubstr("this rank's shard of [3, 7] under strategy \"fsdp\"; write torch::save(net, path)"));
    EXPECT_THAT(lines[3], HasSubstr("write torch::save(net, path), which every rank calls"));
    EXPECT_THAT(lines[4], HasSubstr("was not set up; pass it to fabric.setup"));
    EXPECT_THAT(lines[5], HasSubstr("was not set up; pass it to fabric.setup"));
    EXPECT_THAT(lines[6], HasSubstr("missing"));
    EXPECT_THAT(lines[7], HasSubstr("does not exist"));
    EXPECT_EQ(lines[8], "no error");
  }
}

TEST(TorchFiles, KeepTheDtypeOfTheRun) {
  const testing::TemporaryFolder folder;
  const auto path = (folder.path() / "net.pt").string();
  torch::save(make_net(4), path);
  Fabric fabric({.accelerator = "cpu", .precision = "bf16-true"});
  auto net = fabric.setup(make_net(5));
  torch::load(net, path);
  EXPECT_EQ(net->last->weight.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(net->last->weight.equal(make_net(4)->last->weight.to(at::kBFloat16)));
}

}  // namespace
}  // namespace levin::torch_files
