#include "levin/generate/generate.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/generate/decode_batch.h"
#include "levin/generate/generation_config.h"
#include "levin/models/folder.h"
#include "levin/program/command.h"
#include "levin/program/commands/draft_flags.h"
#include "levin/program/commands/generate/generate_input.h"
#include "levin/program/commands/generate/generate_output.h"
#include "levin/program/commands/generate/generate_rows.h"
#include "levin/program/commands/model_flags.h"
#include "levin/program/commands/placement_flags.h"
#include "levin/program/commands/read_model.h"
#include "levin/program/commands/tensor_ranks.h"

namespace levin::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Generate {
  std::string folder, input, output;
  ModelFlags model_flags;
  PlacementFlags placement_flags;
  TensorRanksFlag tensor{"levin generate"};
  DraftFlags draft;
  std::vector<std::string> stop, eos, bad_words, suppressed, begin_suppressed, forced_eos, logit_bias, sequence_bias;
  std::string decay;
  bool json = false, overwrite = false, resume = false, stream = false, chat = false, whole_file = false,
       ignore_eos = false, no_graphs = false, generation_config = false;
  GenerateOptions options;

  void describe(Flags& flags) {
    auto& o = options;
    flags.argument("MODEL", folder, "a model folder of transformers: config.json, weights, tokenizer");
    flags.argument("INPUT", input,
                   "a prompt a line, or JSON lines with \"prompt\", \"messages\" or \"ids\"; - for stdin");
    flags.argument("OUTPUT", output, "the file that is written; - for stdout");
    flags.argument("NUM_TOKENS", o.max_new_tokens, "new tokens of a prompt, at most");
    flags.argument("TEMPERATURE", o.temperature, "0: the likeliest token; else what logits are divided by");
    flags.flag("json", json, "write JSON lines: prompt, text, ids, logprobs, finish_reason");
    flags.flag("chat", chat, "a text is the message of a user in the chat template of the model");
    flags.flag("whole-file", whole_file, "all of INPUT is one prompt");
    flags.flag("generation-config", generation_config,
               "obey generation_config.json of the model where no flag says otherwise");
    flags.flag("top-h", o.top_h, "only the likeliest tokens that together have this fraction of the entropy", "F");
    flags.flag("top-k", o.top_k, "only the K likeliest tokens; 0: all", "K");
    flags.flag("top-p", o.top_p, "only the likeliest tokens that together have probability P", "P");
    flags.flag("min-p", o.min_p, "only tokens with this share of the largest probability", "P");
    flags.flag("typical-p", o.typical_p, "only tokens near the expected information, that together have P", "P");
    flags.flag("epsilon-cutoff", o.epsilon_cutoff, "only tokens with at least this probability", "P");
    flags.flag("eta-cutoff", o.eta_cutoff, "the same, or less where the distribution is flat", "P");
    flags.flag("repetition-penalty", o.repetition_penalty, "weakens tokens of the prompt and the text so far", "X");
    flags.flag("presence-penalty", o.presence_penalty, "taken from logits of tokens of the text so far", "X");
    flags.flag("frequency-penalty", o.frequency_penalty, "the same for each time that a token came", "X");
    flags.flag("no-repeat-ngram-size", o.no_repeat_ngram_size, "no N tokens come twice; 0: they may", "N");
    flags.flag("encoder-repetition-penalty", o.encoder_repetition_penalty, "strengthens tokens of the prompt", "X");
    flags.flag("encoder-no-repeat-ngram-size", o.encoder_no_repeat_ngram_size, "no N tokens of the prompt come again",
               "N");
    flags.flag("min-tokens", o.min_new_tokens, "new tokens before the text may end", "N");
    flags.flag("min-length", o.min_length, "tokens of prompt and text before it may end", "N");
    flags.flag("max-time", o.max_time, "seconds after which texts end; 0: no limit", "S");
    flags.repeated("stop", stop, "a text ends before this string; repeatable", "TEXT");
    flags.repeated("eos", eos, "a token that ends a text; repeatable [what the folder says]", "ID");
    flags.repeated("bad-word", bad_words, "a word that no text has; repeatable", "TEXT");
    flags.repeated("suppress-token", suppressed, "a token that no text has; repeatable", "ID");
    flags.repeated("begin-suppress-token", begin_suppressed, "a token that no text begins with; repeatable", "ID");
    flags.flag("forced-bos-token", o.forced_bos_token_id, "the first token behind a prompt of one token", "ID");
    flags.repeated("forced-eos-token", forced_eos, "the last of NUM_TOKENS tokens; repeatable", "ID");
    flags.flag("exponential-decay", decay, "behind N tokens, ends get likelier by a factor of X a token", "N,X");
    flags.repeated("logit-bias", logit_bias, "added to the logit of a token; repeatable", "ID=X");
    flags.repeated("sequence-bias", sequence_bias, "added to the last of these tokens behind the others; repeatable",
                   "ID,ID...=X");
    flags.flag("remove-invalid-values", o.remove_invalid_values, "logits that are no numbers are no error");
    flags.flag("renormalize-logits", o.renormalize_logits, "of beams: rules keep scores log probabilities");
    flags.flag("ignore-eos", ignore_eos, "no token ends a text");
    flags.flag("num-beams", o.num_beams, "beam search (TEMPERATURE 0)", "N");
    flags.flag("length-penalty", o.length_penalty, "of beams: a larger one favours longer texts", "X");
    flags.flag("early-stopping", o.early_stopping, "end when num-beams texts are whole");
    flags.flag("num-return-sequences", o.num_return_sequences, "texts of each prompt", "N");
    flags.flag("seed", o.seed, "of the random numbers; the same seed gives the same texts", "N");
    flags.flag("batch", o.batch, "texts that are written together", "N");
    flags.flag("prefill-chunk", o.prefill_chunk, "tokens of prompts that go through the model together", "N");
    flags.flag("top-logprobs", o.top_logprobs, "with --json: the N likeliest tokens of each place", "N");
    draft.describe(flags);
    flags.flag("prompt-lookup-ngram", o.prompt_lookup_ngram, "tokens that --prompt-lookup looks for, at most", "N");
    flags.flag("paged", o.paged, "through the engine of `levin serve`: a cache of blocks, which prompts share");
    flags.flag("cache-dtype", o.cache_dtype, "of keys and values", "NAME", {"auto", "int8", "fp8"});
    model_flags.describe(flags);
    placement_flags.describe(flags);
    tensor.describe(flags);
    flags.flag("no-graphs", no_graphs, "on CUDA: no graph of a step is captured");
    flags.flag("overwrite", overwrite, "replace OUTPUT");
    flags.flag("resume", resume, "continue OUTPUT.part of a run that was interrupted");
    flags.flag("stream", stream, "print texts as they are written");
    flags.set_epilog(
        "OUTPUT has a line for each text, in the order of the prompts: what follows the prompt, with \\\\ for a \\, "
        "\\n\n"
        "for a newline and \\r for a carriage return, or JSON. It grows as OUTPUT.part, by whole lines, and gets its "
        "name\nwhen it is whole.\n");
  }

