#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace levin::cli {

/// What a folder with config.json says of its model, and the memory that it takes.
struct ModelFacts {
  std::string model_type, dtype;
  /// Of its linear layers; empty where they are not quantized.
  std::string quantization;
  int64_t parameters = 0, layers = 0, hidden = 0, heads = 0, kv_heads = 0, vocab = 0, positions = 0;
  /// Experts of a layer, those of a token, and the parameters that a token goes through; 0: there are none.
  int64_t experts = 0, experts_per_token = 0, active_parameters = 0;
  /// Bytes of the weights, and of keys and values of one token.
  int64_t weights = 0, cache_per_token = 0;
  /// Predicted peak of a training step with adam in 32-true on CUDA, with one sequence of `training_tokens`; of a
  /// quantized model in its dtype, with adapters of rank 8 (QLoRA). None where the step cannot be played.
  std::optional<int64_t> training;
  int64_t training_tokens = 0;

  std::string to_string() const;
};

/// None for what is not a folder of a known model. `quantize`: as OpenModelOptions has it.
std::optional<ModelFacts> model_facts(const std::string& folder, const std::string& quantize = {});

}  // namespace levin::cli
