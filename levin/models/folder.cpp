#include "levin/models/folder.h"

#include <algorithm>
#include <functional>
#include <map>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/io/weights/weight_formats.h"
#include "levin/models/language/quantized_weights.h"
#include "levin/models/language/weight_plan.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/tie.h"

namespace levin::models {
namespace {

namespace fs = std::filesystem;

/// What a folder holds besides config and weights.
constexpr const char* kFilesOfText[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
};

c10::ScalarType dtype_of_config(const ModelConfig& config, c10::ScalarType usual) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    auto word = config.text(key, "");
    if (word.empty() || word == "auto") continue;
    if (word.starts_with("torch.")) word.erase(0, 6);
    const auto dtype = dtype_from_name("open_model", word);
    if (!at::isFloatingType(dtype) || at::elementSize(dtype) < 2)
      config.fail(key, "\"" + word + "\" is not a dtype of models (float32, bfloat16, float16 or float64)");
    return dtype;
  }
  return usual;
}

c10::ScalarType dtype_of_file(const WeightFile& file) {
  for (const auto& entry : file.entries())
    if (!detail::belongs_to_packed(entry.name) && entry.type != c10::ScalarType::Undefined &&
        at::isFloatingType(entry.type) && at::elementSize(entry.type) >= 2)
      return entry.type;
  return at::kFloat;
}

/// What the names of an embedding and a head in a file mean for the model.
struct HeadPlan {
  bool tied = false;
  /// The embedding is read from the head's tensor.
  bool embedding_from_head = false;
  /// A second tensor with the same values, which nobody reads.
  std::vector<std::string> unused = {};
  std::string note = {};
};

/// The name under which a file has the weight of ours, or empty.
std::string found_name(const detail::WeightNames& names, const LanguageArchitecture& architecture, const char* ours) {
  const auto theirs = detail::their_weight(architecture, ours);
  if (!theirs) return {};
  if (names.find(theirs->names[0])) return theirs->names[0];
  return !theirs->also.empty() && names.find(theirs->also) ? theirs->also : "";
}

HeadPlan plan_head(const ModelConfig& config, const LanguageArchitecture& architecture,
                   const detail::WeightNames& names, const char* embedding_name, const char* head_name) {
  HeadPlan plan{.tied = config.flag("tie_word_embeddings", architecture.tied)};
  if (!plan.tied) return plan;
  const auto embedding = found_name(names, architecture, embedding_name);
  const auto head = found_name(names, architecture, head_name);
  if (head.empty()) return plan;
  if (embedding.empty()) {
    plan.embedding_from_head = true;
  } else if (detail::equal_in_file(names.file(), *names.find(embedding), *names.find(head))) {
    plan.unused.push_back(head);
  } else {
    plan.tied = false;
    plan.note =
        fmt::format("\"{}\" and \"{}\" differ: the head is not tied, though config.json says so", embedding, head);
  }
  return plan;
}

detail::QkvRows qkv_rows(const DecoderOptions& options) {
  const auto width = options.head_width();
  return {options.num_heads * width, options.key_heads() * width, options.key_heads() * width};
}

/// The head of an encoder by the first of `architectures`: "BertForMaskedLM".
std::string head_of_config(const ModelConfig& config) {
  const auto names = config.texts("architectures");
  if (names.empty()) return "none";
  const std::vector<std::pair<std::string_view, const char*>> endings{
      {"ForMaskedLM", "masked_lm"},
      {"ForPreTraining", "masked_lm"},
      {"ForSequenceClassification", "sequence_classification"},
      {"ForTokenClassification", "token_classification"},
      {"Model", "none"}};
  for (const auto& [ending, head] : endings)
    if (names[0].ends_with(ending)) return head;
  config.fail("architectures",
              fmt::format("\"{}\" has a head that is not known; open it with head \"none\"", shown(names[0])));
}

