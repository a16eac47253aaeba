#include "levin/models/lora/saved_modules.h"

#include <algorithm>
#include <map>

#include <ATen/ops/empty.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/models/language/quantized_weights.h"
#include "levin/nn/module_access.h"

namespace levin::models::detail {
namespace {

/// Whether the module of a tensor, or one that it is in, has a name that ends with the word. Not by parts: to PEFT
/// "classifier" means "pre_classifier" too.
bool is_in_module(std::string_view tensor, std::string_view word) {
  for (auto dot = tensor.rfind('.'); dot != tensor.npos && dot > 0; dot = tensor.rfind('.', dot - 1))
    if (!word.empty() && tensor.substr(0, dot).ends_with(word)) return true;
  return false;
}

bool is_in_any(std::string_view tensor, const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [&](const auto& word) { return is_in_module(tensor, word); });
}

/// A parameter with its names as the modules of transformers have it.
SavedParameter named(const LanguageModel& model, const std::string& ours, const Tensor& tensor) {
  const auto& architecture = architecture_of(model.config);
  auto theirs = their_weight(architecture, ours, tensor.sizes());
  LEVIN_CHECK(theirs, "[lora] ", architecture.model_type, " has no name for \"", ours, "\"");
  if (ours == "head.weight" && !theirs->also.empty()) std::swap(theirs->names[0], theirs->also);
  SavedParameter parameter{.ours = ours, .tensor = tensor, .layout = theirs->layout, .names = {}};
  for (const auto& name : theirs->names) parameter.names.push_back(full_name(architecture, ours, name));
  if (!theirs->also.empty()) parameter.also = full_name(architecture, ours, theirs->also);
  return parameter;
}

void refuse_changed_layers(const LanguageModel& model, const std::vector<std::string>& words) {
  for (const auto& [name, layer] : linear_layers(model.module())) {
    if (!layer->quantized && layer->adapters.empty()) continue;
    const auto theirs = their_weight(architecture_of(model.config), name);
    if (!theirs) continue;
    for (const auto& each : theirs->names)
      LEVIN_CHECK(!is_in_any(full_name(architecture_of(model.config), name, each), words),
                  "[lora] modules_to_save names \"", each.substr(0, each.rfind('.')), "\", which ",
                  layer->quantized ? "is quantized and cannot be trained" : "has adapters", "; name other modules");
  }
}

/// Gives the head a weight of its own, with the numbers of the embedding.
void untie_head(LanguageModel& model) {
  const auto untie = [](torch::nn::Module& head, Tensor& weight) {
    weight = weight.detach().clone().set_requires_grad(weight.requires_grad());
    levin::detail::ModuleAccess::parameters(head)["weight"] = weight;
  };
  if (model.decoder) {
    untie(*model.decoder->head.ptr(), model.decoder->head->weight);
    model.decoder->options.tied_head = false;
  } else {
    untie(*model.encoder->head.ptr(), model.encoder->head->weight);
    model.encoder->options.body.tied_head = false;
  }
}

bool has_tied_head(const LanguageModel& model) {
  return model.body().tied_head && (model.decoder ? !model.decoder->head.is_empty() : !model.encoder->head.is_empty());
}

}  // namespace

std::vector<SavedParameter> saved_parameters(const LanguageModel& model, const std::vector<std::string>& words) {
  std::vector<SavedParameter> found;
  if (words.empty()) return found;
  refuse_changed_layers(model, words);
  for (const auto& item : model.module().named_parameters()) {
    if (item.key().find(".lora_") != std::string::npos) continue;
    auto parameter = named(model, item.key(), item.value());
    const auto met = std::count_if(parameter.names.begin(), parameter.names.end(), [&](const auto& name) {
      return is_in_any(name, words) || is_in_any(parameter.also, words);
    });
    if (met == 0) continue;
    LEVIN_CHECK(met == static_cast<int64_t>(parameter.names.size()), "[lora] modules_to_save: \"", item.key(),
                "\" is one layer of ", join(parameter.names), ": name all of these, or train adapters of it");
    LEVIN_CHECK(parameter.layout != WeightLayout::kStacked, "[lora] modules_to_save: experts are not supported");
    LEVIN_CHECK(model.decoder || !item.key().starts_with("head."),
                "[lora] modules_to_save: a head of masked tokens is not supported");
    found.push_back(std::move(parameter));
  }
  return found;
}

