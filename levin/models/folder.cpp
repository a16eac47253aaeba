#include "levin/models/folder.h"

#include <algorithm>
#include <map>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/io/weights/weight_formats.h"
#include "levin/models/language/weight_plan.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/tie.h"

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
    if (entry.type != c10::ScalarType::Undefined && at::isFloatingType(entry.type) && at::elementSize(entry.type) >= 2)
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
std::string found_name(const detail::WeightNames& names, const Architecture& architecture, const char* ours) {
  const auto theirs = detail::their_weight(architecture, ours);
  if (!theirs) return {};
  if (names.find(theirs->names[0])) return theirs->names[0];
  return !theirs->also.empty() && names.find(theirs->also) ? theirs->also : "";
}

HeadPlan plan_head(const ModelConfig& config, const Architecture& architecture, const detail::WeightNames& names,
                   const char* embedding_name, const char* head_name) {
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

const DecoderOptions& body_options(const LanguageModel& model) {
  return model.decoder->options;
}

LanguageModel made_model(const ModelConfig& config, const Architecture& architecture, std::optional<bool> tied,
                         c10::ScalarType dtype, const InitOptions& init) {
  LanguageModel model{.model_type = std::string(architecture.model_type), .config = config, .dtype = dtype};
  auto options = architecture.decoder(config);
  options.tied_head = tied.value_or(config.flag("tie_word_embeddings", architecture.tied));
  check_options(options);
  model.decoder = init_module([&] { return Decoder(options); }, init);
  return model;
}

}  // namespace

torch::nn::Module& LanguageModel::module() const {
  LEVIN_CHECK(decoder, "[LanguageModel] is empty");
  return *decoder.ptr();
}

LanguageModel open_model(const fs::path& folder, const OpenModelOptions& options) {
  LEVIN_CHECK(fs::is_directory(folder), "[open_model] \"", folder.string(), "\" is not a folder");
  const auto config = ModelConfig::read(folder / "config.json");
  const auto& architecture = architecture_of(config);
  if (config.has("quantization_config")) config.fail("quantization_config", "is not supported: its weights are packed");
  const WeightFile file(folder);
  const detail::WeightNames names(file, architecture);
  const auto dtype = options.dtype.value_or(dtype_of_config(config, dtype_of_file(file)));
  const auto head = plan_head(config, architecture, names, "tokens.weight", "head.weight");

  auto model =
      made_model(config, architecture, head.tied, dtype, {.device = options.device, .dtype = dtype, .deferred = true});
  if (!head.note.empty()) {
    model.notes.push_back(head.note);
    log_warning(fmt::format("[open_model] \"{}\": {}", folder.string(), head.note));
  }
  std::unordered_map<std::string, std::string> instead;
  if (head.embedding_from_head) instead.emplace("tokens.weight", "head.weight");
  const auto& body = body_options(model);
  const auto plan = detail::plan_weights(model.module(), names, architecture, qkv_rows(body), body.num_heads, instead,
                                         head.unused, options.dtype ? *options.dtype : dtype);
  std::vector<Tensor> targets;
  for (const auto& weight : plan) targets.push_back(weight.target);
  materialize(targets, /*initialize=*/false);
  detail::read_weights(file, plan, body.num_heads);
  model.module().eval();
  return model;
}

LanguageModel new_model(std::string_view config_json, const OpenModelOptions& options) {
  const ModelConfig config(config_json, "config.json");
  const auto& architecture = architecture_of(config);
  const auto dtype = options.dtype.value_or(dtype_of_config(config, at::kFloat));
  return made_model(config, architecture, std::nullopt, dtype, {.device = options.device, .dtype = dtype});
}

void save_model(const LanguageModel& model, const fs::path& folder, const SaveModelOptions& options) {
  LEVIN_CHECK(options.max_shard_size > 0, "[save_model] max_shard_size must be positive");
  check_destination("save_model", folder, OutputKind::kFolder, options.overwrite);
  const auto& architecture = architecture_of(model.config);
  const auto& body = body_options(model);
  const auto rows = qkv_rows(body);

  // Names and shapes first: what is not a view is made when its file is written.
  struct Part {
    Tensor parameter;
    detail::TheirWeight theirs;
    size_t index;
  };
  std::map<std::string, Part> parts;
  std::vector<NamedTensors> shards(1);
  uint64_t filled = 0, total = 0;
  std::optional<c10::ScalarType> dtype;
  for (const auto& [name, parameter, aliases] : named_unique_parameters(model.module())) {
    const auto theirs = detail::their_weight(architecture, name);
    LEVIN_CHECK(theirs, "[save_model] ", architecture.model_type, " has no name for \"", name, "\"");
    const auto like = at::empty(parameter.sizes(), parameter.options().device(c10::kMeta));
    const auto shapes = detail::weights_for_file(like, *theirs, rows, body.num_heads);
    dtype = dtype.value_or(parameter.scalar_type());
    for (size_t i = 0; i < shapes.size(); ++i) {
      const bool of_head = name.starts_with("head.");
      const auto full = (of_head ? "" : std::string(architecture.prefix)) + theirs->names[i];
      const uint64_t bytes = shapes[i].nbytes();
      if (filled > 0 && filled + bytes > options.max_shard_size) shards.emplace_back(), filled = 0;
      shards.back().emplace_back(full, shapes[i]);
      filled += bytes, total += bytes;
      parts.emplace(full, Part{parameter, *theirs, i});
    }
  }
  const auto read = [&](const std::string& name) {
    const auto& part = parts.at(name);
    return detail::weights_for_file(part.parameter, part.theirs, rows, body.num_heads)[part.index];
  };
  AtomicFolder staged(folder);
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
  const auto tied = model.decoder->options.tied_head;
  write_file(staged.path() / "config.json",
             model.config.with({{"torch_dtype", ""},
                                {"dtype", "\"" + dtype_name(dtype.value_or(at::kFloat)) + "\""},
                                {"tie_word_embeddings", tied ? "true" : "false"}}));
  staged.commit();
}

}  // namespace levin::models
