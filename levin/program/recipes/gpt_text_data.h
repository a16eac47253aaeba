#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "levin/program/recipes/text_tokens.h"
#include "levin/trainer/data_module.h"

namespace levin::cli {

/// Windows of a text's tokens: "input" and "target" int64 [B, block_size].
class GptTextData : public DataModule {
 public:
  struct Options {
    std::filesystem::path file = {};
    std::string tokenizer = "chars";
    int64_t vocab_size = 4096;
    double val_fraction = 0.1;
    std::string windows = "random";
    int64_t batch_size = 12;
    int64_t eval_batch_size = 64;
    int64_t num_samples = 1;
    std::filesystem::path cache = {};

    void fields(auto f) {
      f("file", file, "text file, or folder of texts; default: the King James Bible of Debian's bible-kjv-text");
      f("tokenizer", tokenizer, "chars (a token a character), bpe (trained on the text), or a folder with a tokenizer");
      f("vocab_size", vocab_size, "tokens of bpe");
      f("val_fraction", val_fraction, "fraction of the text, at its end, for validation and test");
      f("windows", windows, "training windows: at random places, or one after the other, shuffled",
        {"random", "contiguous"});
      f("batch_size", batch_size, "training windows of a batch, per rank");
      f("eval_batch_size", eval_batch_size, "windows of a batch of validation and test, per rank");
      f("num_samples", num_samples, "texts that predict generates");
      f("cache", cache, "folder where tokens are kept; default: $LEVIN_DATA/tokens, else ~/.cache/levin/tokens");
    }
  };

  explicit GptTextData(Options options) : options_(std::move(options)) {}

  void prepare_data() override;
  void setup(std::string_view stage) override;
  Loaders<Batch> train_dataloader() override;
  /// All of the validation text, window after window.
  Loaders<Batch> val_dataloader() override;
  Loaders<Batch> test_dataloader() override { return val_dataloader(); }
  /// "index": the number of each text to generate.
  Loaders<Batch> predict_dataloader() override;

  /// Length of a window; set before the loaders are asked for.
  void set_block_size(int64_t tokens) { block_size_ = tokens; }
  /// Known once it is set up.
  const TextTokens& tokens() const;

 private:
  Options options_;
  std::optional<TextTokens> tokens_;
  int64_t block_size_ = 0;
};

}  // namespace levin::cli
