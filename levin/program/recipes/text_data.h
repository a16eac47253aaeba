#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "levin/data/sampler.h"
#include "levin/data/text/token_rows.h"
#include "levin/program/recipes/text_model.h"
#include "levin/trainer/data_module.h"

namespace levin::cli {

/// Options of all text data.
struct TextDataOptions {
  std::filesystem::path folder = {}, train = {}, val = {}, test = {};
  double val_fraction = 0.1;
  int64_t max_length = 0;
  int64_t batch_size = 16;
  int64_t eval_batch_size = 32;
  std::string order = "by_length";
  int64_t pad_to_multiple_of = 1;
  bool pad_to_max_length = false;

  void fields(auto f) {
    f("folder", folder, "folder with train, test and perhaps val: folders of classes, or files such as train.csv");
    f("train", train, "training data: a file, or a folder of classes");
    f("val", val, "validation data; default: a part of the training data");
    f("test", test, "test data");
    f("val_fraction", val_fraction, "fraction of the training data that validates where there is no other");
    f("max_length", max_length, "tokens of a text; longer ones are cut; 0: 512, or what the model allows");
    f("batch_size", batch_size, "texts of a training batch, per rank");
    f("eval_batch_size", eval_batch_size, "texts of a batch of validation, test and predict, per rank");
    f("order", order, "order of training: texts of like length together, random, or that of the file",
      {"by_length", "shuffled", "sequential"});
    f("pad_to_multiple_of", pad_to_multiple_of, "round the length of batches up; fewer shapes for compiled steps");
    f("pad_to_max_length", pad_to_max_length, "pad every batch to max_length: one shape");
  }
};

/// Rows of tokens for training, validation and test, which a recipe fills.
class TextData : public DataModule {
 public:
  TextData(const TextDataOptions& options, TextFolder folder);

  Loaders<Batch> train_dataloader() override;
  Loaders<Batch> val_dataloader() override;
  Loaders<Batch> test_dataloader() override;
  Loaders<Batch> predict_dataloader() override { return test_dataloader(); }

  const TextFolder& folder() const { return folder_; }
  int64_t max_length() const { return max_length_; }

 protected:
  /// Where training, validation and test data lie; empty: there is none. `what` completes "data.train must name ...".
  std::array<std::filesystem::path, 3> set_paths(std::string_view what) const;

  /// Moves val_fraction of the examples, chosen at random, always the same ones.
  template <class T>
  void split_off(std::vector<T>& from, std::vector<T>& into) const {
    const auto chosen = split_indices(static_cast<int64_t>(from.size()));
    std::vector<bool> moved(from.size());
    for (const auto index : chosen) moved[static_cast<size_t>(index)] = true;
    std::vector<T> rest;
    for (size_t i = 0; i < from.size(); ++i) (moved[i] ? into : rest).push_back(std::move(from[i]));
    from = std::move(rest);
  }

  /// Training, validation, test.
  std::array<TokenRows, 3> rows_;

 private:
  std::vector<int64_t> split_indices(int64_t size) const;
  Loaders<Batch> evaluation_loader(const TokenRows& rows) const;
  PadRows padding() const;

  TextDataOptions options_;
  TextFolder folder_;
  int64_t max_length_;
};

/// The ids of a text, at most `length`: the text is cut, not the tokens that the tokenizer adds around it.
std::vector<int64_t> cut_encoding(const text::Tokenizer& tokenizer, std::string_view text, int64_t length);

}  // namespace levin::cli
