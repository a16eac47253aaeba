#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/models/decoder_options.h"
#include "levin/models/language/model_config.h"
#include "levin/models/text_encoder_options.h"

/// Architectures of language models. Each is a file that says how its config.json becomes options and how the files of
/// transformers call its tensors; the forward is that of Decoder or TextEncoder. The table is in architecture.cpp.
namespace levin::models {

/// How a tensor stands in a file.
enum class WeightLayout {
  kPlain,
  /// A matrix is [in, out] in the file; a bias is plain.
  kTransposed,
  /// Queries, keys and values of each head are side by side: rows [H, 3, D] in the file, [3, H, D] here.
  kByHead,
  /// One tensor of the file for each expert, '@' in its name; here they are one, [experts, ...].
  kStacked,
};

/// A tensor of the module and its names in the file. '#' is the number of a layer, '*' is "weight" or "bias", '@' the
/// number of an expert.
struct WeightRule {
  std::string ours;
  /// Several (queries, keys, values) are joined, in this order.
  std::vector<std::string> theirs;
  WeightLayout layout = WeightLayout::kPlain;
  /// Another name that old or new files have; of a rule with one name.
  std::string also = {};
};

struct LanguageArchitecture {
  /// As in config.json.
  std::string_view model_type;
  /// What the classes of transformers begin with: "GPT2" of GPT2ForSequenceClassification.
  std::string_view class_name;
  /// What stands before the names of the body in a model with a head. It may be missing in a file, or stand twice.
  std::string_view prefix;
  /// Names without the prefix.
  std::vector<WeightRule> rules;
  /// In some files, and no weights: masks, frequencies.
  std::vector<std::string> ignored = {};
  /// Beginnings of the names of heads. An encoder may be opened with another head than its file has: what is left over
  /// of these is no mistake.
  std::vector<std::string> of_heads = {};
  /// Whether the head is tied when config.json does not say it.
  bool tied = true;
  /// One of the two.
  DecoderOptions (*decoder)(const ModelConfig& config) = nullptr;
  TextEncoderOptions (*encoder)(const ModelConfig& config) = nullptr;
};

LanguageArchitecture gpt2_architecture(), llama_architecture(), mistral_architecture(), qwen2_architecture(),
    qwen3_architecture(), gemma_architecture(), gemma2_architecture(), bloom_architecture(), opt_architecture(),
    gpt_neox_architecture(), bert_architecture(), distilbert_architecture(), roberta_architecture(),
    big_bird_architecture(), mixtral_architecture(), qwen2_moe_architecture(), qwen3_moe_architecture(),
    olmoe_architecture();

/// The full name of a tensor of the file: with the prefix, but for the heads, which stand beside the body.
std::string full_name(const LanguageArchitecture& architecture, std::string_view ours, const std::string& theirs);

const std::vector<LanguageArchitecture>& architectures_of_text();
/// By the model_type of config.json; an Error with the nearest when it is not known.
const LanguageArchitecture& architecture_of(const ModelConfig& config);

/// Bounds of what a config may ask for: refused before anything is made.
inline constexpr int64_t kMostLayers = 10'000, kMostWidth = 1 << 20, kMostHeads = 1 << 16, kMostTokens = 1 << 28,
                         kMostPositions = int64_t{1} << 31;

// ---- parts that several architectures share

/// hidden_act of transformers as DecoderOptions calls it.
std::string activation_option(const ModelConfig& config, std::initializer_list<const char*> keys, const char* usual);
/// rope_parameters, or rope_theta and rope_scaling: base, width and scaling. `partial` is the fraction of a head that
/// is rotated unless the config says it; none: heads are rotated whole whatever it says, as transformers does.
void read_rotary(const ModelConfig& config, DecoderOptions& options, std::optional<double> partial = {});
/// layer_types of a model with a sliding window.
std::vector<bool> windowed_layers(const ModelConfig& config, int64_t layers);
/// Sizes, norms, MLP and heads of Llama and its relatives. `head_dim` is the width of a head where the config does not
/// say it; 0: hidden_size / num_attention_heads.
DecoderOptions llama_options(const ModelConfig& config, int64_t head_dim = 0);
std::vector<WeightRule> llama_weights();
/// The experts of a model that derives from Llama: sizes from its config, and the names of its tensors.
/// `count` and `per_token` are those of a config that does not say them.
void read_experts(const ModelConfig& config, DecoderOptions& options, int64_t count, int64_t per_token,
                  double balance_loss = 0.001);
std::vector<WeightRule> with_experts(std::vector<WeightRule> rules, const std::string& module, const std::string& gate,
                                     const std::string& up, const std::string& down);
/// The same of BERT and its relatives, without the choice of a head.
TextEncoderOptions bert_options(const ModelConfig& config);
std::vector<WeightRule> bert_weights();
/// The number of classes: id2label, num_labels, or 2.
int64_t labels_of(const ModelConfig& config);

}  // namespace levin::models
