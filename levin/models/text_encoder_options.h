#pragma once

#include <cstdint>
#include <string>

#include "levin/models/decoder_options.h"

namespace levin::models {

/// A transformer that sees the whole text at once. The defaults are BERT's.
struct TextEncoderOptions {
  /// Sizes, norms and blocks; causal and with a final norm it is not.
  DecoderOptions body = {};
  /// Rows of the table of token types; 0: none.
  int64_t token_types = 0;
  /// Positions count the ids that are not the padding, from pad_token + 1 on (RoBERTa); else the place in the row.
  bool positions_from_ids = false;
  int64_t pad_token = 0;
  /// "none", "masked_lm", "sequence_classification" or "token_classification".
  std::string head = "none";
  /// A layer over the first token, with tanh behind it unless pooler_tanh is off (BigBird applies it too).
  bool pooler = false;
  /// What stands between the first token and the classes: "pooler", or a layer with this activation: "tanh", "relu",
  /// ...
  std::string classifier = "pooler";
  int64_t num_labels = 2;
  double classifier_dropout = 0;
  /// Of the layer of the masked_lm head.
  std::string head_activation = "gelu";
  /// Attention over blocks of this many tokens (BigBird); 0: all tokens see all.
  int64_t block_size = 0;
  int64_t random_blocks = 3;
};

}  // namespace levin::models
