#include <algorithm>
#include <exception>

#include "levin/core/error.h"
#include "levin/generate/decode_batch.h"
#include "levin/generate/engine.h"
#include "levin/generate/generate_detail.h"

namespace levin::detail {

std::vector<Generated> generate_paged(const models::Decoder& model, const text::Tokenizer* tokenizer,
                                      const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                      const OnToken& on_token) {
  const auto copies = static_cast<size_t>(options.num_return_sequences);
  std::vector<Generated> results(prompts.size() * copies);
  if (results.empty()) return results;
  EngineOptions engine_options{.max_rows = std::min(options.batch, static_cast<int64_t>(results.size())),
                               .prefill_chunk = options.prefill_chunk,
                               .cuda_graphs = options.cuda_graphs,
                               .cache_dtype = options.cache_dtype,
                               .max_queue = static_cast<int64_t>(results.size()),
                               .prompt_lookup = options.prompt_lookup,
                               .prompt_lookup_ngram = options.prompt_lookup_ngram,
                               .draft = options.draft,
                               .draft_tokens = options.draft_tokens};
  int64_t longest = 0;
  for (const auto& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.size());
    longest = std::max(longest, length + most_new_tokens(model->options, options, length));
  }
  if (options.draft || options.prompt_lookup > 0)
    longest += options.draft ? options.draft_tokens : options.prompt_lookup;  // guesses that turn out wrong
  const auto blocks = (longest + engine_options.block_tokens - 1) / engine_options.block_tokens;
  engine_options.cache_tokens = engine_options.max_rows * blocks * engine_options.block_tokens;
  std::exception_ptr wrong;
  Engine engine(model, tokenizer, engine_options);
  for (size_t i = 0; i < prompts.size(); ++i)
    engine.submit({.prompt = prompts[i],
                   .options = options,
                   .on_token =
                       [&](const GeneratedToken& token) {
                         try {
                           return !on_token || on_token(token);
                         } catch (...) {
                           wrong = std::current_exception();
                           return false;
                         }
                       },
                   .on_done =
                       [&, i](const Generated& result) {
                         results[result.row] = result;
                         results[result.row].prompt = i;
                       },
                   .on_error =
                       [&](const std::string& line) {
                         if (!wrong) wrong = std::make_exception_ptr(Error(line));
                       },
                   .row = i * copies});
  while (!wrong && engine.step()) {
  }
  if (wrong) std::rethrow_exception(wrong);
  return results;
}

}  // namespace levin::detail
