#include "levin/program/commands/inspect/inspect_model.h"

#include <algorithm>
#include <filesystem>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/weights.h"
#include "levin/memory/estimate.h"
#include "levin/models/folder.h"
#include "levin/models/lora/lora.h"
#include "levin/nn/tie.h"

namespace levin::cli {
namespace {

constexpr int64_t kInspectedTokens = 2048;

/// The decoder that is trained: with adapters where the weights are quantized.
models::Decoder trained_decoder(const models::LanguageModel& model) {
  if (!model.quantization) return models::decoder(model.body());
  auto made = models::new_model(
      model.config.with({{"quantization_config", ""}}),
      {.dtype = model.dtype, .device = c10::kMeta, .quantize = kernels::quantization_name(*model.quantization)});
  models::add_lora(made);
  return made.decoder;
}

std::optional<int64_t> training_peak(const models::LanguageModel& trained, int64_t length) {
  const auto tokens = at::TensorOptions(at::kMeta).dtype(at::kLong);
  const Batch batch{{"tokens", at::empty({1, length}, tokens)}, {"targets", at::empty({1, length}, tokens)}};
  try {
    return estimate_memory([&] { return trained_decoder(trained); },
                           [](auto& model, const Batch& given) { return model(given["tokens"], given["targets"]); },
                           [](const Tensor& loss, const Batch&) { return loss; }, batch)
        .device_peak;
  } catch (const Error& error) {
    fmt::print(stderr, "levin: no estimate of training: {}\n", error.what());
    return {};
  }
}

}  // namespace

std::optional<ModelFacts> model_facts(const std::string& folder, const std::string& quantize) {
  if (!std::filesystem::is_regular_file(std::filesystem::path(folder) / "config.json")) return {};
  std::optional<models::LanguageModel> model;
  try {
    model = models::open_model_meta(folder, {.quantize = quantize});
  } catch (const Error& error) {
    fmt::print(stderr, "levin: not opened as a model: {}\n", error.what());
    return {};
  }
  const auto& body = model->body();
  ModelFacts facts{.model_type = model->model_type,
                   .dtype = dtype_name(model->dtype),
                   .layers = body.num_layers,
                   .hidden = body.hidden_dim,
                   .heads = body.num_heads,
                   .kv_heads = body.key_heads(),
                   .vocab = body.vocab_size,
                   .positions = body.max_positions};
  const auto size = static_cast<int64_t>(c10::elementSize(model->dtype));
  for (const auto& parameter : unique_parameters(model->module())) facts.parameters += parameter.numel();
  facts.weights = facts.parameters * size;
  if (model->quantization) facts.quantization = kernels::quantization_name(*model->quantization);
  for (const auto& module : model->module().modules())
    if (const auto* layer = dynamic_cast<const models::DecoderLinearImpl*>(module.get()); layer && layer->quantized) {
      facts.parameters += layer->in_features() * layer->out_features();
      facts.weights += layer->quantized->nbytes();
    }
  if (!model->decoder) return facts;
  if (body.experts.count > 0) {
    facts.experts = body.experts.count;
    facts.experts_per_token = body.experts.per_token;
    facts.active_parameters = facts.parameters;
    for (const auto& item : model->module().named_parameters())
      if (item.value().dim() == 3)  // of experts
        facts.active_parameters -= item.value().numel() / facts.experts * (facts.experts - facts.experts_per_token);
  }
  facts.cache_per_token = 2 * body.num_layers * body.key_heads() * body.head_width() * size;
  facts.training_tokens = std::min(body.max_positions, kInspectedTokens);
  facts.training = training_peak(*model, facts.training_tokens);
  return facts;
}

std::string ModelFacts::to_string() const {
  auto text = fmt::format("model: {}, {} parameters in {}, {} layers, hidden {}, {} heads{}, {} tokens, {} positions\n",
                          model_type, format_count(static_cast<double>(parameters)), dtype, layers, hidden, heads,
                          kv_heads == heads ? "" : fmt::format(" ({} of keys and values)", kv_heads), vocab, positions);
  if (experts > 0)
    text += fmt::format("experts: {} in a layer, {} for a token, which goes through {} parameters\n", experts,
                        experts_per_token, format_count(static_cast<double>(active_parameters)));
  text += fmt::format("inference: {} of weights{}", format_bytes(static_cast<double>(weights)),
                      quantization.empty() ? "" : ", linear layers in " + quantization);
  if (cache_per_token > 0)
    text += fmt::format(", {} of keys and values per token", format_bytes(static_cast<double>(cache_per_token)));
  text += "\n";
  if (training)
    text += fmt::format("training: {} at the peak, predicted for one sequence of {} tokens, adam, {}\n",
                        format_bytes(static_cast<double>(*training)), training_tokens,
                        quantization.empty() ? "32-true" : "adapters of rank 8 alone (QLoRA)");
  return text;
}

}  // namespace levin::cli