  int run(const Args& args) {
    LEVIN_CHECK(options.max_new_tokens > 0, "[levin generate] NUM_TOKENS ", options.max_new_tokens,
                " must be positive");
    LEVIN_CHECK(options.temperature >= 0, "[levin generate] TEMPERATURE ", options.temperature,
                " must be 0 (the likeliest token) or positive");
    const auto settings = run_settings();
    options.stop = stop;
    options.cuda_graphs = !no_graphs;
    options.prompt_lookup = draft.prompt_lookup;
    options.draft_tokens = draft.draft_tokens;
    options.eos_token_ids = ids_of("--eos", eos);
    options.suppress_tokens = ids_of("--suppress-token", suppressed);
    options.begin_suppress_tokens = ids_of("--begin-suppress-token", begin_suppressed);
    options.forced_eos_token_id = ids_of("--forced-eos-token", forced_eos);
    read_biases();
    if (generation_config) obey_folder();
    check_options(options);
    tensor.look();
    GenerateOutput file(output, overwrite, resume);
    LEVIN_CHECK(!stream || output != "-" || !json,
                "[levin generate] --stream prints texts to the standard output, where --json "
                "has its lines; name a file as OUTPUT");
    if (tensor.is_first()) file.check();
    // Everything that can be wrong is found before the weights are read.
    model_flags.device = placement_flags.device(model_flags.device);
    auto asked = model_flags.options("levin generate");
    const auto sizes = models::open_model_meta(folder, asked);
    LEVIN_CHECK(sizes.decoder, "[levin generate] \"", folder, "\" is a ", sizes.model_type,
                ", an encoder, which does not generate");
    draft.check("levin generate", asked, sizes.body());
    LEVIN_CHECK(options.num_beams == 1 || draft.folder.empty(), "[levin generate] beams go without --draft-model");
    check_known("--eos", options.eos_token_ids, sizes.body());
    check_known("--suppress-token", options.suppress_tokens, sizes.body());
    check_known("--begin-suppress-token", options.begin_suppress_tokens, sizes.body());
    check_known("--forced-eos-token", options.forced_eos_token_id, sizes.body());
    check_known("--forced-bos-token", {options.forced_bos_token_id}, sizes.body());
    for (const auto& [id, bias] : options.logit_bias) check_known("--logit-bias", {id}, sizes.body());
    for (const auto& [ids, bias] : options.sequence_bias) check_known("--sequence-bias", ids, sizes.body());
    tensor.check(sizes);
    LEVIN_CHECK(!tensor.is_used() || (!placement_flags.used() && !options.paged && !draft.used()),
                "[levin generate] --tensor-parallel does not go with ",
                options.paged  ? "--paged"
                : draft.used() ? "--prompt-lookup or --draft-model"
                               : "--device-map, --max-memory or --offload-folder");
    GenerateInput source(folder, chat, sizes.body().vocab_size);
    // The rank that is first reads for all, and only once where it cannot be read again.
    const bool reads = tensor.is_first() && !(tensor.starts_ranks() && input == "-");
    const auto prompts = reads ? source.read(input, whole_file) : std::vector<GeneratePrompt>();
    check_lengths(prompts, sizes.body());
    if (!ignore_eos) options = folder_generate_options(folder, options);
    if (const auto unused = unused_generation_settings(folder, options);
        !generation_config && !unused.empty() && tensor.is_first())
      log_info(fmt::format(
          "generation_config.json of the model is not obeyed: {}; flags say what counts, or --generation-config",
          join(unused)));
    const auto* tokenizer = source.tokenizer();
    LEVIN_CHECK(tokenizer || json, "[levin generate] \"", folder, "\" has no tokenizer: only --json can be written");
    LEVIN_CHECK(tokenizer || options.stop.empty(), "[levin generate] --stop needs a tokenizer");
    LEVIN_CHECK(tokenizer || bad_words.empty(), "[levin generate] --bad-word needs a tokenizer");
    if (!bad_words.empty()) options.bad_words = word_ids(*tokenizer, bad_words);
    if (tensor.starts_ranks()) return tensor.start(args);

    std::optional<WeightPlacement> placement;
    if (placement_flags.used())
      placement = placement_flags.place("levin generate", sizes, asked.device, decode_sizes(prompts, sizes.body()));
    const auto start = Clock::now();
    asked.ranks = tensor.join(asked.device);
    among_ranks(asked.ranks, [&] {
      auto model = read_model("levin generate", folder, asked, placement_flags, placement);
      options.draft = draft.open(asked);
      const auto loaded = seconds_since(start);
      if (tensor.is_first()) {
        GenerateRows rows({.prompts = prompts,
                           .options = options,
                           .output = file,
                           .json = json,
                           .stream = stream,
                           .loaded_seconds = loaded});
        rows.write(model, tokenizer, with_prompts(settings, prompts));
      } else {
        follow_rows(model, options);
      }
    });
    return 0;
  }

