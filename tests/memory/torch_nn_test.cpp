// Every module and functional of torch::nn in a training step: alone, under ddp and fsdp on two ranks, in bf16-mixed
// and with `compile`: equal to plain LibTorch; and its memory as predicted. A sample; all of them:
//
//     LEVIN_ALL_NN=1 LEVIN_SHOW_NN=1 OMP_NUM_THREADS=1 build/bin/tests/memory_nn_test
#include <cstdlib>
#include <iostream>

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "levin/devices/memory_counter.h"
#include "levin/distributed/store.h"
#include "levin/levin.h"
#include "levin/testing/error_of.h"
#include "levin/testing/ranks.h"
#include "tests/memory/torch_nn_rows.h"

namespace levin::testing {
namespace {

std::vector<NnRow> chosen_rows() {
  auto all = nn_rows();
  if (const char* only = std::getenv("LEVIN_NN_ROW")) {
    std::erase_if(all, [&](const NnRow& row) { return row.name.find(only) == std::string::npos; });
    return all;
  }
  if (std::getenv("LEVIN_ALL_NN")) return all;
  std::vector<NnRow> some;
  for (size_t i = 0; i < all.size(); i += 16) some.push_back(all[i]);
  return some;
}

constexpr double kRate = 0.1;

NnNet make_net(const NnRow& row) {
  torch::manual_seed(3);
  NnNet net(row);
  net->train();
  return net;
}

Tensor flat(const std::vector<Tensor>& tensors) {
  Tensors all;
  for (const auto& each : tensors) all.push_back(each.detach().to(at::kDouble).flatten());
  return all.empty() ? at::zeros({0}, at::kDouble) : at::cat(all);
}

/// Parameters after a step of plain LibTorch on the batches of all ranks.
Tensor reference(const NnRow& row, int world, bool autocast) {
  auto net = make_net(row);
  for (int rank = 0; rank < world; ++rank) {
    torch::manual_seed(11 + static_cast<uint64_t>(rank));
    const auto inputs = make_inputs(row, at::kCPU, 7 + static_cast<uint64_t>(rank));
    Tensor out;
    {
      std::optional<Autocast> scope;
      if (autocast) scope.emplace(at::kCPU, at::kBFloat16);
      out = net->forward(inputs);
    }
    (loss_of(out) / world).backward();
  }
  torch::NoGradGuard no_grad;
  for (auto& param : net->parameters())
    if (param.grad().defined()) param -= kRate * param.grad();
  return flat(net->parameters());
}

struct Setting {
  const char* name;
  std::string strategy;
  int world = 1;
  std::string precision = "32-true";
  bool compile = false;
};

std::string first_line_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

Tensor text_tensor(const std::string& text) {
  return at::tensor(std::vector<uint8_t>(text.begin(), text.end()), at::kByte);
}

/// Of each row: the parameters after a step, or the line (as bytes) by which it was refused.
Tensors train_rows(const std::vector<NnRow>& rows, const Setting& setting) {
  at::set_num_threads(1);
  Fabric fabric(
      {.accelerator = "cpu", .strategy = setting.strategy, .precision = setting.precision, .compile = setting.compile});
  fabric.launch();
  Tensors results;
  for (const auto& row : rows) {
    try {
      auto made = make_net(row);
      auto [net, optimizer] = fabric.setup(made, optim::SGD(made->parameters(), {.lr = kRate}));
      torch::manual_seed(11 + static_cast<uint64_t>(fabric.global_rank()));
      auto inputs = make_inputs(row, at::kCPU, 7 + static_cast<uint64_t>(fabric.global_rank()));
      auto step = fabric.compile([&](Tensors& given) {
        auto loss = loss_of(net(given));
        fabric.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        return loss;
      });
      step(inputs);
      auto* shards = fabric.strategy().shards();
      const auto state =
          shards ? full_state_dict(*net.ptr(), *shards, {.rank0_only = false}) : module_state_dict(*net.ptr());
      Tensors params;
      for (const auto& item : made->named_parameters()) params.push_back(state.at(item.key()).to_tensor());
      results.push_back(flat(params));
    } catch (const std::exception& error) {
      results.push_back(text_tensor(first_line_of(error)));
    }
  }
  return results;
}

std::vector<RankResult> run_setting(const std::vector<NnRow>& rows, const Setting& setting) {
  RanksOptions options;
  options.errors_expected = true;
  return run_ranks(
      setting.world,
      [&](Collective& group) {
        HostedStore hosted;
        if (group.rank() == 0) hosted = host_store("127.0.0.1", 0, std::chrono::seconds(60));
        const auto port = broadcast_string(group, std::to_string(hosted.port));
        const auto rank = std::to_string(group.rank()), size = std::to_string(setting.world);
        for (const auto& [name, value] :
             std::vector<std::pair<std::string, std::string>>{{"RANK", rank},
                                                              {"LOCAL_RANK", rank},
                                                              {"WORLD_SIZE", size},
                                                              {"LOCAL_WORLD_SIZE", size},
                                                              {"GROUP_RANK", "0"},
                                                              {"MASTER_ADDR", "127.0.0.1"},
                                                              {"MASTER_PORT", port},
                                                              {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                              {"TORCHELASTIC_RUN_ID", "nn"}})
          ::setenv(name.c_str(), value.c_str(), 1);
        return train_rows(rows, setting);
      },
      options);
}

/// "" when equal.
std::string difference(const Tensor& got, const Tensor& wanted, double tolerance) {
  if (got.scalar_type() == at::kByte) {
    const auto bytes = got.contiguous();
    return "refused: " + std::string(reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()),
                                     static_cast<size_t>(bytes.numel()));
  }
  if (got.sizes() != wanted.sizes()) return "other parameters";
  if (got.numel() == 0) return "";
  const auto apart = (got - wanted).abs().div(wanted.abs().clamp_min(1.0));
  const auto far =
      at::where(got.isnan() & wanted.isnan(), at::zeros_like(got), apart).nan_to_num(1e9).max().item<double>();
  return far <= tolerance ? "" : fmt::format("differs by {:.2g}", far);
}

TEST(TorchNn, TrainsAsInPlainLibTorch) {
  at::set_num_threads(1);
  const auto rows = chosen_rows();
  const std::vector<Setting> settings{{"single", "single_device"},
                                      {"ddp x2", "ddp", 2},
                                      {"fsdp x2", "fsdp", 2},
                                      {"bf16-mixed", "single_device", 1, "bf16-mixed"},
                                      {"compile", "single_device", 1, "32-true", true}};
  for (const auto& setting : settings) {
    SCOPED_TRACE(setting.name);
    const auto results = run_setting(rows, setting);
    int equal = 0, refused = 0;
    for (size_t rank = 0; rank < results.size(); ++rank) {
      ASSERT_EQ(results[rank].error, "") << rank;
      ASSERT_EQ(results[rank].tensors.size(), rows.size()) << results[rank].signal;
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool autocast = setting.precision == "bf16-mixed";
      Tensor reference_params;
      try {
        reference_params = reference(rows[i], setting.world, autocast);
      } catch (const c10::Error& error) {
        const auto line = difference(results[0].tensors[i], {}, 0);
        EXPECT_EQ(line.find("refused: " + first_line_of(error)), 0U) << rows[i].name << ": " << line;
        ++refused;
        continue;
      }
      if (setting.world > 1 && rows[i].for_one_rank) continue;
      bool same = true;
      for (const auto& result : results) {
        const auto line = difference(result.tensors[i], reference_params, 2e-6);
        same = same && line.empty();
        EXPECT_EQ(line, "") << rows[i].name;
      }
      equal += same;
    }
    std::cout << fmt::format("{}: {} of {} equal, {} refused\n", setting.name, equal, rows.size(), refused);
  }
}

/// The peak of the second step on this CPU.
int64_t measured_peak(const NnRow& row) {
  MemoryCounter counter;
  auto net = make_net(row);
  const auto inputs = make_inputs(row, at::kCPU, 7);
  optim::SGD optimizer(net->parameters(), {.lr = 1e-3});
  for (int step = 0; step < 2; ++step) {
    counter.reset_peak();
    const auto loss = loss_of(net->forward(inputs));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return counter.peak();
}

std::string estimate_line(const NnRow& row, int64_t& peak) {
  Batch batch;
  const auto inputs = make_inputs(row, at::kMeta, 7);
  for (size_t i = 0; i < inputs.size(); ++i) batch.set("x" + std::to_string(i), inputs[i]);
  return error_of([&] {
    peak = estimate_memory([&] { return NnNet(row); },
                           [&](auto& net, const Batch& given) {
                             Tensors all;
                             for (const auto& [name, tensor] : given) all.push_back(tensor);
                             return net(all);
                           },
                           [](const Tensor& out, const Batch&) { return loss_of(out); }, batch,
                           {.optimizer = "sgd", .device = at::kCPU})
               .device_peak;
  });
}

TEST(TorchNn, MemoryIsAsPredicted) {
  at::set_num_threads(1);
  int near = 0, refused = 0;
  const auto rows = chosen_rows();
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    int64_t predicted = 0;
    const auto line = estimate_line(row, predicted);
    if (!row.refused.empty()) {
      EXPECT_EQ(line.find("[estimate_memory] "), 0U) << line;
      EXPECT_NE(line.find(row.refused), line.npos) << line;
      EXPECT_EQ(line.find('\n'), line.npos) << line;
      if (std::getenv("LEVIN_SHOW_NN")) std::cout << row.name << ": " << line << "\n";
      ++refused;
      continue;
    }
    EXPECT_EQ(line, "no error");
    if (line != "no error") continue;
    const auto measured = measured_peak(row);
    const auto ratio = static_cast<double>(predicted) / static_cast<double>(measured);
    EXPECT_NEAR(ratio, 1, row.within) << predicted << " of " << measured;
    near += std::abs(ratio - 1) <= 0.05;
  }
  std::cout << fmt::format("{} of {} within 5 %, {} refused\n", near, rows.size(), refused);
}

}  // namespace
}  // namespace levin::testing