LanguageModel made_model(const ModelConfig& config, const LanguageArchitecture& architecture, std::optional<bool> tied,
                         const detail::WeightNames* names, const OpenModelOptions& asked, c10::ScalarType dtype,
                         const InitOptions& init) {
  LanguageModel model{.model_type = std::string(architecture.model_type), .config = config, .dtype = dtype};
  const bool tied_head = tied.value_or(config.flag("tie_word_embeddings", architecture.tied));
  if (architecture.decoder) {
    LEVIN_CHECK(asked.head == "auto", "[open_model] head \"", asked.head, "\" is of encoders; ",
                architecture.model_type, " is a decoder");
    auto options = architecture.decoder(config);
    options.tied_head = tied_head;
    model.decoder = init_module([&] { return Decoder(options); }, init);
    return model;
  }
  auto options = architecture.encoder(config);
  options.body.tied_head = tied_head;
  options.head = asked.head == "auto" ? head_of_config(config) : asked.head;
  const bool classifies = options.head == "sequence_classification" && options.classifier == "pooler";
  // transformers saves the pooler with a model without a head only where there was one.
  const bool in_file = options.head == "none" && names && !found_name(*names, architecture, "pooler.weight").empty();
  options.pooler = classifies || in_file;
  model.encoder = init_module([&] { return TextEncoder(options); }, init);
  return model;
}

/// A model without data, and what its tensors are read from.
struct PlannedModel {
  LanguageModel model;
  std::vector<detail::PlannedWeight> weights;
  /// Those that become quantized.
  struct Quantized {
    detail::PlannedWeight weight;
    DecoderLinearImpl* layer;
  };
  std::vector<Quantized> quantized;
};

/// How the linear layers are to be: what the file has, or what is asked for.
std::optional<kernels::QuantizeOptions> wanted_quantization(const ModelConfig& config, const std::string& word,
                                                            const std::optional<kernels::QuantizeOptions>& stored) {
  if (word.empty()) return stored;
  auto wanted = kernels::quantization_of("open_model", word);
  if (!stored) return wanted;
  const auto eight = [](const auto& options) {
    return options.kind == kernels::Quantization::kInt8 || options.kind == kernels::Quantization::kInt8Weights;
  };
  if (eight(*stored) && eight(wanted)) return wanted;  // the same numbers, multiplied in another way
  if (quantization_name(*stored) != quantization_name(wanted))
    config.fail("quantization_config", fmt::format("the weights are {} already, {} is asked for",
                                                   quantization_name(*stored), quantization_name(wanted)));
  return stored;
}

/// Takes the weights that become quantized out of the plan.
void plan_quantized(PlannedModel& planned, bool stored) {
  std::unordered_map<std::string, DecoderLinearImpl*> layers;
  for (const auto& [name, layer] : detail::linear_layers(planned.model.module(), /*only_blocks=*/!stored))
    layers.emplace(name, layer);
  std::vector<detail::PlannedWeight> plain;
  for (auto& weight : planned.weights) {
    const auto layer = layers.find(weight.name);
    LEVIN_CHECK(!weight.packed || layer != layers.end(), "[open_model] \"", weight.sources[0],
                "\" is quantized, but no linear layer");
    if (layer != layers.end() && (weight.packed || !stored))
      planned.quantized.push_back({std::move(weight), layer->second});
    else
      plain.push_back(std::move(weight));
  }
  planned.weights = std::move(plain);
}

kernels::QuantizedWeight quantized_weight(const WeightFile& file, const detail::PlannedWeight& weight,
                                          const LanguageModel& model, c10::Device device) {
  const auto heads = model.body().num_heads;
  if (weight.packed) return detail::read_quantized(file, weight, *model.quantization, heads, device);
  auto read = weight;
  read.target = at::empty(weight.target.sizes(), at::TensorOptions().dtype(model.dtype));
  detail::read_weights(file, {read}, heads);
  return kernels::quantize(read.target.to(device), *model.quantization, weight.rows);
}

PlannedModel planned_model(const fs::path& folder, const WeightFile& file, const ModelConfig& config,
                           const OpenModelOptions& options) {
  const auto& architecture = architecture_of(config);
  const auto stored = detail::quantization_in(config);
  const auto quantization = wanted_quantization(config, options.quantize, stored);
  const detail::WeightNames names(file, architecture, stored.has_value());
  const auto dtype = options.dtype.value_or(dtype_of_config(config, dtype_of_file(file)));
  const auto head_word = options.head == "auto" && architecture.encoder ? head_of_config(config) : options.head;
  const bool predicts = architecture.decoder || head_word == "masked_lm";
  const auto head = predicts ? plan_head(config, architecture, names, "tokens.weight", "head.weight") : HeadPlan{};
  PlannedModel planned{made_model(config, architecture, head.tied, &names, options, dtype,
                                  {.device = options.device, .dtype = dtype, .deferred = true}),
                       {},
                       {}};
  auto& model = planned.model;
  model.folder = folder;
  if (!head.note.empty()) {
    model.notes.push_back(head.note);
    log_warning(fmt::format("[open_model] \"{}\": {}", folder.string(), head.note));
  }
  std::unordered_map<std::string, std::string> instead;
  if (head.embedding_from_head) instead.emplace("tokens.weight", "head.weight");
  planned.weights = detail::plan_weights(model.module(), names, architecture, qkv_rows(model.body()),
                                         model.body().num_heads, instead, head.unused, dtype);
  model.quantization = quantization;
  if (quantization) plan_quantized(planned, stored.has_value());
  return planned;
}

