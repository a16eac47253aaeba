#pragma once

#include <cstdint>
#include <optional>

#include "levin/models/folder.h"
#include "levin/program/commands/memory_rows.h"

/// Language models of `levin memory`: of a name or of a folder, quantized and with adapters where that is asked for.
namespace levin::cli {

/// Whether --model names a folder with a config.json.
bool is_model_folder(const std::string& model);
/// The most tokens of a text that the model takes; 0 for what is no language model.
int64_t longest_text_of(const std::string& model);

/// The model of the step without data, its parameters in `dtype`. It trains what the recipes train: all of it, or
/// adapters and the head of a classifier.
models::LanguageModel memory_model(const MemoryStep& step, c10::ScalarType dtype);
MemoryEstimate estimate_language(const MemoryStep& step, const MemoryQuestion& question);

/// Bytes of generating text with the model.
struct InferenceMemory {
  int64_t parameters = 0;
  int64_t weights = 0;
  /// Keys and values of all sequences at their full length.
  int64_t cache = 0;
  /// The most that one pass over all tokens needs besides: activations, dequantized weights.
  int64_t temporary = 0;
  int64_t total() const { return weights + cache + temporary; }
};
InferenceMemory estimate_inference(const MemoryStep& step);

}  // namespace levin::cli
