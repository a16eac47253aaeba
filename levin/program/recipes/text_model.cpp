#include "levin/program/recipes/text_model.h"

#include <algorithm>
#include <utility>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/models/language/architecture.h"
#include "levin/models/lora/lora.h"
#include "levin/nn/checkpointing/activation_offload.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/strategies/strategy.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

fs::path checked_folder(const fs::path& folder) {
  LEVIN_CHECK(!folder.empty(), "[recipe] model.folder must name a model folder: config.json, weights and a tokenizer, ",
              "as transformers saves them");
  LEVIN_CHECK(fs::is_directory(folder), "[recipe] model.folder \"", folder.string(), "\" is not a folder");
  return folder;
}

text::Tokenizer tokenizer_of(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"})
    if (fs::is_regular_file(folder / name)) return text::Tokenizer::from_folder(folder);
  throw Error(
      levin::detail::concat("[recipe] model.folder \"", folder.string(),
                            "\" has no tokenizer: none of tokenizer.json, tokenizer.model, vocab.json and vocab.txt"));
}

int64_t token_id(const text::Tokenizer& tokenizer, const std::optional<std::string>& token) {
  return token ? tokenizer.token_to_id(*token).value_or(-1) : -1;
}

constexpr const char* kModelPrefix = "model.";

/// The entries of a module's state whose names begin so, without that.
StateDict below(const StateDict& state, std::string_view prefix) {
  StateDict part;
  for (const auto& [name, value] : state)
    if (name.starts_with(prefix)) part[name.substr(prefix.size())] = value;
  return part;
}

/// The model of the folder, with adapters where they are asked for.
models::LanguageModel opened(const TextModelOptions& options, models::OpenModelOptions open) {
  const auto& lora = options.lora;
  LEVIN_CHECK(lora.rank >= 0, "[recipe] model.lora.rank must not be negative, got ", lora.rank);
  LEVIN_CHECK(options.quantize.empty() || lora.used(), "[recipe] model.quantize \"", options.quantize,
              "\" freezes the model: set model.lora.rank or model.lora.adapter to train adapters");
  open.dtype = at::kFloat;  // what the run computes in is trainer.precision
  open.quantize = options.quantize;
  auto model = models::open_model(options.folder, open);
  if (!lora.adapter.empty())
    models::load_lora(model, lora.adapter);
  else if (lora.rank > 0)
    models::add_lora(model, {.rank = lora.rank,
                             .alpha = lora.alpha,
                             .rslora = lora.rslora,
                             .dropout = lora.dropout,
                             .target_modules = lora.target_modules});
  LEVIN_CHECK(lora.used() || lora.modules_to_save.empty(),
              "[recipe] model.lora.modules_to_save is beside adapters: set model.lora.rank or model.lora.adapter");
  if (!lora.used()) return model;
  // A new head must be learned, whatever else is frozen.
  auto whole = models::head_modules(model);
  whole.insert(whole.end(), lora.modules_to_save.begin(), lora.modules_to_save.end());
  models::train_modules(model, whole);
  return model;
}

/// The model of the folder as it was trained, in the dtype of that. Where weights were quantized, they come from the
/// folder again.
models::LanguageModel trained_copy(TextModelOptions options, const models::OpenModelOptions& open,
                                   const StateDict& weights) {
  const bool adapted_only = !std::exchange(options.quantize, {}).empty();
  auto copy = opened(options, open);
  LEVIN_CHECK(!weights.empty(), "[recipe] the trained model has no weights");
  if (!adapted_only) {
    copy.module().to(weights.begin()->second.to_tensor().scalar_type());
    load_module_state_dict(copy.module(), weights);
    return copy;
  }
  for (auto& parameter : copy.module().named_parameters()) {
    if (!parameter.value().requires_grad()) continue;  // an adapter, or the head
    parameter.value().copy_(weights.at(parameter.key()).to_tensor());
  }
  return copy;
}

}  // namespace

TextFolder::TextFolder(const fs::path& folder) : path(checked_folder(folder)), tokenizer(tokenizer_of(folder)) {
  const auto config = models::ModelConfig::read(path / "config.json");
  const auto& architecture = models::architecture_of(config);
  is_decoder = architecture.decoder != nullptr;
  models::DecoderOptions body;
  int64_t reserved = 0;
  if (is_decoder) {
    body = architecture.decoder(config);
  } else {
    const auto options = architecture.encoder(config);
    body = options.body;
    if (options.positions_from_ids) reserved = options.pad_token + 1;
  }
  max_length = body.max_positions - reserved;
  LEVIN_CHECK(tokenizer.id_end() <= body.vocab_size, "[recipe] model.folder \"", path.string(),
              "\": the tokenizer has ", tokenizer.id_end(), " tokens, the model ", body.vocab_size,
              ": they do not belong together");
  const auto& words = tokenizer.config();
  eos_token = token_id(tokenizer, words.eos_token);
  const auto of_config = config.integer("pad_token_id", -1, body.vocab_size - 1, -1);
  // That of the config first: the model looks for it, to count positions or to find the last token.
  pad_token = of_config >= 0 ? of_config : token_id(tokenizer, words.pad_token);
  if (pad_token < 0) pad_token = std::max<int64_t>(eos_token, 0);
}

TextModule::TextModule(const TextModelOptions& options, models::OpenModelOptions open)
    : options_(options), open_(std::move(open)), model_(opened(options_, open_)) {
  for (const auto& note : model_.notes) log_info(levin::detail::concat("[recipe] ", note));
  register_module("model", model_.decoder ? std::static_pointer_cast<torch::nn::Module>(model_.decoder.ptr())
                                          : std::static_pointer_cast<torch::nn::Module>(model_.encoder.ptr()));
  const auto blocks = policy::by_class<models::DecoderBlock>();
  if (options_.activations == "recomputed")
    checkpoint_activations(model_.module(), blocks);
  else if (options_.activations == "offloaded")
    offload_activations(model_.module(), blocks);
}

void TextModule::check_save() const {
  if (options_.save.empty() || options_.save == "none") return;
  LEVIN_CHECK(!fs::exists(options_.save), "[recipe] model.save \"", options_.save,
              "\" is there already; name another place");
}

void TextModule::save(Trainer& trainer) const {
  if (options_.save == "none" || trainer.plan().fast_dev_run != 0 || trainer.plan().barebones) return;
  auto& fabric = trainer.fabric();
  auto* shards = fabric.strategy().shards();
  const auto state = shards ? full_state_dict(*this, *shards) : module_state_dict(*this);
  if (fabric.is_global_zero()) {
    const at::NoGradGuard no_grad;
    auto copy = trained_copy(options_, open_, below(state, kModelPrefix));  // on the CPU
    const auto place = options_.save.empty() ? trainer.log_dir() / "model" : fs::path(options_.save);
    const bool adapters = options_.lora.used() && saves_adapter();
    if (adapters) {
      models::save_lora(copy, place);
    } else {
      if (options_.lora.used()) models::merge_lora(copy);
      models::save_model(copy, place, {.overwrite = options_.save.empty()});
    }
    fabric.print(adapters ? "Adapter: " : "Model: ", place.string());
  }
  fabric.barrier();
}

}  // namespace levin::cli
