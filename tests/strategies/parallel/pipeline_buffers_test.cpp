// Buffers that change in training, in checkpoints of a model that is cut into stages.
#include <gtest/gtest.h>

#include "levin/nn/layers.h"
#include "levin/nn/unit.h"
#include "levin/testing/temporary_folder.h"
#include "tests/strategies/parallel/parallel_training.h"

namespace levin::testing {
namespace {

struct NormBlockImpl : torch::nn::Module {
  NormBlockImpl() {
    linear = register_module("linear", nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
  }
  Tensor forward(const Tensor& x) { return x + norm(linear(x)); }
  nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
LEVIN_MODULE(NormBlock);

/// Running statistics in the blocks and behind them.
struct NormNetImpl : torch::nn::Module {
  NormNetImpl() {
    stem = register_module("stem", nn::Linear(6, 6));
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module("block" + std::to_string(i), NormBlock()));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    head = register_module("head", nn::Linear(6, 2));
  }
  Tensor forward(const Tensor& x) {
    auto h = stem(x);
    for (auto& block : blocks) h = block(h);
    return head(norm(h));
  }
  nn::Linear stem{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  std::vector<NormBlock> blocks;
  nn::Linear head{nullptr};
};
TORCH_MODULE(NormNet);

NormNet make_net(int seed) {
  torch::manual_seed(seed);
  return {};
}

Subject subject_with(NormNet net) {
  return {"norms", net.ptr(), [net](const Tensor& x) mutable { return net(x).square().mean(); },
          [](int64_t step) {
            torch::manual_seed(100 + step);
            return torch::randn({8, 6}) * 2 + 1;
          }};
}

/// All tensors of a module after three steps, whole, on every rank; saves when `to` is there.
std::map<std::string, Tensor> trained_state(Collective& group, const StrategyChoice& choice,
                                            const std::filesystem::path& to) {
  auto net = make_net(1 + group.rank());
  Trainee trainee(group, choice, *net);
  const auto subject = subject_with(net);
  for (int step = 0; step < 3; ++step) {
    // Ranks of one pipeline see the same batches; one process makes the same micro-batches.
    const auto place = trainee.strategy().data_place();
    const auto own = subject.batch(step).chunk(place.size, 0)[static_cast<size_t>(place.rank)];
    if (group.size() > 1)
      run_batch(trainee, subject, own, 1);
    else
      for (const auto& part : own.chunk(2, 0)) run_batch(trainee, subject, part, 0.5);
  }
  auto* shards = trainee.strategy().shards();
  if (!to.empty()) save_checkpoint(to, {{"model", net.ptr()}}, {.world_size = group.size(), .shards = shards});
  std::map<std::string, Tensor> all;
  for (const auto& [name, value] :
       shards ? full_state_dict(*net, *shards, {.rank0_only = false}) : module_state_dict(*net))
    all[name] = value.to_tensor().detach().clone();
  return all;
}

void expect_equal(const std::map<std::string, Tensor>& got, const std::map<std::string, Tensor>& wanted,
                  const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (const auto& [name, tensor] : wanted) {
    ASSERT_EQ(got.at(name).sizes(), tensor.sizes()) << what << " " << name;
    EXPECT_TRUE(torch::allclose(got.at(name).to(at::kDouble), tensor.to(at::kDouble), 1e-5, 1e-6))
        << what << " " << name;
  }
}

TEST(PipelineBuffers, CheckpointsHaveThoseOfTheRankThatChangesThem) {
  const TemporaryFolder root;
  const auto wanted = trained_state(*one_rank(), "single_device", {});
  const std::map<std::string, StrategyChoice> choices{
      {"pipeline", PipelineOptions{.microbatches = 2}},
      {"zbv", PipelineOptions{.schedule = "zbv", .microbatches = 2}},
      {"model_parallel", ModelParallelOptions{.mesh = {.pp = 2}, .pipeline = {.microbatches = 2}}}};
  for (const auto& [name, choice] : choices) {
    const auto folder = root / name;
    run_ranks(2, [&, &name = name, &choice = choice](Collective& group) {
      expect_equal(trained_state(group, choice, folder), wanted, name + " gathered");
      // Each rank takes what it has of it.
      auto net = make_net(7);
      Trainee trainee(group, choice, *net);
      auto* shards = trainee.strategy().shards();
      load_checkpoint(folder, {{"model", net.ptr()}}, {.shards = shards});
      std::map<std::string, Tensor> all;
      for (const auto& [key, value] : full_state_dict(*net, *shards, {.rank0_only = false}))
        all[key] = value.to_tensor().detach().clone();
      expect_equal(all, wanted, name + " loaded by 2 ranks");
    });
    auto net = make_net(8);
    load_checkpoint(folder, {{"model", net.ptr()}}, {});
    std::map<std::string, Tensor> all;
    for (const auto& [key, value] : module_state_dict(*net)) all[key] = value.to_tensor();
    expect_equal(all, wanted, name + " loaded by one process");
  }
}

}  // namespace
}  // namespace levin::testing
