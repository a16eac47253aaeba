#include "levin/generate/generation_config.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"

namespace levin {
namespace {

using Json = nlohmann::json;
using Kind = GenerationField::Kind;
using Read = void (*)(const Json& value, GenerateOptions& options);

/// Sets a member that has its default value.
template <auto member>
void read(const Json& value, GenerateOptions& options) {
  using Value = std::remove_cvref_t<decltype(options.*member)>;
  if (options.*member == GenerateOptions().*member) options.*member = value.get<Value>();
}

/// A number, or a list of numbers.
template <auto member>
void read_ids(const Json& value, GenerateOptions& options) {
  if ((options.*member).empty())
    options.*member = (value.is_array() ? value : Json::array({value})).get<std::vector<int64_t>>();
}

void read_decay(const Json& value, GenerateOptions& options) {
  if (!options.exponential_decay_length_penalty)
    options.exponential_decay_length_penalty.emplace(value.at(0).get<int64_t>(), value.at(1).get<double>());
}

void read_biases(const Json& value, GenerateOptions& options) {
  if (!options.sequence_bias.empty()) return;
  for (const auto& each : value)
    options.sequence_bias.emplace_back(each.at(0).get<std::vector<int64_t>>(), each.at(1).get<double>());
}

void read_strings(const Json& value, GenerateOptions& options) {
  if (options.stop.empty())
    options.stop = (value.is_array() ? value : Json::array({value})).get<std::vector<std::string>>();
}

using O = GenerateOptions;

constexpr std::string_view kSpeculation = "guesses change how fast tokens come, not which";
constexpr std::string_view kResults = "results always have log probabilities, and with `top_logprobs` the likeliest";
constexpr std::string_view kCache = "there always is a cache; `cache_dtype` and `paged` say of which kind";

struct Row {
  GenerationField field;
  Read read = nullptr;
};

constexpr std::array kRows{
    Row{{"max_new_tokens", Kind::kObeyed, "max_new_tokens"}, read<&O::max_new_tokens>},
    Row{{"min_new_tokens", Kind::kObeyed, "min_new_tokens"}, read<&O::min_new_tokens>},
    Row{{"min_length", Kind::kObeyed, "min_length"}, read<&O::min_length>},
    Row{{"max_length", Kind::kNoMatter, "`max_new_tokens` says when a text ends"}},
    Row{{"max_time", Kind::kObeyed, "max_time"}, read<&O::max_time>},
    Row{{"stop_strings", Kind::kObeyed, "stop"}, read_strings},
    Row{{"eos_token_id", Kind::kObeyed, "eos_token_ids"}, read_ids<&O::eos_token_ids>},
    Row{{"do_sample", Kind::kObeyed, "temperature"}},
    Row{{"temperature", Kind::kObeyed, "temperature"}},
    Row{{"top_k", Kind::kObeyed, "top_k"}, read<&O::top_k>},
    Row{{"top_h", Kind::kObeyed, "top_h"}, read<&O::top_h>},
    Row{{"top_p", Kind::kObeyed, "top_p"}, read<&O::top_p>},
    Row{{"min_p", Kind::kObeyed, "min_p"}, read<&O::min_p>},
    Row{{"typical_p", Kind::kObeyed, "typical_p"}, read<&O::typical_p>},
    Row{{"epsilon_cutoff", Kind::kObeyed, "epsilon_cutoff"}, read<&O::epsilon_cutoff>},
    Row{{"eta_cutoff", Kind::kObeyed, "eta_cutoff"}, read<&O::eta_cutoff>},
    Row{{"repetition_penalty", Kind::kObeyed, "repetition_penalty"}, read<&O::repetition_penalty>},
    Row{{"encoder_repetition_penalty", Kind::kObeyed, "encoder_repetition_penalty"},
        read<&O::encoder_repetition_penalty>},
    Row{{"no_repeat_ngram_size", Kind::kObeyed, "no_repeat_ngram_size"}, read<&O::no_repeat_ngram_size>},
    Row{{"encoder_no_repeat_ngram_size", Kind::kObeyed, "encoder_no_repeat_ngram_size"},
        read<&O::encoder_no_repeat_ngram_size>},
    Row{{"bad_words_ids", Kind::kObeyed, "bad_words"}, read<&O::bad_words>},
    Row{{"sequence_bias", Kind::kObeyed, "sequence_bias"}, read_biases},
    Row{{"suppress_tokens", Kind::kObeyed, "suppress_tokens"}, read<&O::suppress_tokens>},
    Row{{"begin_suppress_tokens", Kind::kObeyed, "begin_suppress_tokens"}, read<&O::begin_suppress_tokens>},
    Row{{"forced_bos_token_id", Kind::kObeyed, "forced_bos_token_id"}, read<&O::forced_bos_token_id>},
    Row{{"forced_eos_token_id", Kind::kObeyed, "forced_eos_token_id"}, read_ids<&O::forced_eos_token_id>},
    Row{{"exponential_decay_length_penalty", Kind::kObeyed, "exponential_decay_length_penalty"}, read_decay},
    Row{{"remove_invalid_values", Kind::kObeyed, "remove_invalid_values"}, read<&O::remove_invalid_values>},
    Row{{"renormalize_logits", Kind::kObeyed, "renormalize_logits"}, read<&O::renormalize_logits>},
    Row{{"num_beams", Kind::kObeyed, "num_beams"}, read<&O::num_beams>},
    Row{{"length_penalty", Kind::kObeyed, "length_penalty"}, read<&O::length_penalty>},
    Row{{"early_stopping", Kind::kObeyed, "early_stopping"}, read<&O::early_stopping>},
    Row{{"num_return_sequences", Kind::kObeyed, "num_return_sequences"}, read<&O::num_return_sequences>},
    Row{{"prompt_lookup_num_tokens", Kind::kObeyed, "prompt_lookup"}, read<&O::prompt_lookup>},
    Row{{"max_matching_ngram_size", Kind::kObeyed, "prompt_lookup_ngram"}, read<&O::prompt_lookup_ngram>},
    Row{{"num_assistant_tokens", Kind::kObeyed, "draft_tokens"}, read<&O::draft_tokens>},
    Row{{"prefill_chunk_size", Kind::kObeyed, "prefill_chunk"}, read<&O::prefill_chunk>},
    Row{{"num_assistant_tokens_schedule", Kind::kNoMatter, kSpeculation}},
    Row{{"assistant_confidence_threshold", Kind::kNoMatter, kSpeculation}},
    Row{{"assistant_early_exit", Kind::kNoMatter, kSpeculation}},
    Row{{"assistant_lookbehind", Kind::kNoMatter, kSpeculation}},
    Row{{"target_lookbehind", Kind::kNoMatter, kSpeculation}},
    Row{{"speculation_type", Kind::kNoMatter, kSpeculation}},
    Row{{"use_mtp", Kind::kNoMatter, kSpeculation}},
    Row{{"is_assistant", Kind::kNoMatter, kSpeculation}},
    Row{{"bos_token_id", Kind::kNoMatter, "the tokenizer writes it"}},
    Row{{"pad_token_id", Kind::kNoMatter, "rows have lengths of their own"}},
    Row{{"decoder_start_token_id", Kind::kNoMatter, "decoders begin with the prompt"}},
    Row{{"use_cache", Kind::kNoMatter, kCache}},
    Row{{"cache_implementation", Kind::kNoMatter, kCache}},
    Row{{"cache_config", Kind::kNoMatter, kCache}},
    Row{{"max_cache_len", Kind::kNoMatter, kCache}},
    Row{{"low_memory", Kind::kNoMatter, kCache}},
    Row{{"continuous_batching_config", Kind::kNoMatter, "`EngineOptions`"}},
    Row{{"compile_config", Kind::kNoMatter, "`cuda_graphs`"}},
    Row{{"disable_compile", Kind::kNoMatter, "`cuda_graphs`"}},
    Row{{"output_scores", Kind::kNoMatter, kResults}},
    Row{{"output_logits", Kind::kNoMatter, kResults}},
    Row{{"output_attentions", Kind::kNoMatter, "results have no attention weights"}},
    Row{{"output_hidden_states", Kind::kNoMatter, "results have no hidden states"}},
    Row{{"return_dict_in_generate", Kind::kNoMatter, kResults}},
    Row{{"transformers_version", Kind::kNoMatter, "who wrote the file"}},
    Row{{"_from_model_config", Kind::kNoMatter, "who wrote the file"}},
    Row{{"_commit_hash", Kind::kNoMatter, "who wrote the file"}},
    Row{{"assistant_ensemble_weight", Kind::kRefused, "a draft model never changes the distribution of tokens"}},
    Row{{"penalty_alpha", Kind::kRefused, "there is no contrastive search"}},
    Row{{"dola_layers", Kind::kRefused, "there is no decoding by contrasting layers"}},
    Row{{"num_beam_groups", Kind::kRefused, "there are no groups of beams"}},
    Row{{"diversity_penalty", Kind::kRefused, "there are no groups of beams"}},
    Row{{"constraints", Kind::kRefused, "beams have no constraints; `allowed_tokens` says what may come"}},
    Row{{"force_words_ids", Kind::kRefused, "beams have no constraints; `allowed_tokens` says what may come"}},
    Row{{"guidance_scale", Kind::kRefused, "there is no classifier-free guidance; `on_logits` may compute it"}},
    Row{{"watermarking_config", Kind::kRefused, "there are no watermarks; `on_logits` may write one"}},
    Row{{"token_healing", Kind::kRefused, "prompts stay as they are"}},
};

constexpr auto kFields = [] {
  std::array<GenerationField, kRows.size()> fields{};
  for (size_t i = 0; i < fields.size(); ++i) fields[i] = kRows[i].field;
  return fields;
}();

/// Whether a value of a refused field asks for nothing.
bool is_neutral(const std::string& name, const Json& value) {
  if (name == "num_beam_groups" || name == "guidance_scale") return value.is_null() || value == 1;
  return value.is_null() || value == false || value == 0 || value == "" || (value.is_structured() && value.empty());
}

}  // namespace

std::span<const GenerationField> generation_fields() {
  return kFields;
}

std::string describe(const GenerationField& field) {
  const std::string what(field.what);
  switch (field.kind) {
    case Kind::kObeyed:
      return "obeyed: `" + what + "`";
    case Kind::kNoMatter:
      return "no matter: " + what;
    case Kind::kRefused:
      return "refused: " + what;
  }
  return what;
}

GenerateOptions with_generation_config(const std::filesystem::path& folder, GenerateOptions options) {
  const auto file = folder / "generation_config.json";
  LEVIN_CHECK(std::filesystem::exists(file), "[generate] \"", file.string(), "\" is not there");
  const auto json = Json::parse(read_file(file, uint64_t{64} << 20), nullptr, false);
  LEVIN_CHECK(json.is_object(), "[generate] \"", file.string(), "\" is not a JSON object");
  const auto where = [&](const std::string& name) {
    return levin::detail::concat("[generate] \"", file.string(), "\": ", shown(name));
  };
  const bool draws = json.value("do_sample", Json()) == true;
  for (const auto& [name, value] : json.items()) {
    const auto row = std::ranges::find(kRows, name, [](const Row& each) { return each.field.name; });
    LEVIN_CHECK(row != kRows.end(), where(name), " is no field of GenerationConfig");
    LEVIN_CHECK(row->field.kind != Kind::kRefused || is_neutral(name, value), where(name),
                " is not supported: ", row->field.what);
    if (value.is_null() || !row->read) continue;
    try {
      row->read(value, options);
    } catch (const Json::exception&) {
      throw Error(where(name) + " has a value of another type");
    }
  }
  if (options.temperature == GenerateOptions().temperature) {
    const auto given = json.value("temperature", Json());
    LEVIN_CHECK(given.is_null() || given.is_number(), where("temperature"), " has a value of another type");
    options.temperature = !draws ? 0 : given.is_null() ? 1 : given.get<double>();
  }
  // What transformers takes where a file that draws does not say it.
  constexpr int64_t kUsualTopK = 50;
  if (draws && options.top_k == 0 && !json.contains("top_k")) options.top_k = kUsualTopK;
  return options;
}

}  // namespace levin
