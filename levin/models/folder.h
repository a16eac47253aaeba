#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include "levin/models/decoder.h"
#include "levin/models/language/model_config.h"
#include "levin/models/text_encoder.h"
#include "levin/nn/tensor/split.h"

namespace levin {
class ShardMap;
}

namespace levin::models {

/// A language model and what its folder says of it. One of `decoder` and `encoder` is there.
struct LanguageModel {
  /// "gpt2", "llama", ...
  std::string model_type;
  Decoder decoder = nullptr;
  TextEncoder encoder = nullptr;
  ModelConfig config;
  /// Where it was opened; empty for a new one.
  std::filesystem::path folder = {};
  /// Of the parameters.
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// How the linear layers of its blocks are quantized.
  std::optional<kernels::QuantizeOptions> quantization = {};
  /// What was decided while loading: a head that is not tied though the config says so.
  std::vector<std::string> notes = {};
  /// Of a model that is split over ranks; else null.
  std::shared_ptr<TensorSplit> split = {};
  /// Ends of names of modules that are trained whole beside adapters, as transformers calls them: "lm_head", "score"
  /// (levin/models/lora/lora.h).
  std::vector<std::string> saved_modules = {};

  torch::nn::Module& module() const;
  /// Sizes of the blocks.
  const DecoderOptions& body() const;
};

struct OpenModelOptions {
  /// None: what config.json says (`dtype`, `torch_dtype`), else what the file has.
  std::optional<c10::ScalarType> dtype = {};
  c10::Device device = c10::kCPU;
  /// Of an encoder: "none" (hidden states, embeddings), "masked_lm", "sequence_classification" or
  /// "token_classification"; of a decoder "causal_lm" or "sequence_classification"; "auto": by the `architectures` of
  /// config.json.
  std::string head = "auto";
  /// The linear layers of the blocks in few bits: "int8", "int8-weights", "int4", "nf4", "nf4-double", "fp8", with
  /// groups "int4:64" (levin/kernels/quantized/quantized_weight.h). Each tensor is quantized when it is read, and does
  /// not stay. Empty: as config.json says.
  std::string quantize = {};
  /// Names of the classes of a classification head, to fine-tune one. Its last layer is new unless the folder has one
  /// for these names; what else of a head the folder lacks is new too. Empty: all is in the folder.
  std::vector<std::string> labels = {};
  /// Ranks that have the model together (tensor parallelism): each of them opens the folder, and reads its part of the
  /// weights. Null: this one has all of it.
  TensorRanks ranks = {};
  /// Of a decoder that classifies, where config.json has no pad_token_id: this one. -1: none.
  int64_t pad_token = -1;
  /// Is told how many bytes of weights were read just now, by the threads that read, one at a time.
  std::function<void(int64_t bytes)> on_read = {};
};

/// Opens a folder in the layout of transformers: config.json with model.safetensors, pytorch_model.bin, or an index of
/// several. Names, shapes and types are checked before anything is allocated; then every tensor is read to its place.
/// Nothing is missing, left over or guessed: what does not fit is one Error that lists it. The model is in eval mode.
///
///     auto model = levin::models::open_model("pythia-410m", {.dtype = at::kBFloat16, .device = at::kCUDA});
///     auto logits = model.decoder(tokens);
LanguageModel open_model(const std::filesystem::path& folder, const OpenModelOptions& options = {});

/// Reads the model of a folder in parts, as open_model reads all of it at once.
///
///     ModelReader reader(folder, options);
///     for (...) reader.read({"blocks.3"});
///     auto model = reader.finish();
class ModelReader {
 public:
  /// Names, shapes and types are checked; nothing is allocated.
  explicit ModelReader(const std::filesystem::path& folder, const OpenModelOptions& options = {});
  ~ModelReader();
  ModelReader(ModelReader&&) noexcept;

  /// Parameters are without data until they are read (levin/nn/deferred_init.h).
  const LanguageModel& model() const;
  /// Weights of these modules and below get memory on the device of the options, and their numbers, in few bits where
  /// they are to be. An empty name is all.
  void read(const std::vector<std::string>& modules);
  /// Whether weights of these modules become quantized when they are read, or are new.
  bool changes(const std::vector<std::string>& modules) const;
  /// What reads parameters of the model to other places of the same shape and dtype, at any time: of modules that
  /// do not change. It outlives the reader.
  std::function<void(const std::vector<Tensor>& places)> later(const std::vector<Tensor>& parameters) const;
  /// The model, with what was not read as it is.
  LanguageModel finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Sizes and dtype of the model in a folder, on tensors without memory: nothing but headers is read.
LanguageModel open_model_meta(const std::filesystem::path& folder, const OpenModelOptions& options = {});

/// Names of the classes, by number: `id2label` of the config, else LABEL_0, LABEL_1, ...
std::vector<std::string> label_names(const ModelConfig& config);
/// Parameters of a classification head: what stays trainable beside adapters.
std::vector<Tensor> head_parameters(const LanguageModel& model);
/// Their modules as transformers calls them: "score"; "pooler" and "classifier". Empty for other heads.
std::vector<std::string> head_modules(const LanguageModel& model);

/// A model with new weights, from the text of a config.json.
LanguageModel new_model(std::string_view config_json, const OpenModelOptions& options = {});

/// Quantizes the linear layers of the blocks, as OpenModelOptions::quantize does. They are frozen then; see lora.h for
/// what can be trained.
void quantize_model(LanguageModel& model, const std::string& quantize);

struct SaveModelOptions {
  /// Bytes of one file; a larger model is several, with an index.
  uint64_t max_shard_size = 5'000'000'000;
  /// Replaces what is at the path.
  bool overwrite = false;
  /// Of a model whose parameters are sharded over ranks: `strategy.shards()`. One that was opened with
  /// OpenModelOptions::ranks knows it itself. Every rank calls then, and rank 0 writes.
  /// Parameters are gathered one by one: in host memory are those of a block at most.
  ShardMap* shards = nullptr;
};

/// Writes a folder that transformers and open_model read: config.json and weights under their names, and the files of
/// the tokenizer from the folder that the model was opened from; whole or not at all. Quantized weights stay quantized:
/// 8-bit and NF4 weights as bitsandbytes has them.
void save_model(const LanguageModel& model, const std::filesystem::path& folder, const SaveModelOptions& options = {});

}  // namespace levin::models
