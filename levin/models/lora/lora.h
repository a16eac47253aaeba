#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "levin/models/folder.h"

namespace levin::models {

struct LoraOptions {
  int64_t rank = 8;
  /// The change is multiplied by alpha / rank, with rslora by alpha / sqrt(rank).
  double alpha = 8;
  bool rslora = false;
  /// Fraction of the inputs of an adapter that is dropped in training.
  double dropout = 0;
  /// Linear layers as transformers calls them, or the ends of their names: "q_proj", "c_attn"; "all-linear": all of the
  /// blocks.
  std::vector<std::string> target_modules = {"all-linear"};
  /// Modules that are trained whole beside the adapters, and saved with them, by the ends of their names: "lm_head",
  /// "embed_tokens", "score". A tied head or embedding becomes a copy, as in PEFT.
  std::vector<std::string> modules_to_save = {};
};

/// Adds adapters of low rank to linear layers and freezes all other parameters. They begin as no change.
///
///     levin::models::add_lora(model, {.rank = 16, .alpha = 32, .target_modules = {"q_proj", "v_proj"}});
///     levin::optim::AdamW opt(levin::models::lora_parameters(model), {.lr = 1e-4});
void add_lora(LanguageModel& model, const LoraOptions& options = {});
/// Adds modules that are trained whole and saved with the adapters; LoraOptions::modules_to_save of a model that has
/// adapters.
void train_modules(LanguageModel& model, const std::vector<std::string>& modules_to_save);
/// Parameters that are trained: those of the adapters and of modules_to_save.
std::vector<Tensor> lora_parameters(const LanguageModel& model);

/// Adds the adapters of a folder of PEFT: adapter_config.json and adapter_model.safetensors (or .bin). Plain LoRA of
/// linear layers of the blocks, and modules_to_save; what else a config asks for is refused.
void load_lora(LanguageModel& model, const std::filesystem::path& folder);
/// Writes such a folder.
void save_lora(const LanguageModel& model, const std::filesystem::path& folder);
/// Adds the changes to the weights and takes the adapters away, so that save_model can write the result.
void merge_lora(LanguageModel& model);

}  // namespace levin::models
