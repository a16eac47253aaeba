#include "levin/generate/options.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"

namespace levin {
namespace {

void check_probability(const char* name, double value) {
  LEVIN_CHECK(value >= 0 && value <= 1, "[generate] ", name, " ", value, " must be from 0 to 1");
}

/// The object in a file; empty when there is none.
nlohmann::json object_in(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return nlohmann::json::object();
  auto json = nlohmann::json::parse(read_file(file, uint64_t{64} << 20), nullptr, false);
  LEVIN_CHECK(json.is_object(), "[generate] \"", file.string(), "\" is not a JSON object");
  return json;
}

/// Ids under a key of a JSON file: a number or a list; empty when the file or the key is not there.
std::vector<int64_t> eos_ids_in(const std::filesystem::path& file) {
  const auto json = object_in(file);
  const auto found = json.find("eos_token_id");
  if (found == json.end() || found->is_null()) return {};
  std::vector<int64_t> ids;
  for (const auto& id : found->is_array() ? *found : nlohmann::json::array({*found})) {
    LEVIN_CHECK(id.is_number_integer(), "[generate] \"", file.string(),
                "\": eos_token_id is not an integer or a list of integers");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

}  // namespace

void check_options(const GenerateOptions& o) {
  LEVIN_CHECK(o.max_new_tokens > 0, "[generate] max_new_tokens ", o.max_new_tokens, " must be positive");
  LEVIN_CHECK(o.min_new_tokens >= 0 && o.min_new_tokens <= o.max_new_tokens, "[generate] min_new_tokens ",
              o.min_new_tokens, " must be from 0 to max_new_tokens, ", o.max_new_tokens);
  LEVIN_CHECK(o.min_length >= 0, "[generate] min_length ", o.min_length, " must not be negative");
  LEVIN_CHECK(o.max_time >= 0, "[generate] max_time ", o.max_time, " must be 0 (no limit) or positive");
  LEVIN_CHECK(std::isfinite(o.temperature) && o.temperature >= 0, "[generate] temperature ", o.temperature,
              " must be 0 (the likeliest token) or positive");
  LEVIN_CHECK(o.top_k >= 0, "[generate] top_k ", o.top_k, " must be 0 (all tokens) or positive");
  check_probability("top_h", o.top_h);
  check_probability("top_p", o.top_p);
  for (const auto& [name, value] : {std::pair{"epsilon_cutoff", o.epsilon_cutoff}, {"eta_cutoff", o.eta_cutoff}})
    LEVIN_CHECK(value >= 0 && value < 1, "[generate] ", name, " ", value, " must be from 0 to below 1");
  check_probability("min_p", o.min_p);
  LEVIN_CHECK(o.typical_p > 0 && o.typical_p <= 1, "[generate] typical_p ", o.typical_p,
              " must be more than 0 and at most 1");
  LEVIN_CHECK(std::isfinite(o.repetition_penalty) && o.repetition_penalty > 0, "[generate] repetition_penalty ",
              o.repetition_penalty, " must be positive");
  LEVIN_CHECK(std::isfinite(o.presence_penalty) && std::isfinite(o.frequency_penalty),
              "[generate] presence_penalty and frequency_penalty must be finite");
  LEVIN_CHECK(o.no_repeat_ngram_size >= 0, "[generate] no_repeat_ngram_size ", o.no_repeat_ngram_size,
              " must not be negative");
  LEVIN_CHECK(std::isfinite(o.encoder_repetition_penalty) && o.encoder_repetition_penalty > 0,
              "[generate] encoder_repetition_penalty ", o.encoder_repetition_penalty, " must be positive");
  LEVIN_CHECK(o.encoder_no_repeat_ngram_size >= 0, "[generate] encoder_no_repeat_ngram_size ",
              o.encoder_no_repeat_ngram_size, " must not be negative");
  LEVIN_CHECK(!o.exponential_decay_length_penalty ||
                  (o.exponential_decay_length_penalty->first >= 0 && o.exponential_decay_length_penalty->second > 0),
              "[generate] exponential_decay_length_penalty needs a start that is not negative, and a positive factor");
  for (const auto& [sequence, bias] : o.sequence_bias)
    LEVIN_CHECK(!sequence.empty() && std::isfinite(bias),
                "[generate] a sequence of sequence_bias has no tokens, or a bias that is not finite");
  for (const auto& word : o.bad_words) LEVIN_CHECK(!word.empty(), "[generate] a word of bad_words has no tokens");
  for (const auto& [id, bias] : o.logit_bias)
    LEVIN_CHECK(std::isfinite(bias), "[generate] logit_bias of token ", id, " must be finite");
  for (const auto& word : o.stop) LEVIN_CHECK(!word.empty(), "[generate] a stop string is empty");
  LEVIN_CHECK(o.num_beams > 0 && o.num_return_sequences > 0,
              "[generate] num_beams and num_return_sequences must be positive");
  LEVIN_CHECK(o.cache_dtype == "auto" || o.cache_dtype == "int8" || o.cache_dtype == "fp8", "[generate] cache_dtype \"",
              o.cache_dtype, "\" is not known (known: auto, int8, fp8)");
  if (o.num_beams > 1) {
    LEVIN_CHECK(!o.paged, "[generate] beams do not go through the paged cache");
    LEVIN_CHECK(o.temperature == 0, "[generate] beams need temperature 0");
    LEVIN_CHECK(o.num_return_sequences <= o.num_beams, "[generate] ", o.num_return_sequences,
                " results are more than the ", o.num_beams, " beams");
    LEVIN_CHECK(std::isfinite(o.length_penalty), "[generate] length_penalty must be finite");
    LEVIN_CHECK(o.stop.empty() && o.top_logprobs == 0 && !o.stop_when,
                "[generate] beams go without stop strings, stop_when and top_logprobs");
  }
  LEVIN_CHECK(o.prompt_lookup >= 0, "[generate] prompt_lookup ", o.prompt_lookup, " must not be negative");
  LEVIN_CHECK(o.prompt_lookup_ngram > 0 && o.draft_tokens > 0,
              "[generate] prompt_lookup_ngram and draft_tokens must be positive");
  LEVIN_CHECK(o.prompt_lookup == 0 || !o.draft, "[generate] either prompt_lookup or a draft model guesses");
  LEVIN_CHECK(o.num_beams == 1 || (o.prompt_lookup == 0 && !o.draft),
              "[generate] beams go without prompt_lookup and a draft model");
  LEVIN_CHECK(o.top_logprobs >= 0, "[generate] top_logprobs ", o.top_logprobs, " must not be negative");
  LEVIN_CHECK(o.batch > 0 && o.prefill_chunk > 0, "[generate] batch and prefill_chunk must be positive");
}

GenerateOptions folder_generate_options(const std::filesystem::path& folder, GenerateOptions options) {
  if (!options.eos_token_ids.empty()) return options;
  options.eos_token_ids = eos_ids_in(folder / "generation_config.json");
  if (options.eos_token_ids.empty()) options.eos_token_ids = eos_ids_in(folder / "config.json");
  return options;
}

std::vector<std::string> unused_generation_settings(const std::filesystem::path& folder,
                                                    const GenerateOptions& options) {
  using Json = nlohmann::json;
  // Names, the values that change nothing, and those of the options.
  struct Setting {
    const char* name;
    Json neutral, own;
  };
  std::vector<Setting> settings{{"repetition_penalty", 1.0, options.repetition_penalty},
                                {"no_repeat_ngram_size", 0, options.no_repeat_ngram_size},
                                {"min_new_tokens", 0, options.min_new_tokens},
                                {"suppress_tokens", Json::array(), options.suppress_tokens},
                                {"begin_suppress_tokens", Json::array(), options.begin_suppress_tokens},
                                {"bad_words_ids", Json::array(), options.bad_words},
                                {"sequence_bias", Json::array(), {}},
                                {"forced_bos_token_id", {}, options.forced_bos_token_id},
                                {"forced_eos_token_id", {}, {}},
                                {"num_beams", 1, options.num_beams},
                                {"min_length", 0, options.min_length},
                                {"stop_strings", Json::array(), options.stop},
                                {"guidance_scale", 1.0, {}},
                                {"exponential_decay_length_penalty", {}, {}},
                                {"encoder_repetition_penalty", 1.0, options.encoder_repetition_penalty},
                                {"encoder_no_repeat_ngram_size", 0, options.encoder_no_repeat_ngram_size}};
  if (options.num_beams > 1) {
    settings.push_back({"length_penalty", 1.0, options.length_penalty});
    settings.push_back({"early_stopping", false, options.early_stopping});
  }
  const auto json = object_in(folder / "generation_config.json");
  std::vector<std::string> unused;
  for (const auto& [name, neutral, own] : settings) {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null() || *found == neutral || *found == own) continue;
    const auto value = found->dump(-1, ' ', true, Json::error_handler_t::replace);
    unused.push_back(std::string(name) + " " + (value.size() > 40 ? value.substr(0, 37) + "..." : value));
  }
  return unused;
}

}  // namespace levin
