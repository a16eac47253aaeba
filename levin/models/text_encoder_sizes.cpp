#include "levin/models/text_encoder_sizes.h"

#include <fmt/format.h>

#include "levin/core/words.h"
#include "levin/models/language/architecture.h"
#include "levin/models/language/model_config.h"

namespace levin::models {
namespace {

struct EncoderSize {
  const char* name;
  const char* model_type;
  const char* architecture;
  int64_t layers, vocab, positions;
  const char* more = "";
};

/// All are 768 wide with 12 heads; the rest are the defaults of their kind.
constexpr EncoderSize kEncoderSizes[] = {
    {"bert_base", "bert", "BertForSequenceClassification", 12, 30522, 512},
    {"distilbert", "distilbert", "DistilBertForSequenceClassification", 6, 30522, 512},
    {"roberta_base", "roberta", "RobertaForSequenceClassification", 12, 50265, 514, R"(, "type_vocab_size": 1)"},
    {"big_bird", "big_bird", "BigBirdForSequenceClassification", 12, 50358, 4096},
};

}  // namespace

std::vector<std::string> text_encoder_names() {
  std::vector<std::string> all;
  for (const auto& size : kEncoderSizes) all.emplace_back(size.name);
  return all;
}

std::string text_encoder_config(std::string_view name) {
  for (const auto& size : kEncoderSizes) {
    if (name != size.name) continue;
    const bool distil = name == "distilbert";
    return fmt::format(
        R"({{"model_type": "{}", "architectures": ["{}"], "vocab_size": {}, "max_position_embeddings": {},)"
        R"( "{}": {}, "{}": 12, "{}": 768, "{}": 3072{}}})",
        size.model_type, size.architecture, size.vocab, size.positions, distil ? "n_layers" : "num_hidden_layers",
        size.layers, distil ? "n_heads" : "num_attention_heads", distil ? "dim" : "hidden_size",
        distil ? "hidden_dim" : "intermediate_size", size.more);
  }
  fail_unknown("text_encoder", "size", name, text_encoder_names());
}

TextEncoderOptions text_encoder_options(std::string_view name) {
  const ModelConfig config(text_encoder_config(name), std::string(name));
  auto options = architecture_of(config).encoder(config);
  options.head = "sequence_classification";
  options.pooler = options.classifier == "pooler";
  return options;
}

}  // namespace levin::models
