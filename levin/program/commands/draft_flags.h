#pragma once

#include <cstdint>
#include <string>

#include "levin/models/folder.h"
#include "levin/program/flags.h"

namespace levin::cli {

/// Flags of who guesses tokens: --prompt-lookup, --draft-model, --draft-tokens.
struct DraftFlags {
  std::string folder;
  int64_t prompt_lookup = 0, draft_tokens = 5;

  void describe(Flags& flags);
  bool used() const { return !folder.empty() || prompt_lookup > 0; }
  /// An Error where the draft model does not go with the model, before any of them is read.
  void check(const std::string& command, const models::OpenModelOptions& asked,
             const models::DecoderOptions& body) const;
  /// Null without --draft-model. It lies beside the model; it is quantized only where its folder is.
  models::Decoder open(const models::OpenModelOptions& asked) const;
};

}  // namespace levin::cli
