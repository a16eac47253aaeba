#include "levin/program/commands/memory_language.h"

#include <algorithm>
#include <filesystem>

#include <ATen/Functions.h>

#include "levin/core/error.h"
#include "levin/memory/kernels.h"
#include "levin/memory/meter.h"
#include "levin/models/decoder_sizes.h"
#include "levin/models/language/architecture.h"
#include "levin/models/lora/lora.h"
#include "levin/models/text_encoder_sizes.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/functional.h"
#include "levin/nn/tie.h"
#include "levin/precision/precision.h"

namespace levin::cli {
namespace {

bool is_in(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

models::ModelConfig folder_config(const std::string& folder) {
  return models::ModelConfig::read(std::filesystem::path(folder) / "config.json");
}

int64_t longest_text_of(const models::TextEncoderOptions& options) {
  return options.body.max_positions - (options.positions_from_ids ? options.pad_token + 1 : 0);
}

/// Sizes of a name have no config.json; the names of their layers are those of GPT-2.
models::LanguageModel named_decoder(const std::string& name) {
  return {.model_type = "gpt2",
          .decoder = models::decoder(models::decoder_options(name)),
          .config = models::ModelConfig(R"({"model_type": "gpt2"})", name)};
}

models::LanguageModel whole_model(const std::string& model, c10::ScalarType dtype) {
  const models::OpenModelOptions options{.dtype = dtype, .device = c10::kMeta};
  if (is_model_folder(model)) {
    auto made = models::new_model(folder_config(model).with({{"quantization_config", ""}}), options);
    return made;
  }
  if (is_in(models::text_encoder_names(), model)) return models::new_model(models::text_encoder_config(model), options);
  const InitScope scope({.device = c10::Device(c10::kMeta), .dtype = dtype});
  auto made = named_decoder(model);
  made.dtype = dtype;
  return made;
}

c10::ScalarType dtype_of(const MemoryStep& step, c10::DeviceType device) {
  return resolve_precision(step.precision, device).params.value_or(at::kFloat);
}

int64_t quantized_numbers(const models::LanguageModel& model, int64_t* bytes = nullptr) {
  int64_t numbers = 0;
  for (const auto& module : model.module().modules())
    if (const auto* layer = dynamic_cast<const models::DecoderLinearImpl*>(module.get()); layer && layer->quantized) {
      numbers += layer->in_features() * layer->out_features();
      if (bytes) *bytes += layer->quantized->nbytes();
    }
  return numbers;
}

}  // namespace

bool is_model_folder(const std::string& model) {
  return !model.empty() && std::filesystem::is_regular_file(std::filesystem::path(model) / "config.json");
}

int64_t longest_text_of(const std::string& model) {
  if (is_in(models::decoder_names(), model)) return models::decoder_options(model).max_positions;
  if (is_in(models::text_encoder_names(), model)) return longest_text_of(models::text_encoder_options(model));
  if (!is_model_folder(model)) return 0;
  const auto config = folder_config(model);
  const auto& architecture = models::architecture_of(config);
  return architecture.decoder ? architecture.decoder(config).max_positions
                              : longest_text_of(architecture.encoder(config));
}

models::LanguageModel memory_model(const MemoryStep& step, c10::ScalarType dtype) {
  auto model = whole_model(step.model, dtype);
  if (!step.quantize.empty()) models::quantize_model(model, step.quantize);
  if (step.lora == 0) return model;
  models::add_lora(model, {.rank = step.lora, .target_modules = step.lora_targets});
  models::train_modules(model, models::head_modules(model));
  return model;
}

MemoryEstimate estimate_language(const MemoryStep& step, const MemoryQuestion& question) {
  const auto dtype = resolve_precision(question.precision, question.device).params.value_or(at::kFloat);
  int64_t quantized = 0;
  const auto make = [&]() -> TrainingStep {
    auto model = std::make_shared<models::LanguageModel>(memory_model(step, dtype));
    quantized = quantized_numbers(*model);
    auto module = model->decoder ? std::static_pointer_cast<torch::nn::Module>(model->decoder.ptr())
                                 : std::static_pointer_cast<torch::nn::Module>(model->encoder.ptr());
    // A decoder computes its loss itself, without keeping the logits.
    const bool has_loss = model->decoder && model->decoder->options.num_labels == 0;
    return {module,
            [model, has_loss](const Batch& given) {
              if (has_loss) return model->decoder(given["tokens"], given["targets"]);
              return model->decoder ? model->decoder(given["tokens"]) : model->encoder(given["tokens"]);
            },
            [has_loss](const Tensor& output, const Batch& given) {
              return has_loss ? output : cross_entropy(output.flatten(0, -2), given["targets"].flatten());
            }};
  };
  const auto tokens = at::TensorOptions(at::kMeta).dtype(at::kLong);
  const auto rows = at::empty({step.batch, *step.sequence_length}, tokens);
  // A classifier of texts has a label for each of them.
  const auto shape = memory_model(step, dtype);
  const bool by_text =
      shape.encoder ? shape.encoder->options.head == "sequence_classification" : shape.decoder->options.num_labels > 0;
  if (shape.encoder)
    LEVIN_CHECK(shape.encoder->options.head != "none", "[levin memory] \"", step.model,
                "\" has no head to train; name a size (--model distilbert) or a folder with one");
  const Batch batch{{"tokens", rows}, {"targets", by_text ? at::empty({step.batch}, tokens) : at::empty_like(rows)}};
  auto estimate = estimate_memory(make, batch, question);
  estimate.num_parameters += quantized;
  return estimate;
}

InferenceMemory estimate_inference(const MemoryStep& step) {
  const auto device = step.accelerator == "cpu" ? at::kCPU : at::kCUDA;
  const auto dtype = dtype_of(step, device);
  InferenceMemory result;
  const at::NoGradGuard no_grad;
  const levin::detail::MetaKernels kernels(device);
  const levin::detail::MetaMeter meter(device == at::kCUDA ? levin::detail::Rounding::kCuda
                                                           : levin::detail::Rounding::kNone);
  auto model = memory_model(step, dtype);
  model.module().eval();
  const auto& body = model.body();
  for (const auto& parameter : unique_parameters(model.module())) {
    result.parameters += parameter.numel();
    result.weights += static_cast<int64_t>(parameter.nbytes());
  }
  result.parameters += quantized_numbers(model, &result.weights);
  if (model.decoder)
    result.cache = 2 * step.batch * *step.sequence_length * body.num_layers * body.key_heads() * body.head_width() *
                   static_cast<int64_t>(c10::elementSize(dtype));
  const auto before = meter.events().size();
  {
    const InitScope scope({.device = c10::Device(at::kMeta), .dtype = dtype});
    const auto tokens = at::empty({step.batch, *step.sequence_length}, at::TensorOptions(at::kMeta).dtype(at::kLong));
    Tensor output;
    if (model.decoder && model.decoder->head)  // only the last token reaches the head
      output = model.decoder->head(model.decoder->hidden_states(tokens).slice(1, -1));
    else
      output = model.decoder ? model.decoder(tokens) : model.encoder(tokens);
  }
  int64_t live = 0;
  for (size_t i = before; i < meter.events().size(); ++i) {
    live += meter.events()[i].bytes;
    result.temporary = std::max(result.temporary, live);
  }
  return result;
}

}  // namespace levin::cli