 private:
  /// Values of arguments and flags on which the lines depend, under their names.
  RunSettings run_settings() {
    Flags flags("levin generate", "");
    describe(flags);
    RunSettings settings;
    for (const auto* fields : {&flags.arguments(), &flags.flags()})
      for (const auto& field : *fields)
        if (field.write && field.name != "OUTPUT" && field.name != "INPUT" && field.name != "overwrite" &&
            field.name != "resume" && field.name != "stream")
          settings.emplace_back(field.name, field.write().text);
    return settings;
  }

  /// And what INPUT and the folder of the model have.
  RunSettings with_prompts(RunSettings settings, const std::vector<GeneratePrompt>& prompts) const {
    uint32_t sum = 0;
    for (const auto& prompt : prompts) {
      sum = crc32c(prompt.text, sum);
      sum = crc32c({reinterpret_cast<const char*>(prompt.ids.data()), prompt.ids.size() * sizeof(int64_t)}, sum);
    }
    settings.emplace_back("INPUT", fmt::format("{} prompts, {:08x}", prompts.size(), sum));
    const auto config = read_file(std::filesystem::path(folder) / "config.json");
    settings.emplace_back("config.json", fmt::format("{:08x}", crc32c(config, 0)));
    return settings;
  }

  /// "5=0.5", and "5,6=0.5".
  static std::pair<std::vector<int64_t>, double> bias_of(const char* flag, const std::string& word) {
    const auto equals = word.find('=');
    LEVIN_CHECK(equals != word.npos, "[levin generate] ", flag, " \"", shown(word), "\" is not ID=X");
    std::vector<int64_t> ids;
    for (size_t at = 0; at <= equals;) {
      const auto end = std::min(word.find(',', at), equals);
      ids.push_back(id_of(flag, word.substr(at, end - at)));
      at = end + 1;
    }
    return {std::move(ids), number_of(flag, word.substr(equals + 1))};
  }

