// What a training step will take, against what it takes.
#include "levin/memory/estimate.h"

#include <ATen/Version.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/data/sample_random.h"
#include "levin/devices/memory_counter.h"
#include "levin/memory/groups.h"
#include "levin/models/decoder.h"
#include "levin/models/registry.h"
#include "levin/models/text_encoder.h"
#include "levin/models/vit.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/functional.h"
#include "levin/nn/layers.h"
#include "levin/nn/saved_tensors.h"
#include "levin/optim/adam.h"
#include "levin/optim/adam_8bit.h"
#include "levin/optim/sgd.h"
#include "levin/strategies/options.h"
#include "levin/strategies/sharding/group_plan.h"
#include "levin/strategies/sharding/residency.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t width, int64_t depth = 2) {
    for (int64_t i = 0; i < depth; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(width, width)));
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::relu(layer(x));
    return x;
  }
  std::vector<nn::Linear> layers;
};
LEVIN_MODULE(Mlp);

models::VisionTransformer small_vit() {
  return models::vit({.image_size = 64,
                      .patch_size = 8,
                      .num_layers = 4,
                      .num_heads = 4,
                      .hidden_dim = 128,
                      .mlp_dim = 512,
                      .num_classes = 10});
}

const auto kForward = [](auto& model, const Batch& batch) { return model(batch["x"]); };
const auto kClasses = [](const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch["y"]); };

Batch images(int64_t count, c10::Device device = at::kMeta) {
  return {{"x", torch::zeros({count, 3, 64, 64}, device)},
          {"y", torch::zeros({count}, torch::dtype(at::kLong).device(device))}};
}
Batch rows(int64_t count, int64_t width, c10::Device device = at::kMeta) {
  return {{"x", torch::zeros({count, width}, device)},
          {"y", torch::zeros({count}, torch::dtype(at::kLong).device(device))}};
}

/// oneDNN takes scratch of its own in 16 bits, and on each machine another amount.
struct WithoutOneDnn {
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(before); }
  bool before = at::globalContext().userEnabledMkldnn();
};

