#include "levin/models/lora/lora.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/nn/init.h>
#include <torch/types.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/models/language/weight_plan.h"
#include "levin/models/lora/saved_modules.h"
#include "levin/nn/module_access.h"

namespace levin::models {
namespace {

namespace fs = std::filesystem;

using detail::kPeftPrefix;

/// A linear layer, or rows of one, that transformers has a module for.
struct LoraTarget {
  DecoderLinearImpl* layer = nullptr;
  std::string name;  // as transformers calls it
  int64_t first_row = 0, rows = 0;
  bool by_head = false;
};

/// Those of the blocks, in their order.
std::vector<LoraTarget> lora_targets(const LanguageModel& model) {
  const auto& architecture = architecture_of(model.config);
  const auto& body = model.body();
  const auto width = body.head_width();
  const detail::QkvRows split{body.num_heads * width, body.key_heads() * width, body.key_heads() * width};
  std::vector<LoraTarget> targets;
  for (const auto& item : model.module().named_modules()) {
    auto* layer = dynamic_cast<DecoderLinearImpl*>(item.value().get());
    if (!layer || !item.key().starts_with("blocks.")) continue;
    const auto theirs = detail::their_weight(architecture, item.key() + ".weight");
    LEVIN_CHECK(theirs, "[lora] ", architecture.model_type, " has no name for \"", item.key(), "\"");
    int64_t row = 0;
    for (size_t i = 0; i < theirs->names.size(); ++i) {
      const bool joined = theirs->names.size() > 1;
      const auto rows = joined ? split.at(i) : layer->out_features();
      auto name = std::string(architecture.prefix) + theirs->names[i];
      name.resize(name.size() - std::string_view(".weight").size());
      targets.push_back({layer, name, row, rows, theirs->layout == WeightLayout::kByHead});
      row += rows;
    }
  }
  return targets;
}

bool ends_with_part(std::string_view name, std::string_view end) {
  return name == end || (name.size() > end.size() && name.ends_with(end) && name[name.size() - end.size() - 1] == '.');
}

LowRank added_adapter(const LanguageModel& model, const LoraTarget& target, int64_t rank, double alpha, bool rslora,
                      double dropout) {
  const auto part = target.name.substr(target.name.rfind('.') + 1);
  const auto& layer = *target.layer;
  // A quantized weight is bytes: its adapters have the dtype of the other parameters.
  const auto like = layer.quantized ? layer.quantized->codes.options().dtype(model.dtype) : layer.weight.options();
  LowRank adapter(layer.in_features(), target.rows, rank, like);
  adapter->first_row = target.first_row;
  adapter->alpha = alpha;
  adapter->scale = alpha / (rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
  adapter->dropout = dropout;
  adapter->module_name = target.name;
  adapter->by_head = target.by_head;
  adapter->train(target.layer->is_training());
  target.layer->adapters.push_back(target.layer->register_module("lora_" + part, adapter));
  return adapter;
}

void freeze_base(const LanguageModel& model) {
  for (auto& item : model.module().named_parameters())
    if (item.key().find(".lora_") == std::string::npos) item.value().set_requires_grad(false);
  for (auto& parameter : detail::saved_parameters(model, model.saved_modules)) parameter.tensor.set_requires_grad(true);
}

/// What PEFT calls the model. With SEQ_CLS and TOKEN_CLS it expects the classifier in the file.
nlohmann::ordered_json task_of(const LanguageModel& model) {
  if (model.decoder && model.decoder->options.num_labels == 0) return "CAUSAL_LM";
  std::set<const void*> kept;
  for (const auto& parameter : detail::saved_parameters(model, model.saved_modules))
    kept.insert(parameter.tensor.unsafeGetTensorImpl());
  const auto head = head_parameters(model);
  if (head.empty() || !std::all_of(head.begin(), head.end(),
                                   [&](const Tensor& each) { return kept.contains(each.unsafeGetTensorImpl()); }))
    return nullptr;
  return model.encoder && model.encoder->options.head == "token_classification" ? "TOKEN_CLS" : "SEQ_CLS";
}

void refuse_adapters(const LanguageModel& model, const char* operation) {
  for (const auto& target : lora_targets(model))
    LEVIN_CHECK(target.layer->adapters.empty(), "[", operation, "] the model has adapters already; merge_lora first");
}

/// What the folder's config says, as far as it is understood; the rest is refused.
struct LoraConfig {
  double alpha = 8, dropout = 0;
  bool rslora = false;
  std::vector<std::pair<std::string, double>> alphas;  // by the end of a name; the first one of the file counts
  std::vector<std::string> modules_to_save;
  bool ties_weights = false;

  double alpha_of(const std::string& name) const {
    for (const auto& [end, value] : alphas)
      if (ends_with_part(name, end)) return value;
    return alpha;
  }
};

LoraConfig read_lora_config(const fs::path& file) {
  LEVIN_CHECK(fs::is_regular_file(file), "[load_lora] \"", file.string(), "\" is not there");
  const ModelConfig config(read_file(file, 1 << 24), file.string());
  if (config.text("peft_type", "") != "LORA") config.fail("peft_type", "must be \"LORA\"");
  if (config.text("bias", "none") != "none") config.fail("bias", "other than \"none\" is not supported");
  for (const char* key : {"use_dora", "lora_bias", "use_qalora", "use_bdlora"})
    config.refuse_unless(key, false, "plain LoRA only");
  for (const char* key :
       {"trainable_token_indices", "target_parameters", "layer_replication", "alora_invocation_tokens", "kasa_config",
        "velora_config", "arrow_config", "corda_config", "eva_config", "megatron_config"})
    if (config.has(key) && !((config.is_list(key) || config.is_object(key)) && config.size(key) == 0))
      config.fail(key, "is not supported: plain LoRA only");
  config.count({"r"}, kMostWidth);  // each tensor has its own
  LoraConfig result{.alpha = config.number({"lora_alpha"}, 8, -1e9, 1e9),
                    .dropout = config.fraction("lora_dropout", 0),
                    .rslora = config.flag("use_rslora", false),
                    .modules_to_save = config.texts("modules_to_save"),
                    .ties_weights = config.flag("ensure_weight_tying", false)};
  const auto json = nlohmann::ordered_json::parse(read_file(file, 1 << 24));
  if (json.contains("init_lora_weights") && json["init_lora_weights"].is_string()) {
    const auto kind = json["init_lora_weights"].get<std::string>();
    for (const char* changing : {"pissa", "olora", "loftq", "corda", "lora_ga"})
      if (kind.starts_with(changing))
        config.fail("init_lora_weights", "is \"" + kind +
                                             "\", for which PEFT changes the weights of the model; save the "
                                             "adapter there with path_initial_model_for_weight_conversion");
  }
  if (json.contains("alpha_pattern") && json["alpha_pattern"].is_object())
    for (const auto& [key, value] : json["alpha_pattern"].items()) {
      const bool plain = std::all_of(key.begin(), key.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
      });
      if (!plain || !value.is_number()) config.fail("alpha_pattern", "must have plain names and numbers");
      result.alphas.emplace_back(key, value.get<double>());
    }
  return result;
}

}  // namespace

LowRankImpl::LowRankImpl(int64_t in, int64_t rows, int64_t rank, at::TensorOptions like) {
  a = register_parameter("a", torch::empty({rank, in}, like.requires_grad(false)));
  b = register_parameter("b", torch::zeros({rows, rank}, like.requires_grad(false)));
  torch::nn::init::kaiming_uniform_(a, std::sqrt(5.0));
}

Tensor LowRankImpl::forward(const Tensor& x) {
  const auto given = dropout > 0 && is_training() ? at::dropout(x, dropout, true) : x;
  return at::linear(at::linear(given, a), b) * scale;
}

void add_lora(LanguageModel& model, const LoraOptions& options) {
  LEVIN_CHECK(options.rank > 0 && std::isfinite(options.alpha) && options.dropout >= 0 && options.dropout < 1,
              "[add_lora] rank must be positive, dropout in 0 to 1");
  refuse_adapters(model, "add_lora");
  const auto targets = lora_targets(model);
  std::set<std::string> unused(options.target_modules.begin(), options.target_modules.end());
  for (const auto& target : targets) {
    bool wanted = false;
    for (const auto& word : options.target_modules)
      if (word == "all-linear" || ends_with_part(target.name, word)) wanted = true, unused.erase(word);
    if (wanted) added_adapter(model, target, options.rank, options.alpha, options.rslora, options.dropout);
  }
  if (!unused.empty()) {
    std::set<std::string> known{"all-linear"};
    for (const auto& target : targets) known.insert(target.name.substr(target.name.rfind('.') + 1));
    fail_unknown("add_lora", "target_modules", *unused.begin(), std::vector<std::string>(known.begin(), known.end()));
  }
  train_modules(model, options.modules_to_save);
}

void train_modules(LanguageModel& model, const std::vector<std::string>& modules_to_save) {
  LEVIN_CHECK(!model.split || modules_to_save.empty(),
              "[lora] modules_to_save is not supported where the model is split over ranks");
  const auto unknown = detail::keep_modules(model, modules_to_save);
  if (!unknown.empty()) fail_unknown("add_lora", "modules_to_save", unknown[0], detail::module_words(model));
  freeze_base(model);
}

std::vector<Tensor> lora_parameters(const LanguageModel& model) {
  std::vector<Tensor> parameters;
  for (const auto& item : model.module().named_parameters())
    if (item.key().find(".lora_") != std::string::npos) parameters.push_back(item.value());
  for (auto& parameter : detail::saved_parameters(model, model.saved_modules))
    parameters.push_back(std::move(parameter.tensor));
  return parameters;
}

void load_lora(LanguageModel& model, const fs::path& folder) {
  refuse_adapters(model, "load_lora");
  const auto config = read_lora_config(folder / "adapter_config.json");
  const auto safe = folder / "adapter_model.safetensors";
  const WeightFile file(fs::exists(safe) ? safe : folder / "adapter_model.bin", {.root = "", .strip_module = false});
  const auto heads = model.body().num_heads;
  // All is checked before the first adapter is added.
  struct Found {
    LoraTarget target;
    std::string a, b;
    int64_t rank;
  };
  std::vector<Found> all;
  std::set<std::string> used;
  for (const auto& target : lora_targets(model)) {
    const auto name = kPeftPrefix + target.name;
    const auto* a = file.find(name + ".lora_A.weight");
    const auto* b = file.find(name + ".lora_B.weight");
    if (!a && !b) continue;
    LEVIN_CHECK(a && b, "[load_lora] \"", folder.string(), "\" has one of lora_A and lora_B of \"", target.name, "\"");
    const auto in = target.layer->in_features();
    LEVIN_CHECK(a->shape.size() == 2 && b->shape.size() == 2 && a->shape[0] > 0 && a->shape[1] == in &&
                    b->shape[0] == target.rows && b->shape[1] == a->shape[0] && at::isFloatingType(a->type) &&
                    at::isFloatingType(b->type),
                "[load_lora] \"", folder.string(), "\": the adapter of \"", target.name, "\" must be [r, ", in,
                "] and [", target.rows, ", r]");
    used.insert({a->name, b->name});
    all.push_back({target, a->name, b->name, a->shape[0]});
  }
  const auto whole = detail::plan_saved(model, file, detail::saved_parameters(model, config.modules_to_save), used);
  LEVIN_CHECK(whole.empty() || !config.ties_weights || !model.body().tied_head, "[load_lora] \"", folder.string(),
              "\": ensure_weight_tying with modules_to_save is not supported");
  LEVIN_CHECK(whole.empty() || !model.split,
              "[load_lora] modules_to_save is not supported where the model is split over ranks");
  for (const auto& entry : file.entries())
    LEVIN_CHECK(used.contains(entry.name), "[load_lora] \"", folder.string(), "\" has \"", shown(entry.name),
                "\", which is no LoRA of a linear layer of the blocks of ", model.model_type,
                ", and in no module of modules_to_save");
  LEVIN_CHECK(!all.empty(), "[load_lora] \"", folder.string(), "\" has no adapters");
  const at::NoGradGuard no_grad;
  for (const auto& found : all) {
    auto adapter = added_adapter(model, found.target, found.rank, config.alpha_of(found.target.name), config.rslora,
                                 config.dropout);
    adapter->a.copy_(file.read(found.a));
    auto b = file.read(found.b);
    adapter->b.copy_(found.target.by_head ? detail::heads_apart(b.contiguous(), heads, false) : b);
  }
  // A config may name modules that the model does not have: PEFT adds "classifier" and "score" to all classifiers.
  detail::keep_modules(model, config.modules_to_save);
  std::set<std::string> again;  // places are others where a head was untied
  detail::read_weights(
      file, detail::plan_saved(model, file, detail::saved_parameters(model, model.saved_modules), again), heads);
  freeze_base(model);
}

void save_lora(const LanguageModel& model, const fs::path& folder) {
  NamedTensors tensors;
  std::set<std::string> modules;
  nlohmann::ordered_json ranks = nlohmann::ordered_json::object(), alphas = ranks;
  int64_t rank = 0;
  double alpha = 0, dropout = 0;
  bool rslora = false;
  std::set<const void*> seen;
  for (const auto& target : lora_targets(model)) {
    if (!seen.insert(target.layer).second) continue;
    for (const auto& adapter : target.layer->adapters) {
      const auto own = adapter->a.size(0);
      if (rank == 0) {
        rank = own, alpha = adapter->alpha, dropout = adapter->dropout;
        rslora =
            own > 1 && std::abs(adapter->scale * std::sqrt(static_cast<double>(own)) - alpha) < 1e-9 * std::abs(alpha);
      }
      if (own != rank) ranks[adapter->module_name] = own;
      if (adapter->alpha != alpha) alphas[adapter->module_name] = adapter->alpha;
      modules.insert(adapter->module_name.substr(adapter->module_name.rfind('.') + 1));
      const auto b = adapter->b.detach();
      tensors.emplace_back(kPeftPrefix + adapter->module_name + ".lora_A.weight", adapter->a.detach());
      tensors.emplace_back(kPeftPrefix + adapter->module_name + ".lora_B.weight",
                           adapter->by_head ? detail::heads_apart(b, model.body().num_heads, true) : b);
    }
  }
  LEVIN_CHECK(!tensors.empty(), "[save_lora] the model has no adapters");
  for (auto& each : detail::saved_tensors(model)) tensors.push_back(std::move(each));
  const auto& rules = architecture_of(model.config).rules;
  const bool transposed = std::any_of(rules.begin(), rules.end(),
                                      [](const auto& rule) { return rule.layout == WeightLayout::kTransposed; });
  const nlohmann::ordered_json config{
      {"peft_type", "LORA"},
      {"task_type", task_of(model)},
      {"base_model_name_or_path", nullptr},
      {"r", rank},
      {"lora_alpha", alpha},
      {"lora_dropout", dropout},
      {"use_rslora", rslora},
      {"fan_in_fan_out", transposed},
      {"bias", "none"},
      {"target_modules", modules},
      {"modules_to_save",
       model.saved_modules.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(model.saved_modules)},
      {"rank_pattern", ranks},
      {"alpha_pattern", alphas},
      {"inference_mode", true}};
  check_writable(folder);
  write_safetensors(folder / "adapter_model.safetensors", tensors, {{"format", "pt"}});
  write_file(folder / "adapter_config.json", config.dump(2) + "\n");
}

void merge_lora(LanguageModel& model) {
  const at::NoGradGuard no_grad;
  bool any = false;
  const auto targets = lora_targets(model);
  for (const auto& target : targets)
    LEVIN_CHECK(!target.layer->quantized, "[merge_lora] the weights are quantized: save_lora, open the model without ",
                "quantize, load_lora and merge there");
  for (const auto& target : targets) {
    for (const auto& adapter : target.layer->adapters) {
      const auto change = at::mm(adapter->b.to(at::kFloat), adapter->a.to(at::kFloat)) * adapter->scale;
      auto rows = target.layer->weight.narrow(0, adapter->first_row, change.size(0));
      rows.copy_(rows.to(at::kFloat) + change);
      const auto part = adapter->module_name.substr(adapter->module_name.rfind('.') + 1);
      levin::detail::ModuleAccess::children(*target.layer).erase("lora_" + part);
      any = true;
    }
    target.layer->adapters.clear();
  }
  LEVIN_CHECK(any, "[merge_lora] the model has no adapters");
  model.saved_modules.clear();  // they are weights of the model now
  for (auto& parameter : model.module().parameters()) parameter.set_requires_grad(true);
}

}  // namespace levin::models
