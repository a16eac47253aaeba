#include <functional>
#include <map>
#include <optional>

#include <ATen/ops/empty.h>

#include "levin/checkpoint/part_gathering.h"
#include "levin/checkpoint/together.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/weights/weight_formats.h"
#include "levin/models/folder.h"
#include "levin/models/language/quantized_weights.h"
#include "levin/models/language/weight_plan.h"
#include "levin/models/sentence_embedding.h"
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

/// A parameter, and how many tensors of the files are made of it.
struct SavedParameter {
  std::string name;
  Tensor tensor;
  detail::TheirWeight theirs;
  /// Null where this rank has all of it.
  const ShardPlace* place = nullptr;
  size_t tensors = 0;
};

/// Names and shapes of what is written: values are asked for when their file is.
struct SavePlan {
  struct Part {
    size_t parameter;
    size_t index;
  };
  std::vector<SavedParameter> parameters;
  std::vector<NamedTensors> files{1};
  std::map<std::string, Part> parts;
  /// Of quantized weights, which every rank has whole.
  std::map<std::string, std::function<Tensor()>> packed;
  /// Linear layers that are not quantized, as the files call them.
  std::vector<std::string> plain_layers;
  uint64_t total = 0, filled = 0;
  std::optional<c10::ScalarType> dtype;

  /// In the last file, or in a new one where it would be too large.
  void add(const std::string& name, const Tensor& like, uint64_t max_file) {
    const uint64_t bytes = like.nbytes();
    if (filled > 0 && filled + bytes > max_file) files.emplace_back(), filled = 0;
    files.back().emplace_back(name, like);
    filled += bytes, total += bytes;
  }
};

/// Of the whole model, also where this rank has a part of it.
DecoderOptions whole_body(const LanguageModel& model) {
  return detail::with_all_heads(model.body());
}

/// The model without data, as its options say it is.
std::map<std::string, std::vector<int64_t>> shapes_of(const LanguageModel& model) {
  const InitOptions without_data{.deferred = true};
  std::shared_ptr<torch::nn::Module> whole;
  if (model.decoder) {
    whole = init_module([&] { return Decoder(whole_body(model)); }, without_data).ptr();
  } else {
    auto options = model.encoder->options;
    options.body = whole_body(model);
    whole = init_module([&] { return TextEncoder(options); }, without_data).ptr();
  }
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, parameter, aliases] : named_unique_parameters(*whole))
    shapes.emplace(name, parameter.sizes().vec());
  return shapes;
}

void plan_quantized(const LanguageModel& model, uint64_t max_file, SavePlan& plan) {
  const auto& architecture = architecture_of(model.config);
  const auto& body = model.body();
  if (model.decoder) plan.plain_layers.push_back("lm_head");
  for (const auto& [name, layer] : detail::linear_layers(model.module())) {
    if (name == "head.weight" && !layer->quantized) continue;
    const auto theirs = detail::their_weight(architecture, name);
    LEVIN_CHECK(theirs, "[save_model] ", architecture.model_type, " has no name for \"", name, "\"");
    if (!layer->quantized) {
      for (const auto& each : theirs->names) plan.plain_layers.push_back(each.substr(0, each.rfind(".weight")));
      continue;
    }
    auto like = *layer->quantized;
    for (auto* each : {&like.codes, &like.scales, &like.nested})
      if (each->defined()) *each = at::empty(each->sizes(), each->options().device(c10::kMeta));
    const auto of_file = [&body, theirs = *theirs,
                          type = plan.dtype.value_or(at::kFloat)](const kernels::QuantizedWeight& weight) {
      return detail::quantized_for_file(weight, theirs, detail::qkv_rows(body), body.num_heads, type);
    };
    const auto shapes = of_file(like);
    for (size_t i = 0; i < shapes.size(); ++i)
      for (size_t j = 0; j < shapes[i].size(); ++j) {
        auto full = full_name(architecture, name, theirs->names[i]);
        const auto& behind = shapes[i][j].first;
        if (!behind.empty() && behind[0] != '.') full.resize(full.rfind("weight"));  // "q_proj.SCB"
        full += behind;
        plan.add(full, shapes[i][j].second, max_file);
        plan.packed.emplace(full, [of_file, from = layer, i, j] { return of_file(*from->quantized)[i][j].second; });
      }
  }
}

SavePlan plan_save(const LanguageModel& model, const SaveModelOptions& options) {
  const auto& architecture = architecture_of(model.config);
  const auto body = whole_body(model);
  SavePlan plan;
  const auto expected = shapes_of(model);
  const auto add = [&](const std::string& name, const Tensor& like, size_t index) {
    plan.add(name, like, options.max_shard_size);
    plan.parts.emplace(name, SavePlan::Part{plan.parameters.size() - 1, index});
    ++plan.parameters.back().tensors;
  };
  for (const auto& [name, parameter, aliases] : named_unique_parameters(model.module())) {
    LEVIN_CHECK(name.find(".lora_") == name.npos,
                "[save_model] the model has adapters; merge_lora first, or save_lora");
    const auto* place = options.shards ? options.shards->find(parameter) : nullptr;
    const auto sizes = place ? place->sizes : parameter.sizes().vec();
    const auto theirs = detail::their_weight(architecture, name, sizes);
    LEVIN_CHECK(theirs, "[save_model] ", architecture.model_type, " has no name for \"", name, "\"");
    plan.parameters.push_back({name, parameter, *theirs, place});
    const auto known = expected.find(name);
    LEVIN_CHECK(known != expected.end() && known->second == sizes, "[save_model] \"", name,
                "\" does not have the shape of the model; where parameters are sharded over ranks, give "
                "SaveModelOptions::shards");
    const auto like = at::empty(sizes, parameter.options().device(c10::kMeta));
    const auto shapes = detail::weights_for_file(like, *theirs, detail::qkv_rows(body), body.num_heads);
    plan.dtype = plan.dtype.value_or(parameter.scalar_type());
    for (size_t i = 0; i < shapes.size(); ++i) add(full_name(architecture, name, theirs->names[i]), shapes[i], i);
    // A head of masked tokens that is not tied has its bias under both names.
    if (name == "head.bias" && !body.tied_head && !theirs->also.empty()) add(theirs->also, shapes[0], 0);
  }
  plan_quantized(model, options.max_shard_size, plan);
  return plan;
}