ModelConfig config_in(const fs::path& folder) {
  LEVIN_CHECK(fs::is_directory(folder), "[open_model] \"", folder.string(), "\" is not a folder");
  return ModelConfig::read(folder / "config.json");
}

}  // namespace

torch::nn::Module& LanguageModel::module() const {
  LEVIN_CHECK(decoder || encoder, "[LanguageModel] is empty");
  if (decoder) return *decoder.ptr();
  return *encoder.ptr();
}

const DecoderOptions& LanguageModel::body() const {
  LEVIN_CHECK(decoder || encoder, "[LanguageModel] is empty");
  return decoder ? decoder->options : encoder->options.body;
}

LanguageModel open_model(const fs::path& folder, const OpenModelOptions& options) {
  const auto config = config_in(folder);
  const WeightFile file(folder);
  auto [model, plan, quantized] = planned_model(folder, file, config, options);
  std::vector<Tensor> targets;
  for (const auto& weight : plan) targets.push_back(weight.target);
  materialize(targets, /*initialize=*/false);
  detail::read_weights(file, plan, model.body().num_heads);
  for (const auto& [weight, layer] : quantized)
    layer->set_quantized(quantized_weight(file, weight, model, options.device));
  model.module().eval();
  return model;
}

LanguageModel open_model_meta(const fs::path& folder, const OpenModelOptions& options) {
  const auto config = config_in(folder);
  const WeightFile file(folder);
  auto [model, plan, quantized] = planned_model(folder, file, config, options);
  for (const auto& [weight, layer] : quantized)
    layer->set_quantized(kernels::quantize(at::empty(weight.target.sizes(), weight.target.options().device(c10::kMeta)),
                                           *model.quantization, weight.rows));
  return std::move(model);
}

void quantize_model(LanguageModel& model, const std::string& quantize) {
  LEVIN_CHECK(!model.quantization,
              "[quantize_model] the model is quantized already: ", quantization_name(*model.quantization));
  const auto options = kernels::quantization_of("quantize_model", quantize);
  const auto& architecture = architecture_of(model.config);
  const auto rows = qkv_rows(model.body());
  for (const auto& [name, layer] : detail::linear_layers(model.module(), /*only_blocks=*/true)) {
    const auto theirs = detail::their_weight(architecture, name);
    const bool joined = theirs && theirs->names.size() > 1;
    layer->set_quantized(kernels::quantize(
        layer->weight, options, joined ? std::vector<int64_t>(rows.begin(), rows.end()) : std::vector<int64_t>{}));
  }
  model.quantization = options;
}

LanguageModel new_model(std::string_view config_json, const OpenModelOptions& options) {
  const ModelConfig config(config_json, "config.json");
  const auto& architecture = architecture_of(config);
  const auto dtype = options.dtype.value_or(dtype_of_config(config, at::kFloat));
  if (config.has("quantization_config"))
    config.fail("quantization_config", "is of weights in files; see quantize_model");
  auto model = made_model(config, architecture, std::nullopt, nullptr, options, dtype,
                          {.device = options.device, .dtype = dtype});
  if (!options.quantize.empty()) quantize_model(model, options.quantize);
  return model;
}

