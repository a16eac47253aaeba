#pragma once

// Training steps on one GPU with less and less memory: time of a step, predicted and measured peak, technique by
// technique. memory_ladder.cpp and text_ladder.cpp have the models.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "levin/levin.h"
#include "levin/memory/estimate.h"
#include "levin/strategies/options.h"

namespace levin::bench {

enum class Birth { kPlain, kOnDevice, kDeferred };

struct Rung {
  std::string name, model;
  std::string precision = "bf16-true";
  int64_t batch = 16;
  int64_t accumulate = 1;
  bool adam = true;
  Birth birth = Birth::kPlain;
  StrategyChoice strategy = "auto";
  /// Units whose activations are recomputed, where the strategy does not say so.
  std::optional<UnitPolicy> checkpointing = {};
  /// Of adapters of low rank, which alone are trained with the last layers; 0: everything is trained.
  int64_t lora = 0;
  /// The step is captured in a CUDA graph.
  bool compile = false;
  int64_t warm = 4;
  int64_t steps = 12;
};

inline void print_figure(const std::string& name, const char* what, double value, const char* unit, bool compared) {
  std::printf("{\"case\": \"%s, %s\", \"value\": %.3f, \"unit\": \"%s\"%s}\n", name.c_str(), what, value, unit,
              compared ? ", \"limit\": 1" : "");
  std::fflush(stdout);
}

inline std::vector<Tensor> trained_parameters(torch::nn::Module& module) {
  std::vector<Tensor> trained;
  for (const auto& parameter : module.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  return trained;
}

/// A Subject makes the model of a rung (`make(rung, tiny)`), its batch on a device (`batch(rung, tiny, device)`), and
/// logits (`logits(net, batch)`); the batch has "label".
template <class Subject>
class Ladder {
 public:
  explicit Ladder(std::vector<Rung> rungs) : rungs_(std::move(rungs)) {}

  void climb(Args& args) {
    const auto only = split(args.get("only", ""));
    const auto steps = args.get("steps", 0);
    tiny_ = args.has("tiny");
    const bool list = args.has("list"), predict = args.has("predict");
    args.check_all_used();
    std::vector<std::string> names;
    for (const auto& rung : rungs_) names.push_back(rung.name);
    for (const auto& name : only)
      if (std::find(names.begin(), names.end(), name) == names.end()) fail_unknown("ladder", "case", name, names);
    if (list) {
      for (const auto& name : names) std::printf("%s\n", name.c_str());
      return;
    }
    if (!tiny_ && !predict && levin::detail::cuda_accelerator().device_count() == 0) {
      std::printf("{\"skip\": \"no GPU\"}\n");
      return;
    }
    std::vector<std::string> failed;
    for (auto& rung : rungs_) {
      if (!only.empty() && std::find(only.begin(), only.end(), rung.name) == only.end()) continue;
      if (steps > 0) rung.steps = steps;
      try {
        if (!predict) measure(rung);
        print_figure(rung.name, "predicted memory", predicted_peak(rung) / 1e9, "GB", false);
      } catch (const std::exception& error) {
        const nlohmann::json line{{"case", rung.name}, {"error", one_line(error)}};
        std::printf("%s\n", line.dump().c_str());
        failed.push_back(rung.name);
      }
      const auto& device = accelerator();
      device.empty_cache(c10::Device(device.name() == "cuda" ? c10::kCUDA : c10::kCPU, 0));
    }
    LEVIN_CHECK(failed.empty(), "[ladder] failed: ", join(failed));
  }

 private:
  static std::vector<std::string> split(const std::string& list) {
    std::vector<std::string> words;
    for (size_t begin = 0; begin < list.size();) {
      const auto comma = std::min(list.find(',', begin), list.size());
      words.push_back(list.substr(begin, comma - begin));
      begin = comma + 1;
    }
    return words;
  }

  double predicted_peak(const Rung& rung) {
    const auto* fsdp = rung.strategy.options<FsdpOptions>();
    MemoryQuestion question{.strategy = "single_device",
                            .precision = rung.precision,
                            .optimizer = rung.adam ? "adam" : "sgd",
                            .device = tiny_ ? c10::kCPU : c10::kCUDA,
                            .checkpointing = rung.checkpointing,
                            .accumulate = static_cast<int>(rung.accumulate)};
    if (fsdp) {
      question.layout = state_layout(*fsdp, 1);
      question.units = fsdp->auto_wrap_policy;
      question.checkpointing = fsdp->activation_checkpointing_policy;
    }
    const auto estimate =
        estimate_memory([&rung, tiny = tiny_] { return Subject::make(rung, tiny); },
                        [](auto& model, const Batch& given) { return Subject::logits(model, given); },
                        [](const Tensor& logits, const Batch& given) { return cross_entropy(logits, given["label"]); },
                        Subject::batch(rung, tiny_, c10::kMeta), question);
    return static_cast<double>(estimate.device_peak);
  }

  void measure(const Rung& rung) {
    Fabric fabric({.accelerator = tiny_ ? "auto" : "cuda",
                   .strategy = rung.strategy,
                   .devices = 1,
                   .precision = rung.precision,
                   .compile = rung.compile});
    fabric.launch();
    torch::manual_seed(0);
    auto model = rung.birth == Birth::kPlain ? Subject::make(rung, tiny_)
                                             : fabric.init_module([&] { return Subject::make(rung, tiny_); },
                                                                  {.meta = rung.birth == Birth::kDeferred});
    if (rung.checkpointing) checkpoint_activations(model, *rung.checkpointing);
    const auto trained = trained_parameters(*model);
    Optimizer plain =
        rung.adam ? Optimizer(optim::Adam(trained, {.lr = 5e-5})) : Optimizer(optim::SGD(trained, {.lr = 0.01}));
    auto [net, optimizer] = fabric.setup(model, plain);
    net->train();
    const auto batch = Subject::batch(rung, tiny_, fabric.device());
    auto micro_step = fabric.compile([&, &net = net, &optimizer = optimizer](const Batch& given, bool last) {
      {
        const auto no_sync = fabric.no_backward_sync(net, !last);
        fabric.backward(cross_entropy(Subject::logits(net, given), given["label"]) /
                        static_cast<double>(rung.accumulate));
      }
      if (!last) return;
      optimizer.step();
      optimizer.zero_grad();
    });
    int64_t calls = 0;
    auto step = [&] { micro_step(batch, ++calls % rung.accumulate == 0); };
    const auto& device = fabric.accelerator();
    // A graph allocates only while it is captured.
    if (rung.compile) device.reset_peak_memory(fabric.device());
    for (int64_t i = 0; i < rung.warm; ++i) step();
    device.synchronize(fabric.device());
    if (!rung.compile) device.reset_peak_memory(fabric.device());
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < rung.steps; ++i) step();
    device.synchronize(fabric.device());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto memory = device.memory(fabric.device());
    print_figure(rung.name, "step", seconds / static_cast<double>(rung.steps) * 1e3, "ms", true);
    print_figure(rung.name, "peak memory", static_cast<double>(memory.peak_allocated) / 1e9, "GB", true);
    print_figure(rung.name, "reserved memory", static_cast<double>(memory.peak_reserved) / 1e9, "GB", false);
  }

  std::vector<Rung> rungs_;
  bool tiny_ = false;
};

template <class Subject>
int run_ladder(int argc, char** argv, std::vector<Rung> rungs) {
  Ladder<Subject> ladder(std::move(rungs));
  return run_main(argc, argv, [&](Args& args) { ladder.climb(args); });
}

}  // namespace levin::bench
