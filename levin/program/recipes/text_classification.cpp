// Fine-tunes a model folder of transformers to classify texts.
#include <algorithm>
#include <cmath>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/data/loader.h"
#include "levin/data/text/labeled_texts.h"
#include "levin/data/text/token_rows.h"
#include "levin/nn/functional.h"
#include "levin/program/recipes.h"
#include "levin/program/recipes/text_data.h"
#include "levin/program/recipes/text_model.h"
#include "levin/trainer/context.h"

namespace levin::cli {
namespace {

class ClassifiedTexts : public TextData {
 public:
  struct Options : TextDataOptions {
    std::string text_column = "text", label_column = "label";
    int64_t generated = 0;
    std::string class_weights = {};

    void fields(auto f) {
      TextDataOptions::fields(f);
      f("text_column", text_column, "column or JSON key of the texts");
      f("label_column", label_column, "column or JSON key of the labels");
      f("generated", generated, "use N made-up sentences instead, to run without data");
      f("class_weights", class_weights, "weights of the classes in the loss: balanced, or a number for each; none: 1");
    }
  };

  ClassifiedTexts(const Options& options, TextFolder folder) : TextData(options, std::move(folder)), options_(options) {
    auto sets = read_sets();
    names_ = names_of(sets[0]);
    if (sets[1].empty()) split_off(sets[0], sets[1]);
    for (size_t i = 0; i < sets.size(); ++i) {
      const char* const kSets[] = {"data.train", "data.val", "data.test"};
      rows_[i] = TokenRows(encoded(sets[i], class_numbers(sets[i], names_, kSets[i])));
    }
    counts_.resize(names_.size());
    for (int64_t i = 0; i < rows_[0].size(); ++i) ++counts_[static_cast<size_t>(rows_[0].row(i).label)];
  }

  /// Names for the config: numbers have those of the folder, or transformers' usual ones.
  std::vector<std::string> labels() const {
    if (!are_class_numbers(names_)) return names_;
    const auto known = folder_labels();
    if (known.size() == names_.size()) return known;
    std::vector<std::string> usual;
    for (const auto& name : names_) usual.push_back("LABEL_" + name);
    return usual;
  }

  /// Undefined: all 1.
  Tensor class_weights() const {
    if (options_.class_weights.empty() || options_.class_weights == "none") return {};
    std::vector<double> weights;
    if (options_.class_weights == "balanced") {
      for (const auto count : counts_)
        weights.push_back(count == 0 ? 0
                                     : static_cast<double>(rows_[0].size()) /
                                           (static_cast<double>(names_.size()) * static_cast<double>(count)));
    } else {
      try {
        weights = config::Codec<std::vector<double>>::read(config::Node::of_text(options_.class_weights));
      } catch (const config::BadValue&) {
        throw Error(levin::detail::concat("[recipe] data.class_weights \"", options_.class_weights,
                                          "\" is neither balanced nor a list of numbers"));
      }
    }
    LEVIN_CHECK(weights.size() == names_.size(), "[recipe] data.class_weights has ", weights.size(),
                " numbers, the data ", names_.size(), " classes");
    for (const auto weight : weights)
      LEVIN_CHECK(std::isfinite(weight) && weight >= 0, "[recipe] data.class_weights: ", weight,
                  " is not allowed (0 or more)");
    return at::tensor(weights, at::kFloat);
  }

 private:
  /// In the order of the folder where it has the same ones: its head is then kept.
  std::vector<std::string> names_of(const std::vector<LabeledText>& texts) const {
    auto names = class_names(texts);
    LEVIN_CHECK(names.size() >= 2, "[recipe] the training data has one label alone, \"", shown(names[0]), "\"");
    const auto known = folder_labels();
    return known.size() == names.size() && std::is_permutation(known.begin(), known.end(), names.begin()) ? known
                                                                                                          : names;
  }
  std::vector<std::string> folder_labels() const {
    return models::label_names(models::ModelConfig::read(folder().path / "config.json"));
  }

  /// Training, validation and test texts.
  std::array<std::vector<LabeledText>, 3> read_sets() const {
    LEVIN_CHECK(options_.generated >= 0, "[recipe] data.generated must not be negative, got ", options_.generated);
    std::array<std::vector<LabeledText>, 3> sets;
    if (options_.generated > 0) {
      sets[0] = generated_reviews(options_.generated);
      sets[2] = generated_reviews(std::max<int64_t>(2, options_.generated / 4), /*seed=*/1);
    } else {
      const auto paths = set_paths("texts with labels; --data.generated 400 makes some up");
      const LabeledTextOptions columns{.text = options_.text_column, .label = options_.label_column};
      for (size_t i = 0; i < sets.size(); ++i)
        if (!paths[i].empty()) sets[i] = read_labeled_texts(paths[i], columns);
    }
    return sets;
  }