/// The peak of the second step, on the CPU.
template <class Make>
int64_t measure(Make make, const std::function<Batch()>& data, const MemoryQuestion& question) {
  const WithoutOneDnn plain_kernels;
  MemoryCounter counter;
  const auto plan = resolve_precision(question.precision, at::kCPU);
  auto model = init_module(make, {.dtype = plan.params});
  std::vector<Attachment> checkpointed;
  if (question.checkpoint_blocks)
    checkpointed = attach_checkpointing(
        *model, UnitPolicy("blocks", [](torch::nn::Module& root) { return detail::repeated_units(root); }));
  const auto batch = data();
  auto optimizer =
      question.optimizer == "adam"
          ? Optimizer(optim::Adam(model->parameters(), {.moments_dtype = question.moments_dtype}))
      : question.optimizer == "adamw_8bit"
          ? Optimizer(optim::AdamW8bit(model->parameters()))
          : Optimizer(optim::SGD(model->parameters(), {.momentum = question.optimizer == "sgd_momentum" ? 0.9 : 0.0}));
  for (int step = 0; step < 2; ++step) {
    counter.reset_peak();
    for (int pass = 0; pass < question.accumulate; ++pass) {
      Tensor loss;
      {
        Tensor out;
        {
          std::optional<Autocast> autocast;
          if (plan.autocast) autocast.emplace(at::kCPU, *plan.autocast);
          Batch cast = batch;
          if (plan.inputs) cast.set("x", batch["x"].to(*plan.inputs));
          out = kForward(model, cast);
        }
        if (plan.outputs) out = out.to(*plan.outputs);
        loss = kClasses(out, batch);
      }
      loss.backward();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return counter.peak();
}

void expect_near(int64_t predicted, int64_t measured, double part) {
  EXPECT_NEAR(static_cast<double>(predicted) / static_cast<double>(measured), 1.0, part)
      << "predicted " << predicted << ", measured " << measured;
}

TEST(Memory, OfAnMlpIsAsCountedByHand) {
  const int64_t n = 64, w = 256;
  const auto estimate = estimate_memory([] { return Mlp(256); }, kForward, kClasses, rows(n, w),
                                        {.optimizer = "adam", .device = at::kCPU});
  const int64_t params = 2 * (w * w + w);
  EXPECT_EQ(estimate.num_parameters, params);
  EXPECT_EQ(estimate.parameters, 4 * params);
  EXPECT_EQ(estimate.gradients, 4 * params);
  EXPECT_EQ(estimate.optimizer, 8 * params + 4 * 4);
  // What relu gives, twice (the first is the second layer's input too), logarithms of probabilities, the loss and the
  // sum of its weights.
  EXPECT_EQ(estimate.activations, 3 * 4 * n * w + 4 + 4);
  EXPECT_EQ(estimate.host, 0);
  EXPECT_EQ(estimate.peak_part, StepPart::kBackward);
}

struct GeluMlpImpl : MlpImpl {
  using MlpImpl::MlpImpl;
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::gelu(layer(x));
    return x;
  }
};
LEVIN_MODULE(GeluMlp);

TEST(Memory, LayersInFloat8KeepOneBytePerNumber) {
  const int64_t n = 4096, w = 256;
  const auto activations = [&](const char* precision) {
    return estimate_memory([] { return GeluMlp(256, 4); }, kForward, kClasses, rows(n, w), {.precision = precision})
        .activations;
  };
  // Of four layers the two in the middle: their inputs and their weights take one byte in place of two.
  EXPECT_NEAR(activations("bf16-mixed") - activations("fp8-mixed"), 2 * (n * w + w * w), 32 * 1024);
}

TEST(Memory, OfARunOnTheCpuMatchesThePrediction) {
  const MemoryQuestion plain{.optimizer = "sgd", .device = at::kCPU};
  std::vector<MemoryQuestion> questions(10, plain);
  questions[0].optimizer = "adam";
  questions[1].accumulate = 2;
  questions[2].checkpoint_blocks = true, questions[2].optimizer = "sgd_momentum";
  questions[3].precision = "bf16-true", questions[3].optimizer = "adam";
  questions[4].precision = "bf16-true", questions[4].checkpoint_blocks = true;
  questions[5].precision = "bf16-mixed", questions[5].optimizer = "adam";
  questions[6].precision = "bf16-mixed", questions[6].checkpoint_blocks = true, questions[6].optimizer = "adam";
  questions[7].precision = "bf16-mixed", questions[7].checkpoint_blocks = true;
  questions[8].optimizer = "adamw_8bit";
  questions[9].optimizer = "adam", questions[9].moments_dtype = at::kBFloat16;
  for (const auto& question : questions) {
    SCOPED_TRACE(question.precision + " " + question.optimizer + (question.checkpoint_blocks ? " checkpointed" : ""));
    const int64_t size = question.precision == "32-true" ? 8 : 2;  // plain kernels of 16 bits are slow
    const auto mlp = [] { return Mlp(256, 4); };
    const auto of_mlp = measure(
        mlp, [&] { return rows(64 * size, 256, at::kCPU); }, question);
    expect_near(estimate_memory(mlp, kForward, kClasses, rows(64 * size, 256), question).device_peak, of_mlp, 0.05);
    const auto of_vit = measure(
        small_vit, [&] { return images(size, at::kCPU); }, question);
    expect_near(estimate_memory(small_vit, kForward, kClasses, images(size), question).device_peak, of_vit, 0.05);
  }
}

TEST(Memory, WhatIsSavedIsCountedToTheByte) {
  auto model = small_vit();
  const auto batch = images(4, at::kCPU);
  int64_t bytes = 0;
  {
    SavedBytes saved(*model);
    saved.ignore(batch["x"]);
    saved.ignore(batch["y"]);
    const auto loss = kClasses(kForward(model, batch), batch);
    bytes = saved.bytes();
  }
  const auto estimate = estimate_memory(small_vit, kForward, kClasses, images(4), {.device = at::kCPU});
  EXPECT_EQ(estimate.activations, bytes + 4);  // the loss itself lives too
}

TEST(Memory, CheckpointedUnitsKeepTheirInputsAlone) {
  const auto ask = [](bool checkpointed, bool offloaded) {
    return estimate_memory(
        small_vit, kForward, kClasses, images(64),
        {.optimizer = "sgd", .device = at::kCPU, .checkpoint_blocks = checkpointed, .offload_activations = offloaded});
  };
  const auto all = ask(false, false), inputs = ask(true, false), hosted = ask(true, true);
  EXPECT_LT(inputs.activations, all.activations / 3);
  EXPECT_LT(inputs.device_peak, all.device_peak);
  const int64_t input = 64 * 65 * 128 * 4;  // [B, T, C] of four blocks
  EXPECT_EQ(hosted.host, 4 * input);
  EXPECT_EQ(inputs.activations - hosted.activations, 4 * input);
  EXPECT_LT(hosted.device_peak, inputs.device_peak);
}

TEST(Memory, BytesPerParameterOfZero) {
  const auto mixed = resolve_precision("bf16-mixed", at::kCUDA);
  const auto of = [&](const char* strategy, int ranks, const char* optimizer = "adam") {
    return bytes_per_parameter(state_layout(strategy, ranks), mixed, optimizer).device();
  };
  EXPECT_EQ(of("single_device", 1), 16);
  for (const int n : {1, 2, 4, 64}) {
    EXPECT_EQ(of("ddp", n), 16);
    EXPECT_DOUBLE_EQ(of("deepspeed_stage_1", n), 4 + 12.0 / n);
    EXPECT_DOUBLE_EQ(of("deepspeed_stage_2", n), 2 + 14.0 / n);
    EXPECT_DOUBLE_EQ(of("deepspeed_stage_3", n), 16.0 / n);
    EXPECT_DOUBLE_EQ(of("fsdp", n), 16.0 / n);
    const auto gemini = bytes_per_parameter(state_layout("colossalai", n), mixed, "adam");
    EXPECT_EQ(gemini.device(), 0);
    EXPECT_DOUBLE_EQ(gemini.host, 16.0 / n);
    EXPECT_DOUBLE_EQ(
        bytes_per_parameter(state_layout(GeminiOptions{.placement_policy = "cuda"}, n), mixed, "adam").device(),
        16.0 / n);
    EXPECT_DOUBLE_EQ(of("fsdp", n, "sgd"), 8.0 / n);
    const auto offloaded = bytes_per_parameter(state_layout("fsdp", n, true), mixed, "adam");
    EXPECT_EQ(offloaded.device(), 0);
    EXPECT_DOUBLE_EQ(offloaded.host, 16.0 / n);
    const auto second = bytes_per_parameter(state_layout("deepspeed_stage_2_offload", n), mixed, "adam");
    EXPECT_EQ(second.device(), 2);
    EXPECT_DOUBLE_EQ(second.host, 16.0 / n);  // the part in two bytes, which is sent, beside that in four
  }
  // Alone in full precision there is nothing to divide and nothing to keep twice.
  EXPECT_EQ(bytes_per_parameter(state_layout("deepspeed_stage_2", 1), resolve_precision("32-true", at::kCUDA), "adam")
                .device(),
            16);
}

TEST(Memory, OfShardsIsTheirFractionAndAFewUnits) {
  const auto ask = [](const char* strategy, int ranks, bool offload = false) {
    return estimate_memory(
        small_vit, kForward, kClasses, images(2),
        {.strategy = strategy, .precision = "bf16-mixed", .world_size = ranks, .offload = offload, .device = at::kCPU});
  };
  const auto one = ask("fsdp", 1), many = ask("fsdp", 8);
  const double params = static_cast<double>(one.num_parameters);
  int64_t part = 0, whole = 0, state = 0;  // rows are divided, and the class token and the positions have only one
  for (const auto& param : small_vit()->parameters()) {
    const auto numel = (param.size(0) + 7) / 8 * (param.numel() / param.size(0));
    part += (numel + 63) / 64 * 64;
    whole += (param.numel() + 63) / 64 * 64;
    state += 2 * 4 * numel + 4;
  }
  EXPECT_EQ(one.parameters, 4 * whole);
  EXPECT_EQ(many.parameters, 4 * part);
  EXPECT_EQ(many.gradients, 4 * part);
  EXPECT_EQ(many.optimizer, state);
  EXPECT_EQ(many.activations, one.activations);
  // A block is 12 C^2 parameters and a few; three of them and the rest of the model are there at once, in two bytes.
  const double block = 2 * (12 * 128 * 128 + 13 * 128), rest = 2 * params - 4 * block;
  EXPECT_GT(static_cast<double>(many.temporary), 2 * block);
  EXPECT_LT(static_cast<double>(many.device_peak), 2 * 4 * params / 8 + 8.1 * params / 8 + 3 * block + 2 * rest +
                                                       static_cast<double>(many.activations) * 1.5 +
                                                       static_cast<double>(2 * 3 * 64 * 64 * 4));
  const auto offloaded = ask("fsdp", 1, true);
  EXPECT_EQ(offloaded.parameters + offloaded.gradients + offloaded.optimizer, 0);
  EXPECT_NEAR(static_cast<double>(offloaded.host), 16 * params, 0.01 * params);
  EXPECT_LT(offloaded.device_peak, one.device_peak);
}

TEST(Memory, OfNarrowMomentsIsCountedToTheByte) {
  const int64_t w = 256, matrix = w * w, tensors = 4;
  const auto ask = [](const char* optimizer, std::optional<at::ScalarType> moments = {}) {
    return estimate_memory([] { return Mlp(256); }, kForward, kClasses, rows(4, 256),
                           {.optimizer = optimizer, .moments_dtype = moments, .device = at::kCPU})
        .optimizer;
  };
  EXPECT_EQ(ask("adamw"), 2 * 2 * 4 * (matrix + w) + 4 * tensors);
  EXPECT_EQ(ask("adamw", at::kBFloat16), 2 * 2 * 2 * (matrix + w) + 4 * tensors);
  // A byte for each element and a scale for each 256; the biases are too small to be coded.
  EXPECT_EQ(ask("adamw_8bit"), 2 * 2 * (matrix + 4 * matrix / 256 + 4 * w) + 4 * tensors);
  EXPECT_EQ(ask("adam_8bit"), ask("adamw_8bit"));
  const auto plain = resolve_precision("32-true", at::kCUDA);
  EXPECT_DOUBLE_EQ(bytes_per_parameter(state_layout("ddp", 2), plain, "adamw_8bit").optimizer, 2 + 8.0 / 256);
  EXPECT_DOUBLE_EQ(bytes_per_parameter(state_layout("fsdp", 4), plain, "adamw_8bit").optimizer, (2 + 8.0 / 256) / 4);
}

TEST(Memory, LayoutsCarryTheOptionsOfStrategies) {
  const auto mixed = resolve_precision("bf16-mixed", at::kCUDA), plain = resolve_precision("32-true", at::kCUDA);
  const auto bytes = [](const StateLayout& layout, const PrecisionPlan& precision) {
    return bytes_per_parameter(layout, precision, "adam");
  };
  const auto hybrid = state_layout(FsdpOptions{.sharding_strategy = "hybrid", .hybrid_size = 2}, 8);
  EXPECT_EQ(hybrid.ranks, 2);
  EXPECT_EQ(hybrid.replicas, 4);
  EXPECT_DOUBLE_EQ(bytes(hybrid, mixed).device(), 16.0 / 2);
  EXPECT_THROW(state_layout(FsdpOptions{.sharding_strategy = "hybrid", .hybrid_size = 3}, 8), Error);
  // Parts and wholes of a copy that is not divided.
  EXPECT_DOUBLE_EQ(bytes(state_layout(FsdpOptions{.sharding_strategy = "none"}, 8), plain).device(), 4 + 4 + 4 + 8);

  const ZeroOptions cpu{.stage = 3, .offload_optimizer = {.device = "cpu"}, .offload_param = {.device = "cpu"}};
  const ZeroOffload nvme{.device = "nvme", .nvme_path = "somewhere"};
  const ZeroOptions disk{.stage = 3, .offload_optimizer = nvme, .offload_param = nvme};
  const ZeroOptions slots{.stage = 2, .offload_optimizer = nvme};
  // Of stage 3 the device keeps its shards unless they are offloaded, too.
  const auto stepped_on_host = state_layout(ZeroOptions{.stage = 3, .offload_optimizer = {.device = "cpu"}}, 2);
  EXPECT_DOUBLE_EQ(bytes(stepped_on_host, mixed).device(), 2 / 2.0);
  EXPECT_DOUBLE_EQ(bytes(stepped_on_host, mixed).host, (4 + 2 + 2 + 8) / 2.0);
  EXPECT_DOUBLE_EQ(bytes(state_layout(cpu, 2), plain).host, (4 + 4 + 8) / 2.0);
  EXPECT_DOUBLE_EQ(bytes(state_layout(disk, 2), plain).host, 4 / 2.0);  // the gradients
  EXPECT_DOUBLE_EQ(bytes(state_layout(disk, 2), mixed).host, (2 + 2) / 2.0);
  EXPECT_EQ(bytes(state_layout(disk, 2), mixed).device(), 0);
  EXPECT_DOUBLE_EQ(bytes(state_layout(slots, 2), mixed).host, (2 + 4 + 2) / 2.0);
  EXPECT_EQ(bytes(state_layout(slots, 2), mixed).device(), 2);

  const auto used = state_layout(FsdpOptions{.optimizer_in_backward = true}, 2);
  EXPECT_DOUBLE_EQ(bytes(used, plain).device(), (4 + 8) / 2.0);
  EXPECT_TRUE(state_layout(ZeroOptions{.stage = 2, .optimizer_in_backward = true}, 2).optimizer_in_backward);

  const FsdpOptions units{.auto_wrap_policy = policy::repeated(),
                          .mixed_precision = {.param_dtype = at::kHalf, .reduce_dtype = at::kFloat},
                          .activation_checkpointing_policy = policy::repeated(),
                          .activation_cpu_offload = true,
                          .forward_prefetch = 3,
                          .backward_prefetch = 2};
  const auto carried = state_layout(units, 2);
  EXPECT_TRUE(carried.units && carried.checkpointing && carried.offload_activations);
  EXPECT_EQ(carried.param_dtype, at::kHalf);
  EXPECT_EQ(carried.reduce_dtype, at::kFloat);

  detail::GroupLedger ledger{.figures = {}, .note = [] {}};
  std::vector<std::unique_ptr<detail::MeteredGroup>> groups;
  detail::Residency::Groups uses;
  for (int i = 0; i < 5; ++i) {
    groups.push_back(std::make_unique<detail::MeteredGroup>(ledger, detail::GroupSizes{1, 1, 1}));
    uses.push_back(groups.back().get());
  }
  const auto residency = carried.make_residency(uses, {});
  residency->begin_pass(detail::Pass::kForward, true);
  for (auto* use : uses) residency->before_use({use});
  residency->end_pass(detail::Pass::kForward);
  for (const auto& [pass, ahead] :
       {std::pair(detail::Pass::kForward, size_t{3}), std::pair(detail::Pass::kBackward, size_t{2})}) {
    residency->begin_pass(pass, true);
    residency->before_use({uses[0]});
    EXPECT_EQ(residency->ahead({uses[0]}).size(), ahead);
  }
}

TEST(Memory, OfPersistentParametersIsUnshardedAllThroughTheStep) {
  const auto ask = [](int64_t threshold) {
    return estimate_memory(
        small_vit, kForward, kClasses, images(1),
        {.layout = state_layout(
             ZeroOptions{.stage = 3, .stage3_prefetch_bucket_size = 1, .stage3_param_persistence_threshold = threshold},
             4),
         .device = at::kCPU});
  };
  const auto none = ask(0), all = ask(int64_t{1} << 40);
  EXPECT_EQ(none.parameters, all.parameters);  // between steps they are divided as well
  EXPECT_GT(all.timeline.points[1].bytes - none.timeline.points[1].bytes, 4 * 4 * 12 * 128 * 128 / 2);
  EXPECT_GT(all.device_peak, none.device_peak);
}

TEST(Memory, OnCudaIsRoundedAndHasAWorkspace) {
  const auto estimate =
      estimate_memory([] { return Mlp(10); }, kForward, kClasses, rows(3, 10), {.optimizer = "sgd", .workspace = 1000});
  EXPECT_EQ(estimate.parameters, 4 * 512);
  EXPECT_EQ(estimate.gradients, 4 * 512);
  EXPECT_GE(estimate.temporary, 1000 + 2 * 512);
  EXPECT_EQ(estimate_memory([] { return Mlp(10); }, kForward, kClasses, rows(3, 10), {}).device_peak -
                estimate_memory([] { return Mlp(10); }, kForward, kClasses, rows(3, 10), {.workspace = 0}).device_peak,
            int64_t{64} << 20);
}

/// cuBLAS takes a workspace for each thread that multiplies by torch's operators. Levin's layers in 16 bits do not.
TEST(Memory, OnCudaHasWorkspacesWhereTorchMultiplies) {
  const Batch images{{"x", torch::empty({2, 3, 32, 32}, at::kMeta)},
                     {"y", torch::empty({2}, torch::dtype(at::kLong).device(at::kMeta))}};
  const auto workspaces = [&](const auto& make, const auto& forward, const Batch& batch, MemoryQuestion question) {
    const auto all = estimate_memory(make, forward, kClasses, batch, question).device_peak;
    question.workspace = 0;
    return all - estimate_memory(make, forward, kClasses, batch, question).device_peak;
  };
  const auto vit = [] {
    return models::vit({.image_size = 32,
                        .patch_size = 8,
                        .num_layers = 2,
                        .num_heads = 2,
                        .hidden_dim = 64,
                        .mlp_dim = 128,
                        .num_classes = 10});
  };
  constexpr int64_t kOne = int64_t{32} << 20;
  EXPECT_EQ(workspaces(vit, kForward, images, {.precision = "bf16-true"}), 0);
  EXPECT_EQ(workspaces(vit, kForward, images, {.precision = "bf16-mixed"}), 0);
  EXPECT_EQ(workspaces(vit, kForward, images, {.precision = "bf16-mixed", .checkpoint_blocks = true, .accumulate = 2}),
            0);
  EXPECT_EQ(workspaces(vit, kForward, images, {.precision = "32-true"}), 2 * kOne);
  EXPECT_EQ(workspaces(vit, kForward, images, {.precision = "32-true", .device = c10::kCPU}), 0);
  // torch's own layer, which is no layer of Levin's.
  const auto plain = [] { return torch::nn::Sequential(torch::nn::Linear(10, 10), torch::nn::Linear(10, 5)); };
  const auto forward = [](auto& model, const Batch& batch) { return model->forward(batch["x"]); };
  EXPECT_EQ(workspaces(plain, forward, rows(3, 10), {.precision = "bf16-true"}), 2 * kOne);
}

/// What bench/memory_ladder.cpp measured on an H200 (bench/RESULTS.md).
TEST(Memory, OnCudaIsWhatWasMeasuredThere) {
  const auto blocks = policy::by_class<models::EncoderBlock>();
  struct Rung {
    const char* name;
    double measured;
    bool huge = false;
    std::string precision = "bf16-true";
    int64_t batch = 16;
    int accumulate = 1;
    std::string optimizer = "sgd";
    std::optional<FsdpOptions> fsdp = {};
  };
  const FsdpOptions lean{.auto_wrap_policy = blocks, .activation_checkpointing_policy = blocks};
  const std::vector<Rung> rungs{
      {.name = "float32", .measured = 23.311, .precision = "32-true", .batch = 64, .optimizer = "adam"},
      {.name = "16-mixed", .measured = 15.280, .precision = "16-mixed", .batch = 64, .optimizer = "adam"},
      {.name = "bf16-true", .measured = 11.585, .batch = 64, .optimizer = "adam"},
      {.name = "batch 16", .measured = 4.284, .optimizer = "adam"},
      {.name = "4 x 4", .measured = 3.078, .batch = 4, .accumulate = 4, .optimizer = "adam"},
      {.name = "4 x 4, sgd", .measured = 1.846, .batch = 4, .accumulate = 4},
      {.name = "huge", .measured = 6.614, .huge = true},
      {.name = "huge, checkpointed", .measured = 2.759, .huge = true, .fsdp = lean}};
  for (const auto& rung : rungs) {
    const Batch batch{{"x", torch::empty({rung.batch, 3, 224, 224}, at::kMeta)},
                      {"y", torch::empty({rung.batch}, torch::dtype(at::kLong).device(at::kMeta))}};
    const auto estimate = estimate_memory(
        [&] { return rung.huge ? models::vit_h_14({.num_classes = 10}) : models::vit_l_16({.num_classes = 10}); },
        kForward, kClasses, batch,
        {.layout = rung.fsdp ? state_layout(*rung.fsdp, 1) : state_layout("single_device", 1),
         .precision = rung.precision,
         .optimizer = rung.optimizer,
         .accumulate = rung.accumulate});
    const auto ratio = static_cast<double>(estimate.device_peak) / 1e9 / rung.measured;
    EXPECT_NEAR(ratio, 1, 0.02) << rung.name << ": " << static_cast<double>(estimate.device_peak) / 1e9 << " GB";
  }
}

/// The last rungs of bench/memory_ladder.cpp. tests/fabric/offload_gpu_test.cpp measures a smaller model.
TEST(Memory, OfOffloadedBlocksIsTwoBlocksAndTheActivationsOfOne) {
  const auto blocks = policy::by_class<models::EncoderBlock>();
  const auto ask = [&](bool huge) {
    const int64_t images = huge ? 16 : 4;
    const Batch batch{{"x", torch::empty({images, 3, 224, 224}, at::kMeta)},
                      {"y", torch::empty({images}, torch::dtype(at::kLong).device(at::kMeta))}};
    const FsdpOptions options{.auto_wrap_policy = blocks,
                              .cpu_offload = true,
                              .activation_checkpointing_policy = blocks,
                              .optimizer_in_backward = huge};
    return estimate_memory(
        [&] { return huge ? models::vit_h_14({.num_classes = 10}) : models::vit_l_16({.num_classes = 10}); }, kForward,
        kClasses, batch,
        {.layout = state_layout(options, 1), .precision = "bf16-true", .optimizer = "sgd", .accumulate = huge ? 1 : 4});
  };
  for (const bool huge : {false, true}) {
    const auto estimate = ask(huge);
    EXPECT_EQ(estimate.peak_part, StepPart::kBackward);
    // Of bench/RESULTS.md, 2026-11-18.
    EXPECT_NEAR(static_cast<double>(estimate.device_peak) / (huge ? 0.686e9 : 0.136e9), 1, 0.03);
    // In 16 bits: parameters, gradients, and those of a micro-batch that are added to them. What is stepped on the
    // device leaves none.
    EXPECT_NEAR(static_cast<double>(estimate.host) / static_cast<double>(estimate.num_parameters), huge ? 2 : 6, 0.01);
  }
}

/// Blocks that stay for the next forward are where activations have been: of small batches none does.
TEST(Memory, OfBlocksThatStayIsThatOfActivations) {
  const auto blocks = policy::by_class<models::EncoderBlock>();
  const auto peak = [&](int64_t images, bool in_backward) {
    const Batch batch{{"x", torch::empty({images, 3, 224, 224}, at::kMeta)},
                      {"y", torch::empty({images}, torch::dtype(at::kLong).device(at::kMeta))}};
    const FsdpOptions options{.auto_wrap_policy = blocks,
                              .cpu_offload = true,
                              .activation_checkpointing_policy = blocks,
                              .optimizer_in_backward = in_backward};
    return estimate_memory([&] { return models::vit_h_14({.num_classes = 10}); }, kForward, kClasses, batch,
                           {.layout = state_layout(options, 1), .precision = "bf16-true", .optimizer = "sgd"})
        .device_peak;
  };
  // A step on the device keeps the block at hand, of 39 MB, until its new values are on the host. Others cost nothing.
  for (const int64_t images : {1, 4, 16, 32}) EXPECT_LT(peak(images, true) - peak(images, false), 41'000'000) << images;
}

/// A block that ends with a norm, whose recomputation ends while the norm keeps its own result.
TEST(Memory, OfCheckpointedEncodersIsFreedByEveryMicroBatch) {
  const models::DecoderOptions body{
      .vocab_size = 100, .max_positions = 128, .num_layers = 6, .num_heads = 4, .hidden_dim = 64};
  models::TextEncoderOptions options{.body = models::encoder_body(body)};
  options.head = "sequence_classification", options.classifier = "relu";
  const auto tokens = torch::dtype(at::kLong).device(at::kMeta);
  const Batch batch{{"x", torch::empty({8, 128}, tokens)}, {"y", torch::empty({8}, tokens)}};
  const auto peak = [&](bool checkpointed, int micro_batches) {
    return estimate_memory([&] { return models::TextEncoder(options); }, kForward, kClasses, batch,
                           {.checkpoint_blocks = checkpointed, .accumulate = micro_batches, .workspace = 0})
        .device_peak;
  };
  EXPECT_LT(peak(true, 1), peak(false, 1) / 2);
  EXPECT_LT(peak(true, 8), peak(true, 1) * 3 / 2);
}

TEST(Memory, OfSumsOverAnyDimensions) {
  const auto ask = [](const auto& loss) {
    return estimate_memory([] { return Mlp(10); }, kForward, loss, rows(3, 10), {.workspace = 0}).device_peak;
  };
  EXPECT_GT(ask([](const Tensor& logits, const Batch&) { return logits.sum(-1).sum(0).sum(-1).sum(); }), 0);
  EXPECT_GT(ask([](const Tensor& logits, const Batch&) {
              return logits.sum(at::IntArrayRef{0, 1}, true).sum(at::kDouble);
            }),
            0);
  EXPECT_THROW(ask([](const Tensor& logits, const Batch&) { return logits.sum(2); }), Error);
}

/// Large batches are channels-last on a CPU with AVX-512 (nn::channels_last_where_faster): oneDNN's copies of weights
/// and of their gradients are a tenth of these steps.
void expect_channels_last_memory(const std::string& name, int64_t images) {
  const auto make = [&] { return models::make(name, {.num_classes = 10}); };
  const auto data = [&](c10::Device device) {
    return Batch{{"x", torch::zeros({images, 3, 224, 224}, device)},
                 {"y", torch::zeros({images}, torch::dtype(at::kLong).device(device))}};
  };
  const auto predicted =
      estimate_memory(make, kForward, kClasses, data(at::kMeta), {.optimizer = "sgd", .device = at::kCPU}).device_peak;
  MemoryCounter counter;
  auto model = make();
  const auto batch = data(at::kCPU);
  optim::SGD optimizer(model->parameters());
  for (int step = 0; step < 2; ++step) {
    counter.reset_peak();
    kClasses(kForward(model, batch), batch).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_NEAR(static_cast<double>(predicted), static_cast<double>(counter.peak()),
              0.05 * static_cast<double>(counter.peak()))
      << name;
}

TEST(Memory, OfChannelsLastImagesOnTheCpu) {
  if (at::get_cpu_capability() != "AVX512") GTEST_SKIP() << "this CPU has no AVX-512";
  expect_channels_last_memory("resnet18", 6);
  expect_channels_last_memory("resnet50", 2);
}

TEST(Memory, OfResidualNetworksAndMixedPrecisionOnCuda) {
  const Batch batch{{"x", torch::empty({4, 3, 64, 64}, at::kMeta)},
                    {"y", torch::empty({4}, torch::dtype(at::kLong).device(at::kMeta))}};
  const auto make = [] { return models::make("resnet50", {.num_classes = 10}); };
  const auto full = estimate_memory(make, kForward, kClasses, batch, {});
  const auto mixed = estimate_memory(make, kForward, kClasses, batch, {.precision = "bf16-mixed"});
  EXPECT_EQ(full.parameters, mixed.parameters);
  EXPECT_GT(full.activations, 0);
  const auto vit = estimate_memory(small_vit, kForward, kClasses, images(64), {});
  const auto vit_mixed = estimate_memory(small_vit, kForward, kClasses, images(64), {.precision = "bf16-mixed"});
  // Norms and sums stay in float32, products and attention do not; weights are kept in both.
  EXPECT_LT(vit_mixed.activations, vit.activations * 3 / 4);
  EXPECT_GT(vit_mixed.activations, vit.activations / 2);
}

/// The logits of a chunk are the largest tensor of this step, in the dtype of the products.
TEST(Memory, OfALossInChunksOnCudaIsThatOfItsPaddedLogits) {
  const Batch batch{{"x", torch::empty({8, 1024}, torch::dtype(at::kLong).device(at::kMeta))},
                    {"y", torch::empty({8, 1024}, torch::dtype(at::kLong).device(at::kMeta))}};
  const auto peak = [&](int64_t rows, const char* precision) {
    return estimate_memory(
               [&] {
                 return models::decoder({.vocab_size = 20011,
                                         .max_positions = 1024,
                                         .num_layers = 1,
                                         .num_heads = 4,
                                         .hidden_dim = 64,
                                         .loss_rows = rows});
               },
               [](auto& model, const Batch& given) { return model(given["x"], given["y"]); },
               [](const Tensor& loss, const Batch&) { return loss; }, batch, {.precision = precision})
        .device_peak;
  };
  for (const auto& [precision, width] :
       {std::pair("bf16-mixed", 2), std::pair("bf16-true", 2), std::pair("32-true", 4)})
    expect_near(peak(8192, precision) - peak(4096, precision), int64_t{4096} * 20032 * width, 0.03);
  // All rows fit in 16 bits; in float32 they are two chunks.
  EXPECT_EQ(peak(-1, "bf16-mixed"), peak(8192, "bf16-mixed"));
  EXPECT_LT(peak(-1, "32-true"), peak(8192, "32-true"));
}

/// Flash attention keeps no scores, whether heads share their keys or not.
TEST(Memory, OfSharedKeysOnCudaIsLessThanOfKeysOfEachHead) {
  const Batch batch{{"x", torch::empty({2, 1024}, torch::dtype(at::kLong).device(at::kMeta))}};
  const auto activations = [&](int64_t kv_heads) {
    return estimate_memory(
               [&] {
                 return models::decoder({.vocab_size = 512,
                                         .max_positions = 1024,
                                         .num_layers = 2,
                                         .num_heads = 8,
                                         .hidden_dim = 512,
                                         .norm = "rms",
                                         .activation = "silu_gated",
                                         .positions = "rotary",
                                         .kv_heads = kv_heads});
               },
               [](auto& model, const Batch& given) { return model(given["x"]); },
               [](const Tensor& y, const Batch&) { return y.sum(); }, batch, {.precision = "bf16-true"})
        .activations;
  };
  EXPECT_LT(activations(2), activations(8));
}

/// Samples, synchronized batch norm and estimates stand before torch's operators in one process, whoever comes first.
TEST(Memory, IsPredictedWhereSamplesWereDrawn) {
  const auto ask = [](c10::DeviceType device) {
    return estimate_memory(small_vit, kForward, kClasses, images(4), {.precision = "bf16-mixed", .device = device})
        .device_peak;
  };
  const auto draw = [](uint64_t seed) {
    Random random(seed, 0, 0);
    const detail::SampleRandomScope scope(random);
    const auto drawn = at::rand({4});
    return at::linear(drawn, at::ones({2, 4})).sum() + at::add(drawn, at::ones({4}, at::kDouble)).sum();
  };
  const auto sample = draw(3);
  const auto on_cpu = ask(at::kCPU), on_cuda = ask(at::kCUDA);
  EXPECT_TRUE(at::equal(draw(3), sample));
  EXPECT_EQ(ask(at::kCPU), on_cpu);
  EXPECT_EQ(ask(at::kCUDA), on_cuda);
  EXPECT_GT(on_cpu, 0);
}

TEST(Memory, WhatCannotBeEstimatedIsRefusedInOneLine) {
  const auto ask = [](const MemoryQuestion& question) -> std::string {
    return error_of([&] { estimate_memory([] { return Mlp(8); }, kForward, kClasses, rows(2, 8), question); });
  };
  EXPECT_THAT(ask({.strategy = "fdsp"}), HasSubstr("did you mean \"fsdp\"?"));
  EXPECT_THAT(ask({.precision = "bf17-true"}), HasSubstr("did you mean \"bf16-true\"?"));
  EXPECT_THAT(ask({.optimizer = "adamm"}), HasSubstr("did you mean \"adamw\"?"));
  EXPECT_THAT(ask({.strategy = "ddp", .offload = true}), HasSubstr("cannot offload"));
  EXPECT_THAT(ask({.strategy = "single_device", .world_size = 2}), HasSubstr("one process"));
  EXPECT_THAT(ask({.world_size = 0}), HasSubstr("1 or more"));
  EXPECT_THAT(ask({.offload_activations = true}), HasSubstr("choose units to checkpoint"));
  EXPECT_THAT(ask({.optimizer = "sgd", .moments_dtype = at::kBFloat16}), HasSubstr("for adam and adamw"));
  EXPECT_THAT(ask({.layout = state_layout(FsdpOptions{.optimizer_in_backward = true}, 2), .accumulate = 2}),
              HasSubstr("cannot accumulate"));
  const auto unknown = [](const Tensor& logits, const Batch&) {
    return std::get<0>(at::_linalg_svd(logits)).sum() + at::bincount(logits.argmax(1)).sum();
  };
  const auto line = error_of([&] { estimate_memory([] { return Mlp(8); }, kForward, unknown, rows(2, 8), {}); });
  EXPECT_THAT(line, HasSubstr("[estimate_memory] the step uses aten::bincount"));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  // After a failure all is as before.
  EXPECT_EQ(ask({}), "no error");
}

}  // namespace
}  // namespace levin
