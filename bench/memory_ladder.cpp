// Vision transformers on one GPU, with less and less memory: time of a step and peak memory, technique by technique.
//   memory_ladder [--only NAME,...] [--steps N] [--list] [--predict] [--tiny]
// ViT-L/16 from float32 with Adam down to bfloat16, accumulated micro-batches, SGD and birth on the device; ViT-H/14
// under fsdp from one unit to offloaded blocks. A step is one call of forward and backward (of a micro-batch, where
// batches are accumulated). --predict: only what the peak will be, which needs no GPU. --tiny: a small model on
// whatever device there is, to see that every case runs.
#include "bench/ladder/ladder.h"

namespace {

using levin::FsdpOptions;
using levin::bench::Birth;
using levin::bench::Rung;
using levin::models::EncoderBlock;

std::vector<Rung> all_rungs() {
  const auto blocks = levin::policy::by_class<EncoderBlock>();
  const auto large = [](Rung rung) {
    rung.name = "vit_l16_" + rung.name, rung.model = "vit_l_16";
    return rung;
  };
  std::vector<Rung> rungs{
      large({.name = "fp32_bs64", .precision = "32-true", .batch = 64}),
      large({.name = "16mixed_bs64", .precision = "16-mixed", .batch = 64}),
      large({.name = "bf16mixed_bs64", .precision = "bf16-mixed", .batch = 64}),
      large({.name = "bf16true_bs64", .batch = 64}),
      large({.name = "bf16true_bs16", .batch = 16}),
      large({.name = "bf16true_bs4_acc4", .batch = 4, .accumulate = 4}),
      large({.name = "bf16true_bs4_acc4_sgd", .batch = 4, .accumulate = 4, .adam = false}),
      large({.name = "bf16true_bs4_acc4_sgd_init",
             .batch = 4,
             .accumulate = 4,
             .adam = false,
             .birth = Birth::kOnDevice}),
      large({.name = "end_bs4_acc4",
             .batch = 4,
             .accumulate = 4,
             .adam = false,
             .birth = Birth::kDeferred,
             .strategy =
                 FsdpOptions{
                     .auto_wrap_policy = blocks, .cpu_offload = true, .activation_checkpointing_policy = blocks}}),
  };
  const auto fsdp = [&](const std::string& name, const FsdpOptions& options) {
    rungs.push_back({.name = "vit_h14_fsdp1_" + name + "_bs16_sgd_bf16true",
                     .model = "vit_h_14",
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
  rungs.push_back(rungs.back());
  rungs.back().name += "_compiled";
  rungs.back().compile = true;
  return rungs;
}

struct Vision {
  static levin::models::VisionTransformer make(const Rung& rung, bool tiny) {
    if (tiny)
      return levin::models::vit({.image_size = 32,
                                 .patch_size = 16,
                                 .num_layers = 3,
                                 .num_heads = 2,
                                 .hidden_dim = 512,
                                 .mlp_dim = 2048,
                                 .num_classes = 10});
    return rung.model == "vit_h_14" ? levin::models::vit_h_14({.num_classes = 10})
                                    : levin::models::vit_l_16({.num_classes = 10});
  }

  static levin::Batch batch(const Rung& rung, bool tiny, c10::Device device) {
    const auto side = tiny ? 32 : 224;
    return {{"image", torch::randn({rung.batch, 3, side, side}, device)},
            {"label", torch::randint(0, 10, {rung.batch}, at::TensorOptions(device).dtype(at::kLong))}};
  }

  template <class Net>
  static at::Tensor logits(Net& net, const levin::Batch& batch) {
    return net(batch["image"]);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return levin::bench::run_ladder<Vision>(argc, argv, all_rungs());
}
