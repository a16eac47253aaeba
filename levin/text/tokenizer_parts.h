#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "levin/text/added_tokens.h"
#include "levin/text/decoders.h"
#include "levin/text/model.h"
#include "levin/text/normalizers.h"
#include "levin/text/piece_cache.h"
#include "levin/text/post_processors.h"
#include "levin/text/pre_tokenizers.h"
#include "levin/text/tokenizer.h"

namespace levin::text {

/// What a tokenizer is made of; each but the model may be missing.
struct Tokenizer::Parts {
  NormalizerPointer normalizer;
  PreTokenizerPointer pre_tokenizer;
  std::unique_ptr<const Model> model;
  std::unique_ptr<const AddedTokens> added;
  PostProcessorPointer post_processor;
  DecoderPointer decoder;

  /// Caches that no thread uses just now.
  struct Caches {
    std::mutex mutex;
    std::vector<std::unique_ptr<PieceCache>> idle;
  };
  mutable Caches caches;
  TokenizerConfig config;
};

/// The parts that the content of a tokenizer.json describes, and `more` added tokens unless the file has them; an id of
/// -1 is that of the vocabulary, or the next free one. The result may still get a config.
std::unique_ptr<Tokenizer::Parts> parts_of_json(std::string_view json, std::vector<AddedToken> more = {});

}  // namespace levin::text
