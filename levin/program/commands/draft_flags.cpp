#include "levin/program/commands/draft_flags.h"

#include "levin/core/error.h"

namespace levin::cli {
namespace {

models::OpenModelOptions drafting(models::OpenModelOptions asked) {
  asked.quantize.clear();
  asked.ranks = nullptr;
  return asked;
}

}  // namespace

void DraftFlags::describe(Flags& flags) {
  flags.flag("prompt-lookup", prompt_lookup, "guess N tokens at once from what followed the same tokens before", "N");
  flags.flag("draft-model", folder, "a smaller model of the same vocabulary that guesses tokens", "FOLDER");
  flags.flag("draft-tokens", draft_tokens, "tokens that the draft model guesses at once", "N");
}

void DraftFlags::check(const std::string& command, const models::OpenModelOptions& asked,
                       const models::DecoderOptions& body) const {
  LEVIN_CHECK(prompt_lookup >= 0, "[", command, "] --prompt-lookup ", prompt_lookup, " must not be negative");
  LEVIN_CHECK(draft_tokens > 0, "[", command, "] --draft-tokens ", draft_tokens, " must be positive");
  if (folder.empty()) return;
  const auto draft = models::open_model_meta(folder, drafting(asked));
  LEVIN_CHECK(draft.decoder, "[", command, "] --draft-model \"", folder, "\" is a ", draft.model_type,
              ", an encoder, which does not generate");
  LEVIN_CHECK(draft.body().vocab_size == body.vocab_size, "[", command, "] --draft-model \"", folder,
              "\" has another vocabulary: ", draft.body().vocab_size, " tokens, the model has ", body.vocab_size);
  LEVIN_CHECK(prompt_lookup == 0, "[", command, "] either --prompt-lookup or --draft-model");
}

models::Decoder DraftFlags::open(const models::OpenModelOptions& asked) const {
  return folder.empty() ? models::Decoder(nullptr) : models::open_model(folder, drafting(asked)).decoder;
}

}  // namespace levin::cli
