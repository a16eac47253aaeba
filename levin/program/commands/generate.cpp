#include "levin/generate/generate.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/log.h"
#include "levin/core/progress_bar.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/generate/decode_batch.h"
#include "levin/models/folder.h"
#include "levin/program/command.h"
#include "levin/program/commands/draft_flags.h"
#include "levin/program/commands/generate_input.h"
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
  std::vector<std::string> stop, eos, bad_words, suppressed;
  bool json = false, overwrite = false, chat = false, ignore_eos = false, no_graphs = false;
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
    flags.flag("top-k", o.top_k, "only the K likeliest tokens; 0: all", "K");
    flags.flag("top-p", o.top_p, "only the likeliest tokens that together have probability P", "P");
    flags.flag("min-p", o.min_p, "only tokens with this share of the largest probability", "P");
    flags.flag("typical-p", o.typical_p, "only tokens near the expected information, that together have P", "P");
    flags.flag("repetition-penalty", o.repetition_penalty, "weakens tokens of the prompt and the text so far", "X");
    flags.flag("presence-penalty", o.presence_penalty, "taken from logits of tokens of the text so far", "X");
    flags.flag("frequency-penalty", o.frequency_penalty, "the same for each time that a token came", "X");
    flags.flag("no-repeat-ngram-size", o.no_repeat_ngram_size, "no N tokens come twice; 0: they may", "N");
    flags.flag("min-tokens", o.min_new_tokens, "new tokens before the text may end", "N");
    flags.repeated("stop", stop, "a text ends before this string; repeatable", "TEXT");
    flags.repeated("eos", eos, "a token that ends a text; repeatable [what the folder says]", "ID");
    flags.repeated("bad-word", bad_words, "a word that no text has; repeatable", "TEXT");
    flags.repeated("suppress-token", suppressed, "a token that no text has; repeatable", "ID");
    flags.flag("ignore-eos", ignore_eos, "no token ends a text");
    flags.flag("num-beams", o.num_beams, "beam search (TEMPERATURE 0)", "N");
    flags.flag("length-penalty", o.length_penalty, "of beams: a larger one favours longer texts", "X");
    flags.flag("early-stopping", o.early_stopping, "end when num-beams texts are whole");
    flags.flag("num-return-sequences", o.num_return_sequences, "texts of each prompt", "N");
    flags.flag("seed", o.seed, "of the random numbers; the same seed gives the same texts", "N");
    flags.flag("batch", o.batch, "texts that are written together", "N");
    draft.describe(flags);
    flags.flag("paged", o.paged, "through the engine of `levin serve`: a cache of blocks, which prompts share");
    flags.flag("cache-dtype", o.cache_dtype, "of keys and values", "NAME", {"auto", "int8", "fp8"});
    model_flags.describe(flags);
    placement_flags.describe(flags);
    tensor.describe(flags);
    flags.flag("no-graphs", no_graphs, "on CUDA: no graph of a step is captured");
    flags.flag("overwrite", overwrite, "replace OUTPUT");
    flags.set_epilog(
        "OUTPUT has a line for each text, in the order of the prompts: what follows the prompt, with \\\\ for a \\, "
        "\\n\n"
        "for a newline and \\r for a carriage return, or JSON. It appears when it is whole.\n");
  }

  int run(const Args& args) {
    LEVIN_CHECK(options.max_new_tokens > 0, "[levin generate] NUM_TOKENS ", options.max_new_tokens,
                " must be positive");
    LEVIN_CHECK(options.temperature >= 0, "[levin generate] TEMPERATURE ", options.temperature,
                " must be 0 (the likeliest token) or positive");
    options.stop = stop;
    options.cuda_graphs = !no_graphs;
    options.prompt_lookup = draft.prompt_lookup;
    options.draft_tokens = draft.draft_tokens;
    for (const auto& word : eos) options.eos_token_ids.push_back(id_of("--eos", word));
    for (const auto& word : suppressed) options.suppress_tokens.push_back(id_of("--suppress-token", word));
    check_options(options);
    tensor.look();
    if (tensor.is_first()) check_output();
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
    tensor.check(sizes);
    LEVIN_CHECK(!tensor.is_used() || (!placement_flags.used() && !options.paged && !draft.used()),
                "[levin generate] --tensor-parallel does not go with ",
                options.paged  ? "--paged"
                : draft.used() ? "--prompt-lookup or --draft-model"
                               : "--device-map, --max-memory or --offload-folder");
    GenerateInput source(folder, chat, sizes.body().vocab_size);
    // The rank that is first reads for all, and only once where it cannot be read again.
    const bool reads = tensor.is_first() && !(tensor.starts_ranks() && input == "-");
    const auto prompts = reads ? source.read(input) : std::vector<GeneratePrompt>();
    check_lengths(prompts, sizes.body());
    if (!ignore_eos) options = folder_generate_options(folder, options);
    if (const auto unused = unused_generation_settings(folder, options); !unused.empty() && tensor.is_first())
      log_info(
          fmt::format("generation_config.json of the model is not obeyed: {}; flags say what counts", join(unused)));
    const auto* tokenizer = source.tokenizer();
    LEVIN_CHECK(tokenizer || json, "[levin generate] \"", folder, "\" has no tokenizer: only --json can be written");
    LEVIN_CHECK(tokenizer || stop.empty(), "[levin generate] --stop needs a tokenizer");
    LEVIN_CHECK(tokenizer || bad_words.empty(), "[levin generate] --bad-word needs a tokenizer");
    if (tokenizer) options.bad_words = word_ids(*tokenizer, bad_words);
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
      const auto rows = write_texts(model, tokenizer, prompts, loaded);
      if (tensor.is_first()) write_output(prompts, rows);
    });
    return 0;
  }

 private:
  /// A pipe or a device: it is written to, not replaced.
  bool is_special() const {
    const auto kind = std::filesystem::status(output).type();
    return kind != std::filesystem::file_type::not_found && kind != std::filesystem::file_type::regular &&
           kind != std::filesystem::file_type::directory;
  }

  void check_output() const {
    if (output == "-" || is_special()) return;
    check_destination("levin generate", output, OutputKind::kFile, overwrite, "--overwrite");
    const auto folder_of = std::filesystem::absolute(output).parent_path();
    LEVIN_CHECK(std::filesystem::is_directory(folder_of), "[levin generate] OUTPUT \"", output,
                "\": there is no folder \"", folder_of.string(), "\"");
    check_writable(folder_of);
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

  std::vector<Generated> generate_along(models::LanguageModel& model,
                                        const std::vector<std::vector<int64_t>>& ids) const {
    auto silent = options;
    silent.stop.clear();
    return generate(model.decoder, ids, silent);
  }

  std::vector<Generated> write_texts(models::LanguageModel& model, const text::Tokenizer* tokenizer,
                                     const std::vector<GeneratePrompt>& prompts, double loaded) const {
    std::vector<std::vector<int64_t>> ids;
    int64_t before = 0, count = 0;
    for (const auto& prompt : prompts) {
      ids.push_back(prompt.ids);
      before += static_cast<int64_t>(prompt.ids.size());
    }
    ids = prompts_of_first_rank(model.decoder->ranks, std::move(ids));
    // The others follow rank 0, which knows the texts.
    if (!tensor.is_first()) return generate_along(model, ids);
    const auto start = Clock::now();
    const auto total = static_cast<int64_t>(prompts.size()) * options.num_return_sequences;
    ProgressBar bar("Generating", total, {.unit = "text"});
    const auto on_token = [&](const GeneratedToken& token) {
      ++count;
      bar.set("tok/s", static_cast<double>(count) / seconds_since(start));
      if (!token.finish_reason.empty()) bar.advance();
      return true;
    };
    auto rows = tokenizer ? generate(model.decoder, *tokenizer, ids, options, on_token)
                          : generate(model.decoder, ids, options, on_token);
    bar.finish();
    const auto took = seconds_since(start);
    const auto where = model.decoder->tokens->weight.device();
    log_info(
        fmt::format("{} prompts of {} tokens, {} new tokens in {:.2f} s: {:.1f} tokens/s; loaded in {:.2f} s; "
                    "memory {}",
                    prompts.size(), before, count, took, static_cast<double>(count) / took, loaded,
                    format_bytes(static_cast<double>(accelerator_of(where).memory(where).peak_allocated))));
    int64_t guessed = 0, taken = 0;
    for (const auto& row : rows) guessed += row.guessed_tokens, taken += row.taken_tokens;
    if (guessed > 0)
      log_info(fmt::format("{} of {} guessed tokens were taken ({:.0f} %)", taken, guessed,
                           100 * static_cast<double>(taken) / static_cast<double>(guessed)));
    return rows;
  }

  void write_output(const std::vector<GeneratePrompt>& prompts, const std::vector<Generated>& rows) const {
    std::string all;
    for (const auto& row : rows) {
      if (!json) {
        all += on_one_line(row.text) + "\n";
        continue;
      }
      const nlohmann::ordered_json line{{"prompt", prompts[row.prompt].text},
                                        {"text", row.text},
                                        {"ids", row.ids},
                                        {"logprobs", row.logprobs},
                                        {"finish_reason", row.finish_reason}};
      // A prompt is what INPUT has, whatever its bytes are.
      all += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    }
    if (output == "-") {
      LEVIN_CHECK(std::fwrite(all.data(), 1, all.size(), stdout) == all.size() && std::fflush(stdout) == 0,
                  "[levin generate] cannot write to the standard output");
    } else if (is_special()) {
      FileWriter writer(output);
      writer.write(all);
      writer.close();
    } else {
      write_file(output, all);
    }
  }
};

}  // namespace

Command generate_command() {
  return make_command<Generate>("generate", "continue texts with a language model");
}

}  // namespace levin::cli
