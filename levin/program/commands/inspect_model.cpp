#include "levin/program/commands/inspect_model.h"

#include <algorithm>
#include <filesystem>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/weights.h"
#include "levin/memory/estimate.h"
#include "levin/models/folder.h"
#include "levin/nn/tie.h"

namespace levin::cli {
namespace {

constexpr int64_t kInspectedTokens = 2048;

std::optional<int64_t> training_peak(const models::DecoderOptions& options, int64_t length) {
  const auto tokens = at::TensorOptions(at::kMeta).dtype(at::kLong);
  const Batch batch{{"tokens", at::empty({1, length}, tokens)}, {"targets", at::empty({1, length}, tokens)}};
  try {
    return estimate_memory([&] { return models::decoder(options); },
                           [](auto& model, const Batch& given) { return model(given["tokens"], given["targets"]); },
                           [](const Tensor& loss, const Batch&) { return loss; }, batch)
        .device_peak;
  } catch (const Error& error) {
    fmt::print(stderr, "levin: no estimate of training: {}\n", error.what());
    return {};
  }
}

}  // namespace

std::optional<ModelFacts> model_facts(const std::string& folder) {
  if (!std::filesystem::is_regular_file(std::filesystem::path(folder) / "config.json")) return {};
  std::optional<models::LanguageModel> model;
  try {
    model = models::open_model_meta(folder);
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
  if (!model->decoder) return facts;
  facts.cache_per_token = 2 * body.num_layers * body.key_heads() * body.head_width() * size;
  facts.training_tokens = std::min(body.max_positions, kInspectedTokens);
  facts.training = training_peak(body, facts.training_tokens);
  return facts;
}

std::string ModelFacts::to_string() const {
  auto text = fmt::format("model: {}, {} parameters in {}, {} layers, hidden {}, {} heads{}, {} tokens, {} positions\n",
                          model_type, format_count(static_cast<double>(parameters)), dtype, layers, hidden, heads,
                          kv_heads == heads ? "" : fmt::format(" ({} of keys and values)", kv_heads), vocab, positions);
  text += fmt::format("inference: {} of weights", format_bytes(static_cast<double>(weights)));
  if (cache_per_token > 0)
    text += fmt::format(", {} of keys and values per token", format_bytes(static_cast<double>(cache_per_token)));
  text += "\n";
  if (training)
    text += fmt::format("training: {} at the peak, predicted for one sequence of {} tokens, adam, 32-true\n",
                        format_bytes(static_cast<double>(*training)), training_tokens);
  return text;
}

}  // namespace levin::cli