std::vector<std::string> keep_modules(LanguageModel& model, const std::vector<std::string>& words) {
  std::vector<std::string> unknown;
  auto kept = model.saved_modules;
  for (const auto& word : words) {
    const bool known = !saved_parameters(model, {word}).empty();
    if (!known)
      unknown.push_back(word);
    else if (std::find(kept.begin(), kept.end(), word) == kept.end())
      kept.push_back(word);
  }
  if (!unknown.empty() && unknown.size() == words.size()) return unknown;
  if (has_tied_head(model)) {
    const auto parameters = saved_parameters(model, kept);
    const bool tied = std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) {
      return parameter.ours == "tokens.weight" || parameter.ours == "head.weight";
    });
    if (tied) {
      untie_head(model);
      model.notes.push_back("the head is no longer tied to the embedding: modules_to_save trains a copy, as PEFT does");
    }
  }
  model.saved_modules = std::move(kept);
  return unknown;
}

NamedTensors saved_tensors(const LanguageModel& model) {
  NamedTensors tensors;
  for (const auto& parameter : saved_parameters(model, model.saved_modules)) {
    const TheirWeight theirs{.names = parameter.names, .layout = parameter.layout};
    const auto parts =
        weights_for_file(parameter.tensor.detach(), theirs, qkv_rows(model.body()), model.body().num_heads);
    for (size_t i = 0; i < parts.size(); ++i) tensors.emplace_back(kPeftPrefix + parameter.names[i], parts[i]);
  }
  return tensors;
}

std::vector<PlannedWeight> plan_saved(const LanguageModel& model, const WeightFile& file,
                                      const std::vector<SavedParameter>& parameters, std::set<std::string>& used) {
  std::vector<PlannedWeight> plan;
  for (const auto& parameter : parameters) {
    const TheirWeight theirs{.names = parameter.names, .layout = parameter.layout};
    const auto like = at::empty(parameter.tensor.sizes(), parameter.tensor.options().device(c10::kMeta));
    const auto shapes = weights_for_file(like, theirs, qkv_rows(model.body()), model.body().num_heads);
    PlannedWeight weight{.name = parameter.ours, .target = parameter.tensor, .layout = parameter.layout};
    for (size_t i = 0; i < shapes.size(); ++i) {
      auto name = kPeftPrefix + parameter.names[i];
      if (!file.contains(name) && file.contains(kPeftPrefix + parameter.also)) name = kPeftPrefix + parameter.also;
      const auto* entry = file.find(name);
      LEVIN_CHECK(entry, "[load_lora] \"", file.path().string(), "\" lacks \"", name,
                  "\", which modules_to_save of adapter_config.json names");
      LEVIN_CHECK(entry->shape == shapes[i].sizes().vec() && at::isFloatingType(entry->type), "[load_lora] \"",
                  file.path().string(), "\": \"", name, "\" is ", c10::IntArrayRef(entry->shape), " in the file, ",
                  shapes[i].sizes(), " in the model");
      used.insert(name);
      weight.sources.push_back(name);
    }
    const auto rows = qkv_rows(model.body());
    if (shapes.size() > 1) weight.rows.assign(rows.begin(), rows.end());
    plan.push_back(std::move(weight));
  }
  return plan;
}

std::vector<std::string> module_words(const LanguageModel& model) {
  std::set<std::string> words;
  for (const auto& item : model.module().named_parameters()) {
    if (item.key().find(".lora_") != std::string::npos) continue;
    for (const auto& name : named(model, item.key(), item.value()).names) {
      const auto module = name.substr(0, name.rfind('.'));
      words.insert(module.substr(module.rfind('.') + 1));
    }
  }
  return {words.begin(), words.end()};
}

}  // namespace levin::models::detail
