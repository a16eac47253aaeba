#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/testing/error_of.h"
#include "tests/strategies/training.h"

namespace levin::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

struct Case {
  const char* name;
  StrategyChoice choice;
  int world = 2;
  bool adamw = false;
  int accumulate = 1;
  bool norm = false;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

std::unique_ptr<torch::optim::Optimizer> optimizer_for(const std::vector<Tensor>& parameters, bool adamw) {
  if (adamw) return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// 20 steps on the rows of one rank; the whole batch when the world is one.
std::vector<Tensor> train(Collective& group, const Case& c, const StrategyChoice& choice) {
  torch::manual_seed(100 + group.rank());  // other values on other ranks: rank 0's must win
  SmallNet net(c.norm);
  Trainee trainee(group, choice, *net);
  auto optimizer = optimizer_for(net->parameters(), c.adamw);
  constexpr int64_t kRows = 24;
  for (int step = 0; step < 20; ++step) {
    for (int micro = 0; micro < c.accumulate; ++micro) {
      const auto [x, y] = boring_data(kRows, 32, static_cast<uint64_t>(1000 + step * 10 + micro));
      trainee.set_sync(micro + 1 == c.accumulate);
      const auto output = trainee.forward([&, x = x] { return net(shard_of(x, group.rank(), group.size())); });
      trainee.backward(mse(output, shard_of(y, group.rank(), group.size())) / c.accumulate);
    }
    optimizer->step();
    clear_grads(net->parameters());
  }
  auto result = values(net->parameters());
  for (const auto& buffer : net->buffers())
    if (buffer.is_floating_point()) result.push_back(buffer.clone());
  return result;
}

class DdpEquality : public ::testing::TestWithParam<Case> {};

TEST_P(DdpEquality, EqualsOneProcessOnTheGlobalBatch) {
  const auto& c = GetParam();
  const auto one = run_ranks(1, [&](Collective& group) { return train(group, c, "single_device"); });
  const auto many = run_ranks(c.world, [&](Collective& group) { return train(group, c, c.choice); });
  for (const auto& rank : many) {
    EXPECT_LT(max_difference(rank.tensors, one[0].tensors), 1e-5);
    EXPECT_EQ(max_difference(rank.tensors, many[0].tensors), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ddp, DdpEquality,
    ::testing::Values(Case{"sgd", "ddp"}, Case{"adamw", "ddp", 2, true}, Case{"three_ranks", "ddp", 3, true},
                      Case{"four_ranks", "ddp", 4, true},
                      Case{"three_ranks_find_unused", "ddp_find_unused_parameters_true", 3},
                      Case{"three_ranks_static_graph", "ddp_static_graph", 3, false, 2},
                      Case{"accumulation", "ddp", 2, true, 4}, Case{"four_ranks_accumulation", "ddp", 4, false, 4},
                      Case{"find_unused", "ddp_find_unused_parameters_true"}, Case{"static_graph", "ddp_static_graph"},
                      Case{"static_graph_accumulation", "ddp_static_graph", 2, false, 4},
                      Case{"no_bucket_view", DdpOptions{.gradient_as_bucket_view = false}},
                      Case{"small_buckets", DdpOptions{.bucket_cap_mb = 0.0005}, 2, false, 2},
                      Case{"sync_batchnorm", DdpOptions{.sync_batchnorm = true}, 4, false, 1, true},
                      Case{"powersgd_full_rank", DdpOptions{.comm_hook = "powersgd",
                                                            .powersgd_rank = 64,
                                                            .powersgd_start_iter = 2,
                                                            .powersgd_min_compression_rate = 1e-6}}),
    [](const auto& instance) { return instance.param.name; });

TEST(Ddp, GradientsAreTheMeanOfLocalOnesBitByBit) {
  run_ranks(2, [](Collective& group) {
    torch::manual_seed(0);
    SmallNet net, plain;
    auto parameters = net->parameters(), references = plain->parameters();
    {
      torch::NoGradGuard no_grad;
      for (size_t i = 0; i < parameters.size(); ++i) references[i].copy_(parameters[i]);
    }
    Trainee trainee(group, "ddp", *net);
    for (int step = 0; step < 3; ++step) {
      const auto [x, y] = boring_data(8, 32, static_cast<uint64_t>(10 * step + group.rank()));
      trainee.backward(mse(trainee.forward([&, x = x] { return net(x); }), y));
      mse(plain(x), y).backward();
      for (size_t i = 0; i < parameters.size(); ++i) {
        auto expected = references[i].grad() / 2;
        group.all_reduce(expected);
        EXPECT_TRUE(at::equal(parameters[i].grad(), expected));
      }
      clear_grads(parameters);
      clear_grads(references);
    }
  });
}

TEST(Ddp, CompressionStaysNear) {
  for (const char* hook : {"fp16", "bf16", "powersgd"}) {
    const auto results = run_ranks(2, [&](Collective& group) {
      torch::manual_seed(0);
      SmallNet net;
      Trainee trainee(
          group,
          DdpOptions{
              .comm_hook = hook, .powersgd_rank = 8, .powersgd_start_iter = 2, .powersgd_min_compression_rate = 0.5},
          *net);
      std::vector<Tensor> differences;
      for (int step = 0; step < 6; ++step) {
        const auto [x, y] = boring_data(8, 32, static_cast<uint64_t>(group.rank()));
        clear_grads(net->parameters());
        trainee.backward(mse(trainee.forward([&, x = x] { return net(x); }), y));
        auto compressed = values(net->parameters());
        for (size_t i = 0; i < compressed.size(); ++i) compressed[i] = net->parameters()[i].grad().clone();
        clear_grads(net->parameters());
        trainee.set_sync(false);
        trainee.backward(mse(trainee.forward([&, x = x] { return net(x); }), y));
        trainee.set_sync(true);
        double error = 0, norm = 0;
        for (size_t i = 0; i < compressed.size(); ++i) {
          auto exact = net->parameters()[i].grad().clone();
          group.all_reduce(exact, ReduceOp::kMean);
          error += (exact - compressed[i]).square().sum().item<double>();
          norm += exact.square().sum().item<double>();
        }
        differences.push_back(at::scalar_tensor(std::sqrt(error / norm), at::kDouble));
      }
      return at::stack(differences);
    });
    const auto& differences = results[0].tensor();
    EXPECT_TRUE(at::equal(differences, results[1].tensor()));
    // The loss and the plain start are exact; compression shows, and is small.
    EXPECT_LT(differences.max().item<double>(), 0.2) << hook << differences;
    EXPECT_GT(differences[5].item<double>(), 0) << hook << differences;
    if (std::string(hook) != "powersgd") {
      EXPECT_LT(differences.max().item<double>(), 0.01) << hook;
    }
  }
}

/// Trains with a forward that leaves layer b out on some ranks.
std::vector<RankResult> train_with_unused(const StrategyChoice& choice, const std::function<bool(int)>& uses_b,
                                          bool errors_expected, int world = 2) {
  RanksOptions options;
  options.errors_expected = errors_expected;
  return run_ranks(
      world,
      [&](Collective& group) {
        torch::manual_seed(0);
        SmallNet net;
        Trainee trainee(group, choice, *net);
        for (int step = 0; step < 3; ++step) {
          clear_grads(net->parameters());
          const auto [x, y] = boring_data(4, 32, static_cast<uint64_t>(group.rank()));
          trainee.backward(
              mse(trainee.forward([&, x = x] { return net->forward(x, step == 0 || uses_b(group.rank())); }), y));
        }
        auto grad = net->b->weight.grad();
        return grad.defined() ? grad.clone() : Tensor(at::zeros({1}));
      },
      options);
}

TEST(Ddp, UnusedParameterOnOneRankIsNamedOnAll) {
  const auto results = train_with_unused(
      "ddp", [](int rank) { return rank != 1; }, true, 3);
  EXPECT_THAT(errors_of(results),
              Each(AllOf(HasSubstr("[ddp] parameters \"b.weight\", \"b.bias\" got no gradient on rank 1;"),
                         HasSubstr("strategy \"ddp_find_unused_parameters_true\""))));
  EXPECT_EQ(results[0].error, results[1].error);
  EXPECT_EQ(results[0].error, results[2].error);
  for (const auto& result : results) EXPECT_LT(result.seconds, 50);
}

TEST(Ddp, UnusedParameterOnEveryRankIsNamed) {
  const auto results = train_with_unused(
      "ddp", [](int) { return false; }, true);
  EXPECT_THAT(errors_of(results), Each(HasSubstr("\"b.weight\", \"b.bias\" got no gradient on every rank;")));
  EXPECT_EQ(results[0].error, results[1].error);
  for (const auto& result : results) EXPECT_LT(result.seconds, 50);
}

TEST(Ddp, FindUnusedLetsThemPass) {
  const auto one = train_with_unused(
      "ddp_find_unused_parameters_true", [](int rank) { return rank == 0; }, false);
  EXPECT_GT(one[0].tensor().abs().sum().item<float>(), 0);
  EXPECT_TRUE(at::equal(one[0].tensor(), one[1].tensor()));
  const auto none = train_with_unused(
      "ddp_find_unused_parameters_true", [](int) { return false; }, false);
  EXPECT_EQ(none[0].tensor().numel(), 1);  // nobody used it: no gradient at all
}

struct IdleImpl : torch::nn::Module {
  IdleImpl() { weight = register_parameter("weight", torch::ones({1})); }
  Tensor weight;
};

TEST(Ddp, ModuleThatUsesNoneOfItsParametersIsNamed) {
  RanksOptions options;
  options.errors_expected = true;
  for (const char* name : {"ddp", "ddp_find_unused_parameters_true"}) {
    const auto results = run_ranks(
        2,
        [&](Collective& group) {
          IdleImpl net;
          Trainee trainee(group, name, net);
          auto x = torch::ones({2}).requires_grad_();
          const auto scale = group.rank() ? Tensor(torch::ones({1})) : net.weight;
          trainee.backward(trainee.forward([&] { return x * scale; }).sum());
        },
        options);
    EXPECT_THAT(errors_of(results),
                Each(HasSubstr("[ddp] no parameter of the module took part in the loss on rank 1;")));
  }
}

struct OddNetImpl : torch::nn::Module {
  OddNetImpl(int rank, const std::string& how) {
    first = register_module("first", torch::nn::Linear(4, rank == 1 && how == "shape" ? 3 : 2));
    if (rank == 1 && how == "number") register_module("more", torch::nn::Linear(2, 2));
    if (rank == 1 && how == "dtype") to(at::kDouble);
    if (rank == 1 && how == "frozen") first->bias.requires_grad_(false);
    if (rank == 1 && how == "buffer") register_buffer("extra", at::zeros({1}));
  }
  torch::nn::Linear first{nullptr};
};

TEST(Ddp, DifferentModelsAreShownOnEveryRank) {
  const std::map<std::string, std::string> expected{
      {"shape", "parameter 0 is \"first.weight\" float32 [2, 4] on rank 0, \"first.weight\" float32 [3, 4] on rank 1"},
      {"number", "2 parameters on rank 0, 4 on rank 1"},
      {"dtype", "parameter 0 is \"first.weight\" float32 [2, 4] on rank 0, \"first.weight\" float64 [2, 4] on rank 1"},
      {"frozen", "parameter 1 is \"first.bias\" float32 [2] on rank 0, \"first.bias\" float32 [2] frozen on rank 1"},
      {"buffer", "0 buffers on rank 0, 1 on rank 1"}};
  run_ranks(2, [&](Collective& group) {
    for (const auto& [how, line] : expected) {
      OddNetImpl net(group.rank(), how);
      EXPECT_EQ(error_of([&] { Trainee trainee(group, "ddp", net); }), "[ddp] the ranks have different models: " + line)
          << how;
    }
  });
}

TEST(Ddp, ModuleOutsideTheLossIsLeftAlone) {
  for (const char* name : {"ddp", "ddp_find_unused_parameters_true"}) {
    run_ranks(2, [&](Collective& group) {
      torch::manual_seed(0);
      SmallNet generator;
      BoringModule critic(2, 1);
      Trainee g(group, name, *generator), d(group, name, *critic);
      const auto both = [&](const Tensor& loss) {
        const std::array syncs{g.sync(), d.sync()};
        run_backward(syncs, loss, [&] { loss.backward(); });
      };
      for (int step = 0; step < 4; ++step) {
        const auto [x, y] = boring_data(4, 32, static_cast<uint64_t>(10 * step + group.rank()));
        clear_grads(generator->parameters());
        clear_grads(critic->parameters());
        // The generator ran, and is no part of the critic's loss.
        const auto fake = g.forward([&, x = x] { return generator(x); });
        both(d.forward([&] { return critic(fake.detach()); }).mean() -
             d.forward([&, y = y] { return critic(y); }).mean());
        EXPECT_FALSE(generator->a->weight.grad().defined());
        both(d.forward([&] { return critic(fake); }).mean());
        const auto gathered = group.all_gather(generator->a->weight.grad());
        EXPECT_TRUE(at::equal(gathered[0], gathered[1]));
        EXPECT_GT(gathered.abs().sum().item<float>(), 0);
        const auto critics = group.all_gather(critic->layer->weight.grad());
        EXPECT_TRUE(at::equal(critics[0], critics[1]));
      }
    });
  }
}

TEST(Ddp, SecondBackwardIsReducedAgain) {
  run_ranks(2, [](Collective& group) {
    torch::manual_seed(0);
    SmallNet net;
    Trainee trainee(group, "ddp", *net);
    for (int step = 0; step < 3; ++step) {
      clear_grads(net->parameters());
      const auto [x, y] = boring_data(4, 32, static_cast<uint64_t>(group.rank()));
      const auto loss = mse(trainee.forward([&, x = x] { return net(x); }), y);
      trainee.backward(loss, true);
      const auto once = net->a->weight.grad().clone();
      trainee.backward(loss);
      EXPECT_TRUE(at::allclose(net->a->weight.grad(), 2 * once));
      const auto gathered = group.all_gather(net->a->weight.grad());
      EXPECT_TRUE(at::equal(gathered[0], gathered[1]));
    }
  });
}

TEST(Ddp, SeveralForwardsBeforeOneBackward) {
  for (const char* name : {"ddp", "ddp_find_unused_parameters_true", "ddp_static_graph"}) {
    run_ranks(2, [&](Collective& group) {
      torch::manual_seed(0);
      SmallNet net(true), plain(true);
      Trainee trainee(group, name, *net);
      {
        torch::NoGradGuard no_grad;
        for (size_t i = 0; i < net->parameters().size(); ++i) plain->parameters()[i].copy_(net->parameters()[i]);
        trainee.forward([&] { return net(boring_data(4).first); });  // does nothing
      }
      for (int step = 0; step < 3; ++step) {
        clear_grads(net->parameters());
        clear_grads(plain->parameters());
        const auto [x, y] = boring_data(4, 32, static_cast<uint64_t>(group.rank()));
        const auto one = trainee.forward([&, x = x] { return net(x); });
        const auto two = trainee.forward([&, x = x] { return net(x + 1); });
        trainee.backward(mse(one, y) + mse(two, y));
        (mse(plain(x), y) + mse(plain(x + 1), y)).backward();
        for (size_t i = 0; i < net->parameters().size(); ++i) {
          auto expected = plain->parameters()[i].grad().clone();
          group.all_reduce(expected, ReduceOp::kMean);
          EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected, 1e-5, 1e-6)) << name << i;
        }
      }
    });
  }
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    weight = register_parameter("weight", torch::randn({32, 32}) * 0.1);
    register_parameter("head", weight);
    frozen = register_parameter("frozen", torch::ones({32}), false);
  }
  Tensor forward(const Tensor& x) { return torch::tanh(x.matmul(weight) * frozen).matmul(weight.t()); }
  Tensor weight, frozen;
};

TEST(Ddp, TiedAndFrozenParameters) {
  run_ranks(2, [](Collective& group) {
    torch::manual_seed(group.rank());
    TiedImpl net;
    ASSERT_EQ(net.parameters().size(), 3);
    Trainee trainee(group, "ddp", net);
    for (int step = 0; step < 3; ++step) {
      net.weight.mutable_grad() = Tensor();
      const auto x = boring_data(4, 32, static_cast<uint64_t>(group.rank())).first;
      trainee.backward(trainee.forward([&] { return net.forward(x); }).square().mean());
      auto reference = net.weight.detach().clone().requires_grad_();
      torch::tanh(x.matmul(reference)).matmul(reference.t()).square().mean().backward();
      auto expected = reference.grad().clone();
      group.all_reduce(expected, ReduceOp::kMean);
      EXPECT_TRUE(at::allclose(net.weight.grad(), expected, 1e-5, 1e-7));
      EXPECT_FALSE(net.frozen.grad().defined());
    }
    net.weight.requires_grad_(false);
    Trainee frozen(group, "ddp", net);
    EXPECT_EQ(frozen.sync(), nullptr);
  });
}

TEST(Ddp, BuffersComeFromRankZero) {
  run_ranks(2, [](Collective& group) {
    SmallNet net(true);
    net->n->running_mean.fill_(group.rank());
    Trainee trainee(group, "ddp", *net);
    EXPECT_EQ(net->n->running_mean.sum().item<float>(), 0);
    net->n->running_mean.fill_(5 + group.rank());
    net->n->options.momentum(0.0);
    trainee.forward([&] { return net(boring_data(4).first); });
    EXPECT_EQ(net->n->running_mean[0].item<float>(), 5);
    net->n->running_mean.fill_(group.rank());
    torch::NoGradGuard no_grad;
    trainee.forward([&] { return net(boring_data(4).first); });
    EXPECT_EQ(net->n->running_mean[0].item<float>(), group.rank());
  });
}

TEST(Ddp, SparseGradients) {
  run_ranks(2, [](Collective& group) {
    torch::manual_seed(0);
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    Trainee trainee(group, "ddp", *embedding);
    for (int step = 0; step < 2; ++step) {
      embedding->weight.mutable_grad() = Tensor();
      trainee.backward(trainee.forward([&] { return embedding(at::tensor({group.rank(), 5}, at::kLong)); }).sum());
      const auto grad = embedding->weight.grad().to_dense();
      EXPECT_EQ(grad[0][0].item<float>(), 0.5);
      EXPECT_EQ(grad[1][0].item<float>(), 0.5);
      EXPECT_EQ(grad[5][0].item<float>(), 1);
    }
  });
}

struct Throws : torch::autograd::Function<Throws> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw Error("[mine] broken backward");
  }
};

TEST(Ddp, ExceptionInBackwardReachesTheOthers) {
  RanksOptions options;
  options.errors_expected = true;
  const auto results = run_ranks(
      2,
      [](Collective& group) {
        SmallNet net;
        Trainee trainee(group, "ddp", *net);
        const auto [x, y] = boring_data(4);
        auto output = trainee.forward([&, x = x] { return net(x); });
        if (group.rank() == 1) output = Throws::apply(output);
        trainee.backward(mse(output, y));
      },
      options);
  EXPECT_EQ(results[0].error, "[ddp] rank 1 failed: [mine] broken backward");
  EXPECT_EQ(results[1].error, "[mine] broken backward");
  EXPECT_LT(results[0].seconds, 50);
}

}  // namespace
}  // namespace levin::testing