/// The tensors of the files, one by one. A parameter that is gathered is kept until all tensors of it are written.
class SavedTensors {
 public:
  SavedTensors(const SavePlan& plan, DecoderOptions body, levin::detail::PartGathering* gathering)
      : plan_(plan), body_(std::move(body)), gathering_(gathering) {}

  Tensor operator()(const std::string& name) {
    if (const auto packed = plan_.packed.find(name); packed != plan_.packed.end()) return packed->second();
    const auto& part = plan_.parts.at(name);
    const auto& parameter = plan_.parameters[part.parameter];
    const auto made_of = [&](const Tensor& whole) {
      return detail::weights_for_file(whole, parameter.theirs, detail::qkv_rows(body_), body_.num_heads)[part.index];
    };
    if (!parameter.place) return made_of(parameter.tensor);
    auto& [whole, given] = gathered_[part.parameter];
    if (!whole.defined()) whole = gathering_->whole(parameter.name);
    const auto tensor = made_of(whole);
    if (++given == parameter.tensors) gathered_.erase(part.parameter);
    return tensor;
  }

 private:
  const SavePlan& plan_;
  DecoderOptions body_;
  levin::detail::PartGathering* gathering_;
  std::map<size_t, std::pair<Tensor, size_t>> gathered_;
};

/// The parts that ranks have of a model that was opened split.
TensorShards shards_of(const TensorSplit& split) {
  TensorShards shards(split.ranks());
  for (const auto& parameter : split.parameters())
    if (parameter.is_split())
      shards.add(parameter.tensor,
                 {.sizes = parameter.slice.whole, .slice = std::make_shared<const TensorSlice>(parameter.slice)});
  return shards;
}

void copy_other_files(const fs::path& from, const fs::path& to) {
  for (const char* name : kFilesOfText)
    if (fs::is_regular_file(from / name)) fs::copy_file(from / name, to / name);
  for (const auto& name : sentence_files(from)) {
    make_folder((to / name).parent_path());
    fs::copy_file(from / name, to / name);
  }
}

void write_folder(const LanguageModel& model, const SavePlan& plan, const fs::path& folder,
                  levin::detail::PartGathering* gathering) {
  copy_other_files(model.folder, folder);
  const auto format = levin::detail::safetensors_format();
  SavedTensors tensors(plan, whole_body(model), gathering);
  std::map<std::string, std::string> places;
  for (size_t i = 0; i < plan.files.size(); ++i) {
    const auto file = format.file_name(i, plan.files.size());
    FileWriter writer(folder / file);
    write_safetensors(writer, plan.files[i], [&](const std::string& name) { return tensors(name); },
                      {{"format", "pt"}});
    writer.close();
    for (const auto& [name, like] : plan.files[i]) places.emplace(name, file);
  }
  if (plan.files.size() > 1) levin::detail::write_weight_index(folder / format.index_name(), places, plan.total);
  write_file(folder / "config.json",
             model.config.with({{"torch_dtype", ""},
                                {"dtype", "\"" + dtype_name(plan.dtype.value_or(at::kFloat)) + "\""},
                                {"quantization_config", model.quantization ? detail::quantization_config(
                                                                                 *model.quantization, plan.plain_layers)
                                                                           : std::string()},
                                {"tie_word_embeddings", model.body().tied_head ? "true" : "false"}}));
}

/// Rank 0 writes and asks the others for their shards.
void save_from_ranks(const LanguageModel& model, const fs::path& folder, const SaveModelOptions& options) {
  auto& group = options.shards->group();
  SavePlan plan;
  std::optional<AtomicFolder> staged;
  levin::detail::PartGathering::Parts parts;
  levin::detail::together(group, [&] {
    plan = plan_save(model, options);
    for (const auto& parameter : plan.parameters)
      if (parameter.place)
        parts.emplace_back(parameter.name, levin::detail::PartGathering::Part{parameter.tensor, *parameter.place});
    if (group.rank() != 0) return;
    check_destination("save_model", folder, OutputKind::kFolder, options.overwrite);
    staged.emplace(folder);
  });
  levin::detail::PartGathering gathering(group, std::move(parts));
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      write_folder(model, plan, staged->path(), &gathering);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    gathering.end();
  } else {
    gathering.serve();
  }
  levin::detail::together(group, [&] {
    if (failure) std::rethrow_exception(failure);
    if (staged) staged->commit();
  });
}

}  // namespace

void save_model(const LanguageModel& model, const fs::path& folder, const SaveModelOptions& options) {
  LEVIN_CHECK(options.max_shard_size > 0, "[save_model] max_shard_size must be positive");
  if (options.shards) return save_from_ranks(model, folder, options);
  if (model.split) {
    auto shards = shards_of(*model.split);
    auto given = options;
    given.shards = &shards;
    return save_from_ranks(model, folder, given);
  }
  check_destination("save_model", folder, OutputKind::kFolder, options.overwrite);
  const auto plan = plan_save(model, options);
  AtomicFolder staged(folder);
  write_folder(model, plan, staged.path(), nullptr);
  staged.commit();
}

}  // namespace levin::models