  std::vector<TokenRow> encoded(const std::vector<LabeledText>& texts, const std::vector<int64_t>& numbers) const {
    return encode_rows(static_cast<int64_t>(texts.size()), [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      return TokenRow{.ids = cut_encoding(folder().tokenizer, texts[at].text, max_length()), .label = numbers[at]};
    });
  }

  Options options_;
  std::vector<std::string> names_;
  std::vector<int64_t> counts_;
};

/// Learns "label" by cross entropy; logs train_loss, and loss, accuracy and F1 of validation and test.
class TextClassifier : public TextModule {
 public:
  struct Options : TextModelOptions {
    bool merge_adapter = true;
    void fields(auto f) {
      TextModelOptions::fields(f);
      f("merge_adapter", merge_adapter,
        "save the whole model with its adapters merged; false: adapters and head alone");
    }
  };

  TextClassifier(const Options& options, const ClassifiedTexts& data)
      : TextModule(options,
                   {.head = "sequence_classification", .labels = data.labels(), .pad_token = data.folder().pad_token}),
        merge_(options.merge_adapter),
        classes_(static_cast<int64_t>(data.labels().size())) {
    const auto weights = data.class_weights();
    if (weights.defined()) weights_ = register_buffer("class_weights", weights);
  }

  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    auto loss = cross_entropy(logits(batch), batch["label"], {.weight = weights()});
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override { return evaluate(batch, "val"); }
  StepOutput test_step(const Batch& batch, const StepInfo&) override { return evaluate(batch, "test"); }
  /// The probabilities of the classes, [B, classes].
  StepOutput predict_step(const Batch& batch, const StepInfo&) override { return logits(batch).softmax(1); }

  void on_validation_epoch_start() override { clear_counts(); }
  void on_validation_epoch_end() override { log_counts("val"); }
  void on_test_epoch_start() override { clear_counts(); }
  void on_test_epoch_end() override { log_counts("test"); }

 protected:
  bool saves_adapter() const override { return !merge_; }

 private:
  /// In float32, [B, classes].
  Tensor logits(const Batch& batch) {
    auto& language = model();
    // A decoder needs no mask: padding stands on the right, where no token sees it.
    const auto scores =
        language.decoder ? language.decoder(batch["ids"]) : language.encoder(batch["ids"], batch["mask"]);
    return scores.to(at::kFloat);
  }
  Tensor weights() const { return weights_.defined() ? weights_.to(at::kFloat) : Tensor(); }

  StepOutput evaluate(const Batch& batch, const std::string& stage) {
    const auto scores = logits(batch);
    auto loss = cross_entropy(scores, batch["label"], {.weight = weights()});
    log(stage + "_loss", loss, {.prog_bar = true, .sync_dist = true});
    // One-hot rows by comparing: at::one_hot would wait for the device.
    const auto classes = at::arange(classes_, batch["label"].options());
    const auto found = scores.argmax(1).unsqueeze(1).eq(classes).to(at::kFloat);
    counts_ += batch["label"].unsqueeze(1).eq(classes).to(at::kFloat).t().mm(found);
    return loss;
  }

  /// counts_[label][prediction]; the memory stays the same, which compiled steps need.
  void clear_counts() {
    if (!counts_.defined() || counts_.device() != device())
      counts_ = at::zeros({classes_, classes_}, at::TensorOptions().dtype(at::kFloat).device(device()));
    counts_.zero_();
  }
  void log_counts(const std::string& stage) {
    const auto counts = trainer().fabric().all_reduce(counts_.clone(), "sum");
    const auto hits = counts.diagonal(), real = counts.sum(1), found = counts.sum(0);
    const auto f1 = 2 * hits / (real + found).clamp_min(1);
    log(stage + "_acc", hits.sum() / counts.sum().clamp_min(1), kShown);
    // Of two classes that of the second; of more the mean over those that occur.
    const auto occurs = (real + found).gt(0).to(at::kFloat);
    log(stage + "_f1", classes_ == 2 ? f1[1] : (f1 * occurs).sum() / occurs.sum().clamp_min(1), kShown);
  }

  bool merge_;
  int64_t classes_;
  Tensor weights_, counts_;
};

}  // namespace

Recipe text_classification() {
  return {"text_classification", "text classification with a model folder",
          R"(trainer:
  max_epochs: 3
  gradient_clip_val: 1.0
optimizer:
  class: AdamW
  lr: 5e-5
  weight_decay: 0.01
lr_scheduler:
  class: LinearWarmupCosine
)",
          []() -> std::unique_ptr<TrainProgram> {
            return std::make_unique<TextProgram<TextClassifier, ClassifiedTexts>>();
          }};
}

}  // namespace levin::cli
