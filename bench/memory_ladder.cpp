// Vision transformers on one GPU, with less and less memory: time of a step and peak memory, technique by technique.
//   memory_ladder [--only NAME,...] [--steps N] [--list] [--predict] [--tiny]
// ViT-L/16 from float32 with Adam down to bfloat16, accumulated micro-batches, SGD and birth on the device; ViT-H/14
// under fsdp from one unit to offloaded blocks. A step is one call of forward and backward (of a micro-batch, where
// batches are accumulated). --predict: only what the peak will be, which needs no GPU. --tiny: a small model on
// whatever device there is, to see that every case runs.
#include <chrono>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "levin/levin.h"
#include "levin/memory/estimate.h"
#include "levin/strategies/options.h"

namespace {

using levin::FsdpOptions;
using levin::models::EncoderBlock;

enum class Birth { kPlain, kOnDevice, kDeferred };

struct Case {
  std::string name;
  bool huge = false;  // ViT-H/14 in place of ViT-L/16
  std::string precision = "bf16-true";
  int64_t batch = 16;
  int64_t accumulate = 1;
  bool adam = true;
  Birth birth = Birth::kPlain;
  levin::StrategyChoice strategy = "auto";
  int64_t warm = 4;
  int64_t steps = 12;
};

std::vector<Case> all_cases() {
  const auto blocks = levin::policy::by_class<EncoderBlock>();
  std::vector<Case> cases{
      {.name = "vit_l16_fp32_bs64", .precision = "32-true", .batch = 64},
      {.name = "vit_l16_16mixed_bs64", .precision = "16-mixed", .batch = 64},
      {.name = "vit_l16_bf16mixed_bs64", .precision = "bf16-mixed", .batch = 64},
      {.name = "vit_l16_bf16true_bs64", .batch = 64},
      {.name = "vit_l16_bf16true_bs16", .batch = 16},
      {.name = "vit_l16_bf16true_bs4_acc4", .batch = 4, .accumulate = 4},
      {.name = "vit_l16_bf16true_bs4_acc4_sgd", .batch = 4, .accumulate = 4, .adam = false},
      {.name = "vit_l16_bf16true_bs4_acc4_sgd_init",
       .batch = 4,
       .accumulate = 4,
       .adam = false,
       .birth = Birth::kOnDevice},
      {.name = "vit_l16_end_bs4_acc4",
       .batch = 4,
       .accumulate = 4,
       .adam = false,
       .birth = Birth::kDeferred,
       .strategy =
           FsdpOptions{.auto_wrap_policy = blocks, .cpu_offload = true, .activation_checkpointing_policy = blocks}},
  };
  const auto fsdp = [&](const std::string& name, const FsdpOptions& options) {
    cases.push_back({.name = "vit_h14_fsdp1_" + name + "_bs16_sgd_bf16true",
                     .huge = true,
                     .adam = false,
                     .birth = Birth::kDeferred,
                     .strategy = options,
                     .warm = 3,
                     .steps = 8});
  };
  fsdp("default", {});
  fsdp("transformer_wrap", {.auto_wrap_policy = blocks});
  fsdp("size_2M", {.auto_wrap_policy = levin::policy::by_size(2'000'000)});
  fsdp("act_ckpt", {.auto_wrap_policy = blocks, .activation_checkpointing_policy = blocks});
  // The host updates a block while the device works on the next.
  fsdp("act_ckpt_offload", {.auto_wrap_policy = blocks,
                            .cpu_offload = true,
                            .activation_checkpointing_policy = blocks,
                            .optimizer_in_backward = true});
  return cases;
}

levin::models::VisionTransformer make_model(const Case& c, bool tiny) {
  if (tiny)
    return levin::models::vit({.image_size = 32,
                               .patch_size = 16,
                               .num_layers = 3,
                               .num_heads = 2,
                               .hidden_dim = 512,
                               .mlp_dim = 2048,
                               .num_classes = 10});
  return c.huge ? levin::models::vit_h_14({.num_classes = 10}) : levin::models::vit_l_16({.num_classes = 10});
}

void print_figure(const std::string& name, const char* what, double value, const char* unit, bool compared) {
  std::printf("{\"case\": \"%s, %s\", \"value\": %.3f, \"unit\": \"%s\"%s}\n", name.c_str(), what, value, unit,
              compared ? ", \"limit\": 1" : "");
  std::fflush(stdout);
}

double predicted_peak(const Case& c, bool tiny) {
  const auto* fsdp = c.strategy.options<FsdpOptions>();
  levin::MemoryQuestion question{.strategy = "single_device",
                                 .precision = c.precision,
                                 .optimizer = c.adam ? "adam" : "sgd",
                                 .device = tiny ? c10::kCPU : c10::kCUDA,
                                 .accumulate = static_cast<int>(c.accumulate)};
  if (fsdp) {
    question.layout = levin::state_layout(*fsdp, 1);
    question.units = fsdp->auto_wrap_policy;
    question.checkpointing = fsdp->activation_checkpointing_policy;
  }
  const auto side = tiny ? 32 : 224;
  const levin::Batch batch{{"image", at::empty({c.batch, 3, side, side}, c10::kMeta)},
                           {"label", at::empty({c.batch}, at::TensorOptions(c10::kMeta).dtype(at::kLong))}};
  const auto estimate = levin::estimate_memory(
      [&c, tiny] { return make_model(c, tiny); },
      [](auto& model, const levin::Batch& given) { return model(given["image"]); },
      [](const at::Tensor& logits, const levin::Batch& given) { return levin::cross_entropy(logits, given["label"]); },
      batch, question);
  return static_cast<double>(estimate.device_peak);
}

void measure(const Case& c, bool tiny) {
  levin::Fabric fabric(
      {.accelerator = tiny ? "auto" : "cuda", .strategy = c.strategy, .devices = 1, .precision = c.precision});
  fabric.launch();
  torch::manual_seed(0);
  auto model = c.birth == Birth::kPlain
                   ? make_model(c, tiny)
                   : fabric.init_module([&] { return make_model(c, tiny); }, {.meta = c.birth == Birth::kDeferred});
  levin::Optimizer plain = c.adam ? levin::Optimizer(levin::optim::Adam(model->parameters(), {.lr = 5e-5}))
                                  : levin::Optimizer(levin::optim::SGD(model->parameters(), {.lr = 0.01}));
  auto [net, optimizer] = fabric.setup(model, plain);
  net->train();
  const auto side = model->options.image_size;
  const auto x = torch::randn({c.batch, 3, side, side}, fabric.device());
  const auto y = torch::randint(0, 10, {c.batch}, at::TensorOptions().device(fabric.device()).dtype(at::kLong));
  int64_t calls = 0;
  auto step = [&, &net = net, &optimizer = optimizer] {
    const bool last = ++calls % c.accumulate == 0;
    {
      const auto no_sync = fabric.no_backward_sync(net, !last);
      fabric.backward(levin::cross_entropy(net(x), y) / static_cast<double>(c.accumulate));
    }
    if (!last) return;
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int64_t i = 0; i < c.warm; ++i) step();
  const auto& device = fabric.accelerator();
  device.synchronize(fabric.device());
  device.reset_peak_memory(fabric.device());
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < c.steps; ++i) step();
  device.synchronize(fabric.device());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto memory = device.memory(fabric.device());
  print_figure(c.name, "step", seconds / static_cast<double>(c.steps) * 1e3, "ms", true);
  print_figure(c.name, "peak memory", static_cast<double>(memory.peak_allocated) / 1e9, "GB", true);
  print_figure(c.name, "predicted memory", predicted_peak(c, tiny) / 1e9, "GB", false);
  print_figure(c.name, "reserved memory", static_cast<double>(memory.peak_reserved) / 1e9, "GB", false);
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < list.size();) {
    const auto comma = std::min(list.find(',', begin), list.size());
    words.push_back(list.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return words;
}

void climb(levin::Args& args) {
  auto cases = all_cases();
  const auto only = split(args.get("only", ""));
  const auto steps = args.get("steps", 0);
  const bool tiny = args.has("tiny"), list = args.has("list"), predict = args.has("predict");
  args.check_all_used();
  std::vector<std::string> names;
  for (const auto& c : cases) names.push_back(c.name);
  for (const auto& name : only)
    if (std::find(names.begin(), names.end(), name) == names.end())
      levin::fail_unknown("memory_ladder", "case", name, names);
  if (list) {
    for (const auto& name : names) std::printf("%s\n", name.c_str());
    return;
  }
  if (!tiny && !predict && levin::detail::cuda_accelerator().device_count() == 0) {
    std::printf("{\"skip\": \"no GPU\"}\n");
    return;
  }
  std::vector<std::string> failed;
  for (auto& c : cases) {
    if (!only.empty() && std::find(only.begin(), only.end(), c.name) == only.end()) continue;
    if (steps > 0) c.steps = steps;
    try {
      if (predict) {
        print_figure(c.name, "predicted memory", predicted_peak(c, tiny) / 1e9, "GB", false);
        continue;
      }
      measure(c, tiny);
    } catch (const std::exception& error) {
      const nlohmann::json line{{"case", c.name}, {"error", levin::one_line(error)}};
      std::printf("%s\n", line.dump().c_str());
      failed.push_back(c.name);
    }
    const auto& device = levin::accelerator();
    device.empty_cache(c10::Device(device.name() == "cuda" ? c10::kCUDA : c10::kCPU, 0));
  }
  LEVIN_CHECK(failed.empty(), "[memory_ladder] failed: ", levin::join(failed));
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, climb);
}
