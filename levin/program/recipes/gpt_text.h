#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "levin/models/decoder.h"
#include "levin/program/recipes/gpt_text_data.h"
#include "levin/trainer/callbacks/memory_report.h"
#include "levin/trainer/train_module.h"

namespace levin::cli {

/// GPT-2 from random weights, or a Mixtral where there are experts. Logs train_loss, val_loss, val_bpc (bits per
/// character), test_loss and test_bpc, prints a sample after each validation, and leaves a model folder of
/// transformers' layout beside the logs.
class GptText : public TrainModule, public PredictsMemory, public ChoosesDecay {
 public:
  struct Options {
    int64_t n_layer = 4;
    int64_t n_head = 4;
    int64_t n_embd = 128;
    int64_t block_size = 64;
    double dropout = 0;
    bool bias = false;
    int64_t experts = 0;
    int64_t experts_per_token = 2;
    int64_t expert_dim = 0;
    double capacity_factor = 0;
    double balance_loss = 0.01;
    double router_z_loss = 0;
    int64_t vocab_multiple = 1;
    std::filesystem::path weights = {};
    int64_t sample_tokens = 300;
    std::string prompt = {};
    double temperature = 0.8;
    int64_t top_k = 200;

    void fields(auto f) {
      f("n_layer", n_layer, "blocks");
      f("n_head", n_head, "attention heads; must divide n_embd");
      f("n_embd", n_embd, "embedding dimension");
      f("block_size", block_size, "tokens of a window: the longest context");
      f("dropout", dropout, "dropout probability");
      f("bias", bias, "biases of linear layers and layer norms");
      f("experts", experts, "experts of each block: the model is a Mixtral then; 0: GPT-2");
      f("experts_per_token", experts_per_token, "experts that a token goes through");
      f("expert_dim", expert_dim, "width of an expert; 0: 4 * n_embd / experts_per_token");
      f("capacity_factor", capacity_factor, "an expert takes N times its even share of tokens at most; 0: all");
      f("balance_loss", balance_loss, "weight of the loss that balances the load of experts in training");
      f("router_z_loss", router_z_loss, "weight of the loss that keeps the logits of routers small");
      f("vocab_multiple", vocab_multiple, "rows of the embedding are a multiple of N; 64 is faster on a GPU");
      f("weights", weights, "model folder of GPT-2 to begin with, sizes included; default: random weights");
      f("sample_tokens", sample_tokens, "tokens of the sample after each validation; 0: none");
      f("prompt", prompt, "how samples begin; default: a line end, or the token of the end of a text");
      f("temperature", temperature, "of samples; 0: always the likeliest token");
      f("top_k", top_k, "samples are of the k likeliest tokens; 0: of all");
    }
  };

  explicit GptText(Options options);

  /// Whose tokens it learns; they decide the size of the vocabulary.
  void use_data(std::shared_ptr<GptTextData> data);
  void configure_model() override;
  /// Matrices alone.
  bool decays(const std::string& parameter) const override { return !vectors_.contains(parameter); }

  StepOutput training_step(const Batch& batch, const StepInfo&) override;
  StepOutput validation_step(const Batch& batch, const StepInfo&) override { return evaluate(batch, "val"); }
  StepOutput test_step(const Batch& batch, const StepInfo&) override { return evaluate(batch, "test"); }
  /// Prints each text that was asked for; its tokens, [B, prompt and sample_tokens].
  StepOutput predict_step(const Batch& batch, const StepInfo&) override;

  void on_validation_end() override;
  void on_fit_end() override;
  void on_save_checkpoint(StateDict& checkpoint) override;
  void on_load_checkpoint(StateDict& checkpoint) override;
  TrainingStep make_step() const override;

  models::Decoder net = nullptr;

 private:
  /// Sizes of a Mixtral.
  void take_experts();
  /// Sizes and weights of a model folder.
  void begin_with(const std::filesystem::path& folder);
  StepOutput evaluate(const Batch& batch, const char* stage);
  std::vector<int64_t> prompt_ids() const;
  /// Prints a sample and gives it to the loggers. Every rank must call.
  void speak();
  /// The prompt and what follows, the same on every rank. `call` runs a call of the model, of which every rank has a
  /// part: every rank must call.
  using CallModel = std::function<void(const std::function<void()>&)>;
  std::vector<int64_t> sample(models::Decoder& model, int64_t number, const CallModel& call);
  /// Where no rank can run the model alone: rank 0 has it whole for the sample. Others get the prompt.
  std::vector<int64_t> sample_whole();

  Options options_;
  models::DecoderOptions sizes_;
  std::string config_;  // config.json of the model folder that is written
  std::shared_ptr<GptTextData> data_;
  int64_t spoken_at_ = -1;         // step
  std::set<std::string> vectors_;  // names of parameters that are no matrices
};

/// Writes a decoder of gpt_text as a model folder of transformers' layout, which has every bias: those that it lacks
/// are zero. The files of the tokenizer are copied.
void save_gpt_text(const models::Decoder& decoder, const std::string& config_json, const TextTokens& tokens,
                   const std::filesystem::path& folder);

}  // namespace levin::cli
