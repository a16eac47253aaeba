// Encoders of text on one GPU, with less and less memory: time of a step and peak memory, technique by technique.
//   text_ladder [--only NAME,...] [--steps N] [--list] [--predict] [--tiny]
// DistilBERT on 12 texts of 512 tokens and BigBird on 4 of 4096, two classes: from float32 with Adam down to bfloat16,
// recomputed blocks, micro-batches, SGD, offloaded blocks, and adapters of low rank. A step is one call of forward and
// backward (of a micro-batch, where batches are accumulated). The flags are those of memory_ladder.
#include "bench/ladder/ladder.h"
#include "levin/models/lora/lora.h"
#include "levin/models/text_encoder_sizes.h"

namespace {

using levin::FsdpOptions;
using levin::bench::Birth;
using levin::bench::Rung;
using levin::models::DecoderBlock;

/// The rungs of a model, for batches of `batch`.
void add_rungs(std::vector<Rung>& rungs, const std::string& model, int64_t batch) {
  const auto blocks = levin::policy::by_class<DecoderBlock>();
  const auto add = [&](Rung rung) {
    rung.name = model + "_" + rung.name, rung.model = model;
    rung.warm = 4, rung.steps = 8;
    rungs.push_back(std::move(rung));
  };
  add({.name = "fp32", .precision = "32-true", .batch = batch});
  add({.name = "bf16mixed", .precision = "bf16-mixed", .batch = batch});
  add({.name = "bf16true", .batch = batch});
  add({.name = "ckpt", .batch = batch, .checkpointing = blocks});
  add({.name = "ckpt_acc4", .batch = batch / 4, .accumulate = 4, .checkpointing = blocks});
  add({.name = "ckpt_acc4_sgd", .batch = batch / 4, .accumulate = 4, .adam = false, .checkpointing = blocks});
  add({.name = "end_acc4",
       .batch = batch / 4,
       .accumulate = 4,
       .adam = false,
       .birth = Birth::kDeferred,
       .strategy =
           FsdpOptions{.auto_wrap_policy = blocks, .cpu_offload = true, .activation_checkpointing_policy = blocks}});
  add({.name = "lora", .batch = batch, .checkpointing = blocks, .lora = 8});
}

struct Text {
  static levin::models::TextEncoder make(const Rung& rung, bool tiny) {
    auto options = levin::models::text_encoder_options(rung.model);
    if (tiny) {
      auto& body = options.body;
      body.vocab_size = 100, body.num_layers = 2, body.num_heads = 2, body.hidden_dim = 32, body.mlp_dim = 64;
      if (options.block_size > 0) options.block_size = 4, options.random_blocks = 1;
    }
    levin::models::TextEncoder encoder(options);
    if (rung.lora == 0) return encoder;
    levin::models::LanguageModel whole{
        .model_type = rung.model,
        .encoder = encoder,
        .config = levin::models::ModelConfig(levin::models::text_encoder_config(rung.model), rung.model)};
    levin::models::add_lora(whole, {.rank = rung.lora});
    for (auto& layer : {encoder->classifier, encoder->classifier_dense})
      for (auto& parameter : layer->parameters()) parameter.set_requires_grad(true);
    return encoder;
  }

  static levin::Batch batch(const Rung& rung, bool tiny, c10::Device device) {
    const int64_t length = tiny ? 48 : rung.model == "big_bird" ? 4096 : 512;
    const auto options = at::TensorOptions(device).dtype(at::kLong);
    return {{"tokens", torch::randint(5, tiny ? 100 : 30000, {rung.batch, length}, options)},
            {"label", torch::randint(0, 2, {rung.batch}, options)}};
  }

  template <class Net>
  static at::Tensor logits(Net& net, const levin::Batch& batch) {
    return net(batch["tokens"]);
  }
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<Rung> rungs;
  add_rungs(rungs, "distilbert", 12);
  add_rungs(rungs, "big_bird", 4);
  return levin::bench::run_ladder<Text>(argc, argv, std::move(rungs));
}
