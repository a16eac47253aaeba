#include "levin/models/folder.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/models/language/quantized_weights.h"
#include "levin/models/language/weight_plan.h"
#include "levin/nn/deferred_init.h"

namespace levin::models {
namespace {

namespace fs = std::filesystem;

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

/// The head of a decoder by the first of `architectures`.
std::string decoder_head(const ModelConfig& config, const OpenModelOptions& asked) {
  static const std::vector<std::string> known{"auto", "causal_lm", "sequence_classification"};
  if (std::find(known.begin(), known.end(), asked.head) == known.end())
    fail_unknown("open_model", "head of a decoder", asked.head, known);
  if (asked.head != "auto") return asked.head;
  const auto names = config.texts("architectures");
  if (names.empty()) return "causal_lm";
  for (const char* ending : {"ForTokenClassification", "ForQuestionAnswering", "DoubleHeadsModel"})
    if (names[0].ends_with(ending))
      config.fail("architectures", fmt::format("\"{}\" has a head that is not supported (a decoder has that of "
                                               "ForCausalLM or ForSequenceClassification)",
                                               shown(names[0])));
  return names[0].ends_with("ForSequenceClassification") ? "sequence_classification" : "causal_lm";
}

std::string head_word(const ModelConfig& config, const LanguageArchitecture& architecture,
                      const OpenModelOptions& asked) {
  if (architecture.decoder) return decoder_head(config, asked);
  return asked.head == "auto" ? head_of_config(config) : asked.head;
}

/// "[\"a\", \"b\"]" and the like, for ModelConfig::with.
std::string quoted_json(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// The config of the model with a head that classifies by these names.
ModelConfig config_of_labels(const ModelConfig& config, const LanguageArchitecture& architecture,
                             const std::string& head, const OpenModelOptions& asked) {
  LEVIN_CHECK(head == "sequence_classification" || head == "token_classification",
              "[open_model] labels are of a classification head, not of \"", head, "\"");
  LEVIN_CHECK(asked.labels.size() >= 2, "[open_model] a classifier needs two labels or more, got ",
              asked.labels.size());
  std::string by_id, by_name;
  for (size_t i = 0; i < asked.labels.size(); ++i) {
    LEVIN_CHECK(std::count(asked.labels.begin(), asked.labels.end(), asked.labels[i]) == 1, "[open_model] the label \"",
                shown(asked.labels[i]), "\" stands twice");
    const auto name = quoted_json(asked.labels[i]);
    by_id += fmt::format("{}\"{}\": {}", i ? ", " : "{", i, name);
    by_name += fmt::format("{}{}: {}", i ? ", " : "{", name, i);
  }
  const auto* kind = head == "sequence_classification" ? "ForSequenceClassification" : "ForTokenClassification";
  return ModelConfig(config.with({{"architectures", fmt::format("[\"{}{}\"]", architecture.class_name, kind)},
                                  {"id2label", by_id + "}"},
                                  {"label2id", by_name + "}"},
                                  {"num_labels", ""},
                                  {"problem_type", ""}}),
                     config.where());
}

LanguageModel made_model(const ModelConfig& config, const LanguageArchitecture& architecture, std::optional<bool> tied,
                         const detail::WeightNames* names, const OpenModelOptions& asked, c10::ScalarType dtype,
                         const InitOptions& init) {
  LanguageModel model{.model_type = std::string(architecture.model_type), .config = config, .dtype = dtype};
  const bool tied_head = tied.value_or(config.flag("tie_word_embeddings", architecture.tied));
  const auto head = head_word(config, architecture, asked);
  if (architecture.decoder) {
    auto options = architecture.decoder(config);
    options.tied_head = tied_head;
    if (head == "sequence_classification") {
      options.num_labels = labels_of(config);
      options.pad_token = config.integer("pad_token_id", -1, kMostTokens, -1);
      if (options.pad_token < 0 && asked.pad_token >= 0) {
        options.pad_token = asked.pad_token;
        model.config = ModelConfig(config.with({{"pad_token_id", std::to_string(asked.pad_token)}}), config.where());
      }
    }
    model.decoder = init_module([&] { return Decoder(options); }, init);
    return model;
  }
  auto options = architecture.encoder(config);
  options.body.tied_head = tied_head;
  options.head = head;
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
  const auto& model = planned.model;
  for (const auto& [name, layer] : detail::linear_layers(model.module()))
    if (stored || detail::quantization_of_layer(name, model.body(), *model.quantization)) layers.emplace(name, layer);
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

/// Of a layer that is quantized, or is in the file.
kernels::QuantizeOptions quantization_of_weight(const LanguageModel& model, const std::string& name) {
  return detail::quantization_of_layer(name, model.body(), *model.quantization).value_or(*model.quantization);
}

kernels::QuantizedWeight quantized_weight(const WeightFile& file, const detail::PlannedWeight& weight,
                                          const LanguageModel& model, c10::Device device) {
  const auto heads = model.body().num_heads;
  const auto options = quantization_of_weight(model, weight.name);
  if (weight.packed) return detail::read_quantized(file, weight, options, heads, device);
  auto read = weight;
  read.target = at::empty(weight.target.sizes(), at::TensorOptions().dtype(model.dtype));
  detail::read_weights(file, {read}, heads);
  return kernels::quantize(read.target.to(device), options, weight.rows);
}

PlannedModel planned_model(const fs::path& folder, const WeightFile& file, const ModelConfig& in_folder,
                           const OpenModelOptions& options) {
  auto architecture = architecture_of(in_folder);
  const auto stored = detail::quantization_in(in_folder);
  const auto quantization = wanted_quantization(in_folder, options.quantize, stored);
  const auto head_name = head_word(in_folder, architecture, options);
  const bool classifies = architecture.decoder && head_name == "sequence_classification";
  // A decoder may leave the head of its file as an encoder may, but only for a classifier.
  if (classifies) architecture.of_heads = {"lm_head.", "embed_out.", "score."};
  auto config = in_folder;
  detail::NewWeights fresh;
  if (!options.labels.empty()) {
    config = config_of_labels(in_folder, architecture, head_name, options);
    const auto before = in_folder.texts("architectures");
    const bool same_head = !before.empty() && before[0] == config.texts("architectures")[0];
    if (!same_head || label_names(in_folder) != options.labels)
      fresh.always = {"score.", "classifier.", "token_classifier."};
    fresh.if_missing = {"classifier_dense.", "pooler."};
  }
  const detail::WeightNames names(file, architecture, stored.has_value());
  const auto dtype = options.dtype.value_or(dtype_of_config(config, dtype_of_file(file)));
  const bool predicts = architecture.decoder ? !classifies : head_name == "masked_lm";
  const auto head = predicts ? plan_head(config, architecture, names, "tokens.weight", "head.weight") : HeadPlan{};
  PlannedModel planned{made_model(config, architecture, predicts ? std::optional<bool>(head.tied) : std::nullopt,
                                  &names, options, dtype, {.device = options.device, .dtype = dtype, .deferred = true}),
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
  planned.weights = detail::plan_weights(model.module(), names, architecture, detail::qkv_rows(model.body()),
                                         model.body().num_heads, instead, head.unused, dtype, fresh);
  model.quantization = quantization;
  if (quantization) plan_quantized(planned, stored.has_value());
  return planned;
}

/// Leaves in the model, which has no data yet, what this rank is to read.
void split_model(LanguageModel& model, std::vector<detail::PlannedWeight>& plan, const TensorRanks& ranks) {
  LEVIN_CHECK(!model.quantization, "[open_model] a quantized model (", quantization_name(*model.quantization),
              ") is not split over ranks; take no quantization, or one rank");
  model.split = split_tensors(model.module(), {.size = ranks->size()}, ranks, SplitValues::kRead);
  for (auto& weight : plan)
    if (const auto* known = model.split->find(weight.target)) weight.slice = known->slice;
}

/// Whether a weight is one of these modules.
bool is_below(const std::string& name, const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules,
                             [&](const auto& module) { return module.empty() || name.starts_with(module + "."); });
}

int64_t bytes_in_file(const WeightFile& file, const detail::PlannedWeight& weight) {
  int64_t bytes = 0;
  for (const auto& source : weight.sources) bytes += static_cast<int64_t>(file.at(source).bytes);
  return bytes;
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

std::vector<std::string> label_names(const ModelConfig& config) {
  std::vector<std::string> names;
  const auto named = config.object("id2label");
  for (int64_t i = 0; i < labels_of(config); ++i)
    names.push_back(named.text(std::to_string(i), fmt::format("LABEL_{}", i)));
  return names;
}

namespace {
constexpr const char* kOfClassifiers[] = {"score.", "classifier.", "classifier_dense.", "token_classifier.", "pooler."};
}  // namespace

std::vector<Tensor> head_parameters(const LanguageModel& model) {
  std::vector<Tensor> parameters;
  for (const auto& item : model.module().named_parameters())
    for (const char* beginning : kOfClassifiers)
      if (item.key().starts_with(beginning)) parameters.push_back(item.value());
  return parameters;
}

std::vector<std::string> head_modules(const LanguageModel& model) {
  std::vector<std::string> modules;
  for (const auto& item : model.module().named_parameters())
    for (const char* beginning : kOfClassifiers) {
      if (!item.key().starts_with(beginning)) continue;
      const auto theirs = detail::their_weight(architecture_of(model.config), item.key());
      LEVIN_CHECK(theirs, "[head_modules] ", model.model_type, " has no name for \"", item.key(), "\"");
      auto module = theirs->names[0].substr(0, theirs->names[0].find('.'));
      if (std::ranges::find(modules, module) == modules.end()) modules.push_back(std::move(module));
    }
  return modules;
}

struct ModelReader::State {
  State(const fs::path& folder, const OpenModelOptions& asked)
      : options(asked),
        file(std::make_shared<const WeightFile>(folder)),
        planned(planned_model(folder, *file, config_in(folder), asked)) {
    if (asked.ranks && asked.ranks->size() > 1) split_model(planned.model, planned.weights, asked.ranks);
  }

  OpenModelOptions options;
  std::shared_ptr<const WeightFile> file;
  PlannedModel planned;
};

ModelReader::ModelReader(const fs::path& folder, const OpenModelOptions& options) {
  config_in(folder);  // a folder that is no model is told as such, not as one without weights
  state_ = std::make_unique<State>(folder, options);
}
ModelReader::~ModelReader() = default;
ModelReader::ModelReader(ModelReader&&) noexcept = default;

const LanguageModel& ModelReader::model() const {
  return state_->planned.model;
}

void ModelReader::read(const std::vector<std::string>& modules) {
  auto& [options, file, planned] = *state_;
  auto& model = planned.model;
  std::vector<detail::PlannedWeight> plan;
  std::vector<Tensor> targets;
  for (const auto& weight : planned.weights)
    if (is_below(weight.name, modules)) {
      plan.push_back(weight);
      targets.push_back(weight.target);
    }
  materialize(targets, /*initialize=*/false);
  detail::read_weights(*file, plan, model.body().num_heads, options.on_read);
  for (const auto& [weight, layer] : planned.quantized)
    if (is_below(weight.name, modules)) {
      layer->set_quantized(quantized_weight(*file, weight, model, options.device));
      if (options.on_read) options.on_read(bytes_in_file(*file, weight));
    }
}

bool ModelReader::changes(const std::vector<std::string>& modules) const {
  const auto& planned = state_->planned;
  for (const auto& [weight, layer] : planned.quantized)
    if (is_below(weight.name, modules)) return true;
  std::unordered_set<const c10::TensorImpl*> read;
  for (const auto& weight : planned.weights) read.insert(weight.target.unsafeGetTensorImpl());
  for (const auto& item : planned.model.module().named_parameters())
    if (is_below(item.key(), modules) && !read.contains(item.value().unsafeGetTensorImpl())) return true;
  return false;
}

std::function<void(const std::vector<Tensor>&)> ModelReader::later(const std::vector<Tensor>& parameters) const {
  std::vector<detail::PlannedWeight> plan;
  for (const auto& parameter : parameters) {
    const auto found = std::ranges::find_if(state_->planned.weights,
                                            [&](const auto& weight) { return weight.target.is_same(parameter); });
    LEVIN_CHECK(found != state_->planned.weights.end(), "[open_model] a tensor is not read from the folder as it is");
    plan.push_back(*found);
    plan.back().target.reset();
  }
  return
      [plan, file = state_->file, heads = state_->planned.model.body().num_heads](const std::vector<Tensor>& places) {
        auto now = plan;
        for (size_t i = 0; i < now.size(); ++i) now[i].target = places[i];
        detail::read_weights(*file, now, heads);
      };
}

LanguageModel ModelReader::finish() {
  auto model = std::move(state_->planned.model);
  model.module().eval();
  return model;
}

LanguageModel open_model(const fs::path& folder, const OpenModelOptions& options) {
  ModelReader reader(folder, options);
  reader.read({""});
  auto model = reader.finish();
  if (is_deferred(model.module())) {
    materialize(model.module());
    model.notes.emplace_back("the head is new");
  }
  return model;
}

LanguageModel open_model_meta(const fs::path& folder, const OpenModelOptions& options) {
  const auto config = config_in(folder);
  const WeightFile file(folder);
  auto [model, plan, quantized] = planned_model(folder, file, config, options);
  for (const auto& [weight, layer] : quantized)
    layer->set_quantized(kernels::quantize(at::empty(weight.target.sizes(), weight.target.options().device(c10::kMeta)),
                                           quantization_of_weight(model, weight.name), weight.rows));
  return std::move(model);
}

void quantize_model(LanguageModel& model, const std::string& quantize) {
  LEVIN_CHECK(!model.quantization,
              "[quantize_model] the model is quantized already: ", quantization_name(*model.quantization));
  const auto options = kernels::quantization_of("quantize_model", quantize);
  const auto& architecture = architecture_of(model.config);
  const auto rows = detail::qkv_rows(model.body());
  for (const auto& [name, layer] : detail::linear_layers(model.module())) {
    const auto own = detail::quantization_of_layer(name, model.body(), options);
    if (!own) continue;
    const auto theirs = detail::their_weight(architecture, name);
    const bool joined = theirs && theirs->names.size() > 1;
    layer->set_quantized(kernels::quantize(
        layer->weight, *own, joined ? std::vector<int64_t>(rows.begin(), rows.end()) : std::vector<int64_t>{}));
  }
  model.quantization = options;
}

LanguageModel new_model(std::string_view config_json, const OpenModelOptions& options) {
  ModelConfig config(config_json, "config.json");
  const auto& architecture = architecture_of(config);
  if (!options.labels.empty())
    config = config_of_labels(config, architecture, head_word(config, architecture, options), options);
  const auto dtype = options.dtype.value_or(dtype_of_config(config, at::kFloat));
  if (config.has("quantization_config"))
    config.fail("quantization_config", "is of weights in files; see quantize_model");
  auto model = made_model(config, architecture, std::nullopt, nullptr, options, dtype,
                          {.device = options.device, .dtype = dtype});
  if (!options.quantize.empty()) quantize_model(model, options.quantize);
  return model;
}

}  // namespace levin::models
