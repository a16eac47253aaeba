#include "levin/text/unicode/characters.h"

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text {

std::string character_tokenizer(std::span<const char32_t> characters) {
  using Json = nlohmann::ordered_json;
  LEVIN_CHECK(!characters.empty(), "[character_tokenizer] there are no characters");
  auto vocab = Json::object();
  for (size_t i = 0; i < characters.size(); ++i) vocab[to_utf8(characters[i])] = i;
  LEVIN_CHECK(vocab.size() == characters.size(), "[character_tokenizer] a character stands twice");
  Json json{{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", Json::array()},
            {"normalizer", nullptr},
            // Each character alone, so that a long text is not one long word.
            {"pre_tokenizer",
             {{"type", "Split"}, {"pattern", {{"Regex", "[\\s\\S]"}}}, {"behavior", "Isolated"}, {"invert", false}}},
            {"post_processor", nullptr},
            {"decoder", {{"type", "Fuse"}}}};
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", std::move(vocab)},
                   {"merges", Json::array()}};
  return json.dump(2) + "\n";
}

}  // namespace levin::text
