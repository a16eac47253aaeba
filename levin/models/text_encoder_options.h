#pragma once

#include <cstdint>
#include <string>

#include "levin/models/decoder_options.h"

namespace levin::models {

/// A transformer that sees the whole text at once. What its body must be is set by
/// `encoder_body`.
struct TextEncoderOptions {
  /// Sizes, norms and blocks.
  DecoderOptions body = {};
  /// Rows of the table of token types; 0: none.
  int64_t token_types = 0;
  /// Positions count the ids that are not pad_token, from pad_token + 1 on (RoBERTa); else they are places in the row.
  bool positions_from_ids = false;
  int64_t pad_token = 0;
  /// Dropout of the embedded tokens is before their norm (BigBird).
  bool dropout_before_norm = false;
  /// Tokens that are classified have the dropout of the body, not classifier_dropout (DistilBERT).
  bool drops_tokens_as_body = false;
  /// "none", "masked_lm", "sequence_classification" or "token_classification".
  std::string head = "none";
  /// A layer over the first token with tanh behind it.
  bool pooler = false;
  /// What is between the first token and the classes: "pooler", or a layer with this activation.
  std::string classifier = "pooler";
  int64_t num_labels = 2;
  double classifier_dropout = 0;
  /// Of the layer in the head of masked_lm.
  std::string head_activation = "gelu";
  /// Sequences longer than (5 + 2 * random_blocks) * block_size attend by blocks of this many tokens (BigBird); 0:
  /// never.
  int64_t block_size = 0;
  int64_t random_blocks = 3;
};

/// The options of a body that attends both ways, with norms behind the blocks.
DecoderOptions encoder_body(DecoderOptions options);

}  // namespace levin::models