void save_model(const LanguageModel& model, const fs::path& folder, const SaveModelOptions& options) {
  LEVIN_CHECK(options.max_shard_size > 0, "[save_model] max_shard_size must be positive");
  check_destination("save_model", folder, OutputKind::kFolder, options.overwrite);
  const auto& architecture = architecture_of(model.config);
  const auto& body = model.body();
  const auto rows = qkv_rows(body);

  // Names and shapes first: what is not a view is made when its file is written.
  std::map<std::string, std::function<Tensor()>> parts;
  std::vector<NamedTensors> shards(1);
  uint64_t filled = 0, total = 0;
  std::optional<c10::ScalarType> dtype;
  const auto add = [&](const std::string& name, const Tensor& like, std::function<Tensor()> make) {
    const uint64_t bytes = like.nbytes();
    if (filled > 0 && filled + bytes > options.max_shard_size) shards.emplace_back(), filled = 0;
    shards.back().emplace_back(name, like);
    filled += bytes, total += bytes;
    parts.emplace(name, std::move(make));
  };
  for (const auto& [name, parameter, aliases] : named_unique_parameters(model.module())) {
    LEVIN_CHECK(name.find(".lora_") == name.npos,
                "[save_model] the model has adapters; merge_lora first, or save_lora");
    const auto theirs = detail::their_weight(architecture, name);
    LEVIN_CHECK(theirs, "[save_model] ", architecture.model_type, " has no name for \"", name, "\"");
    const auto like = at::empty(parameter.sizes(), parameter.options().device(c10::kMeta));
    const auto shapes = detail::weights_for_file(like, *theirs, rows, body.num_heads);
    dtype = dtype.value_or(parameter.scalar_type());
    for (size_t i = 0; i < shapes.size(); ++i) {
      add(full_name(architecture, name, theirs->names[i]), shapes[i], [&, from = parameter, theirs = *theirs, i] {
        return detail::weights_for_file(from, theirs, rows, body.num_heads)[i];
      });
    }
    // A head of masked tokens that is not tied has its bias under both names.
    if (name == "head.bias" && !body.tied_head && !theirs->also.empty())
      add(theirs->also, shapes[0], [from = parameter] { return from.detach(); });
  }
  std::vector<std::string> kept;  // linear layers that are not quantized
  if (model.decoder) kept.push_back("lm_head");
  for (const auto& [name, layer] : detail::linear_layers(model.module(), /*only_blocks=*/false)) {
    const auto theirs = detail::their_weight(architecture, name);
    LEVIN_CHECK(theirs, "[save_model] ", architecture.model_type, " has no name for \"", name, "\"");
    if (!layer->quantized) {
      for (const auto& each : theirs->names) kept.push_back(each.substr(0, each.rfind(".weight")));
      continue;
    }
    auto like = *layer->quantized;
    for (auto* each : {&like.codes, &like.scales, &like.nested})
      if (each->defined()) *each = at::empty(each->sizes(), each->options().device(c10::kMeta));
    const auto of_file = [&body, rows, theirs = *theirs,
                          type = dtype.value_or(at::kFloat)](const kernels::QuantizedWeight& weight) {
      return detail::quantized_for_file(weight, theirs, rows, body.num_heads, type);
    };
    const auto shapes = of_file(like);
    for (size_t i = 0; i < shapes.size(); ++i)
      for (size_t j = 0; j < shapes[i].size(); ++j) {
        auto full = full_name(architecture, name, theirs->names[i]);
        const auto& behind = shapes[i][j].first;
        if (!behind.empty() && behind[0] != '.') full.resize(full.rfind("weight"));  // "q_proj.SCB"
        add(full + behind, shapes[i][j].second,
            [of_file, from = layer, i, j] { return of_file(*from->quantized)[i][j].second; });
      }
  }
  const auto read = [&](const std::string& name) { return parts.at(name)(); };
  AtomicFolder staged(folder);
  for (const char* name : kFilesOfText)
    if (fs::is_regular_file(model.folder / name)) fs::copy_file(model.folder / name, staged.path() / name);
  const auto format = levin::detail::safetensors_format();
  std::map<std::string, std::string> places;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto file = format.file_name(i, shards.size());
    FileWriter writer(staged.path() / file);
    write_safetensors(writer, shards[i], read, {{"format", "pt"}});
    writer.close();
    for (const auto& [name, like] : shards[i]) places.emplace(name, file);
  }
  if (shards.size() > 1) levin::detail::write_weight_index(staged.path() / format.index_name(), places, total);
  const auto tied = body.tied_head;
  write_file(
      staged.path() / "config.json",
      model.config.with({{"torch_dtype", ""},
                         {"dtype", "\"" + dtype_name(dtype.value_or(at::kFloat)) + "\""},
                         {"quantization_config",
                          model.quantization ? detail::quantization_config(*model.quantization, kept) : std::string()},
                         {"tie_word_embeddings", tied ? "true" : "false"}}));
  staged.commit();
}

}  // namespace levin::models
