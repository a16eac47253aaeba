#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levin/models/folder.h"

namespace levin::models {

/// How the hidden states of a row become one vector.
struct SentencePooling {
  /// "mean", "first", "last", "max", or "mean_sqrt": the sum by the root of the number of tokens.
  std::string mode = "mean";
  /// Divided by its L2 norm.
  bool normalize = true;
  /// Most tokens of a row; 0: as many as the model has positions.
  int64_t max_tokens = 0;
  /// Texts are lowercased before they become tokens (do_lower_case).
  bool lower_case = false;
  /// Stands before every text: that of `prompts` which default_prompt_name names.
  std::string prompt = {};
};

/// What a folder of sentence-transformers says in modules.json, sentence_bert_config.json and
/// config_sentence_transformers.json; nothing where it has no modules.json. A module besides a pooling and a norm is an
/// Error.
std::optional<SentencePooling> sentence_pooling(const std::filesystem::path& folder);

/// A text as sentence-transformers gives it to the tokenizer: behind the prompt, without white space at its ends, and
/// lowercased where the folder says so.
std::string sentence_text(const std::string& text, const SentencePooling& pooling);

/// The files of sentence-transformers in a folder, relative to it: modules.json and what it names.
std::vector<std::filesystem::path> sentence_files(const std::filesystem::path& folder);

/// Rows of tokens of unequal length to vectors, float32 [rows, D] on the CPU. `batch` rows go through the model
/// together. Of a decoder the hidden states are not kept: it is refused.
///
///     auto model = levin::models::open_model("all-MiniLM-L6-v2", {.head = "none"});
///     auto vectors = levin::models::embed_rows(model, rows, *levin::models::sentence_pooling(model.folder));
Tensor embed_rows(const LanguageModel& model, std::span<const std::vector<int64_t>> rows,
                  const SentencePooling& pooling = {}, int64_t batch = 8);

}  // namespace levin::models