  static double number_of(const char* flag, const std::string& word) {
    double number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    LEVIN_CHECK(error == std::errc() && end == word.data() + word.size(), "[levin generate] ", flag, " \"", shown(word),
                "\" is not a number");
    return number;
  }

  void read_biases() {
    for (const auto& word : logit_bias) {
      const auto [ids, bias] = bias_of("--logit-bias", word);
      LEVIN_CHECK(ids.size() == 1, "[levin generate] --logit-bias \"", shown(word),
                  "\" has several tokens; --sequence-bias takes them");
      options.logit_bias.emplace_back(ids[0], bias);
    }
    for (const auto& word : sequence_bias) options.sequence_bias.push_back(bias_of("--sequence-bias", word));
    if (decay.empty()) return;
    const auto comma = decay.find(',');
    LEVIN_CHECK(comma != decay.npos, "[levin generate] --exponential-decay \"", shown(decay), "\" is not N,X");
    options.exponential_decay_length_penalty.emplace(id_of("--exponential-decay", decay.substr(0, comma)),
                                                     number_of("--exponential-decay", decay.substr(comma + 1)));
  }

  /// NUM_TOKENS and TEMPERATURE are always given, so that they count.
  void obey_folder() {
    const auto tokens = options.max_new_tokens;
    const auto temperature = options.temperature;
    options = with_generation_config(folder, std::move(options));
    options.max_new_tokens = tokens, options.temperature = temperature;
    options.min_new_tokens = std::min(options.min_new_tokens, tokens);
  }

  /// What the texts need of the device.
  DecodeSizes decode_sizes(const std::vector<GeneratePrompt>& prompts, const models::DecoderOptions& body) const {
    const auto texts = static_cast<int64_t>(prompts.size()) * options.num_return_sequences;
    DecodeSizes sizes{.rows = options.num_beams > 1 ? options.num_beams : std::clamp<int64_t>(texts, 1, options.batch),
                      .prefill_chunk = options.prefill_chunk};
    for (const auto& prompt : prompts) {
      const auto length = static_cast<int64_t>(prompt.ids.size());
      sizes.capacity = std::max(sizes.capacity, length + levin::detail::most_new_tokens(body, options, length));
    }
    return sizes;
  }

  static void check_known(const char* flag, const std::vector<int64_t>& ids, const models::DecoderOptions& body) {
    for (const auto id : ids)
      LEVIN_CHECK(id < body.vocab_size, "[levin generate] ", flag, " ", id, ": the model knows 0 to ",
                  body.vocab_size - 1);
  }

  static std::vector<int64_t> ids_of(const char* flag, const std::vector<std::string>& words) {
    std::vector<int64_t> ids;
    for (const auto& word : words) ids.push_back(id_of(flag, word));
    return ids;
  }

  static int64_t id_of(const char* flag, const std::string& word) {
    size_t end = 0;
    int64_t id = -1;
    try {
      id = std::stoll(word, &end);
    } catch (const std::exception&) {
    }
    LEVIN_CHECK(id >= 0 && end == word.size(), "[levin generate] ", flag, " \"", shown(word), "\" is not a token id");
    return id;
  }

  void check_lengths(const std::vector<GeneratePrompt>& prompts, const models::DecoderOptions& body) const {
    if (!body.bounded()) return;
    for (size_t i = 0; i < prompts.size(); ++i)
      LEVIN_CHECK(static_cast<int64_t>(prompts[i].ids.size()) <= body.max_positions, "[levin generate] ", input, ":",
                  i + 1, " has ", prompts[i].ids.size(), " tokens, the context of the model has ", body.max_positions);
  }
};

}  // namespace

Command generate_command() {
  return make_command<Generate>("generate", "continue texts with a language model");
}

}  // namespace levin::cli
