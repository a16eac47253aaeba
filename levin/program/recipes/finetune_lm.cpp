// Fine-tunes a causal language model of a folder of transformers, whole or by adapters.
#include <cmath>

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/data/text/labeled_texts.h"
#include "levin/data/text/language_examples.h"
#include "levin/data/text/token_rows.h"
#include "levin/models/decoder_loss.h"
#include "levin/program/recipes.h"
#include "levin/program/recipes/text_data.h"
#include "levin/program/recipes/text_model.h"
#include "levin/text/learned_tokens.h"
#include "levin/trainer/context.h"

namespace levin::cli {
namespace {

constexpr const char* kSetNames[] = {"data.train", "data.val", "data.test"};

class LanguageTexts : public TextData {
 public:
  struct Options : TextDataOptions {
    std::string packing = "auto";
    std::string learn = "completions";
    int64_t generated = 0;

    Options() { batch_size = eval_batch_size = 8; }

    void fields(auto f) {
      TextDataOptions::fields(f);
      f("packing", packing,
        "blocks: texts in a row, cut to max_length; documents: whole texts put together, apart from each other; none: "
        "one text a row, padded; auto: blocks of texts, none of completions and chats",
        {"auto", "blocks", "documents", "none"});
      f("learn", learn, "what of prompts and chats is learned: completions and turns of the assistant, or all",
        {"completions", "all"});
      f("generated", generated, "use N made-up sentences instead, to run without data");
    }
  };

  LanguageTexts(const Options& options, TextFolder folder) : TextData(options, std::move(folder)), options_(options) {
    LEVIN_CHECK(TextData::folder().is_decoder, "[recipe] model.folder \"", TextData::folder().path.string(),
                "\" is an encoder; finetune_lm trains decoders");
    const auto sets = read_sets();
    for (size_t i = 0; i < sets.size(); ++i)
      if (!sets[i].all.empty()) rows_[i] = TokenRows(made_rows(sets[i], kSetNames[i]));
    if (rows_[1].size() == 0 && split_rows_) split_validation();
  }

  /// Rows hold several texts that must not see each other.
  bool has_documents() const { return has_documents_; }

 private:
  std::array<LanguageExamples, 3> read_sets() {
    LEVIN_CHECK(options_.generated >= 0, "[recipe] data.generated must not be negative, got ", options_.generated);
    std::array<LanguageExamples, 3> sets;
    if (options_.generated > 0) {
      for (auto& each : generated_reviews(options_.generated)) sets[0].all.push_back({.text = each.text});
      for (auto& each : generated_reviews(std::max<int64_t>(2, options_.generated / 4), /*seed=*/1))
        sets[2].all.push_back({.text = each.text});
    } else {
      const auto paths = set_paths("a text file or JSON lines; --data.generated 400 makes sentences up");
      for (size_t i = 0; i < sets.size(); ++i)
        if (!paths[i].empty()) sets[i] = read_language_examples(paths[i]);
    }
    for (size_t i = 1; i < sets.size(); ++i)
      LEVIN_CHECK(sets[i].all.empty() || sets[i].kind == sets[0].kind, "[recipe] ", kSetNames[i],
                  " is of another kind than data.train");
    // Of few texts the rows are split, not the texts.
    constexpr size_t kFew = 10;
    sets[1].kind = sets[0].kind;
    split_rows_ = sets[1].all.empty();
    if (split_rows_ && sets[0].all.size() >= kFew) split_off(sets[0].all, sets[1].all), split_rows_ = false;
    return sets;
  }

  std::string packing(LanguageKind kind) const {
    if (options_.packing != "auto") return options_.packing;
    return kind == LanguageKind::kText ? "blocks" : "none";
  }

  std::vector<TokenRow> made_rows(const LanguageExamples& examples, const char* name) {
    const auto how = packing(examples.kind);
    LEVIN_CHECK(how != "blocks" || examples.kind == LanguageKind::kText,
                "[recipe] data.packing \"blocks\" is for texts; completions and chats take \"documents\" or \"none\"");
    auto rows = encode_rows(static_cast<int64_t>(examples.all.size()),
                            [&](int64_t i) { return row_of(examples.all[static_cast<size_t>(i)], examples.kind); });
    if (how == "blocks") {
      std::vector<int64_t> ids;
      for (const auto& row : rows) ids.insert(ids.end(), row.ids.begin(), row.ids.end());
      auto blocks = token_blocks(ids, max_length());
      LEVIN_CHECK(!blocks.empty(), "[recipe] ", name, " has ", ids.size(), " tokens, not enough for one row of ",
                  max_length(), "; data.max_length is the length of a row");
      return blocks;
    }
    rows = cut_rows(std::move(rows), name);
    if (how == "none") return rows;
    has_documents_ = true;
    return packed_rows(std::move(rows), max_length());
  }

  /// Rows of at most max_length tokens that have something to learn.
  std::vector<TokenRow> cut_rows(std::vector<TokenRow> rows, const char* name) const {
    const auto most = static_cast<size_t>(max_length());
    size_t cut = 0;
    for (auto& row : rows) {
      if (row.ids.size() <= most) continue;
      row.ids.resize(most), row.targets.resize(most);
      ++cut;
    }
    const auto all = rows.size();
    std::erase_if(rows, [](const TokenRow& row) {
      return std::all_of(row.targets.begin(), row.targets.end(), [](int64_t t) { return t == models::kIgnoredToken; });
    });
    LEVIN_CHECK(!rows.empty(), "[recipe] ", name, ": no text has a token to learn within data.max_length ",
                max_length());
    if (cut > 0)
      log_warning(fmt::format("[recipe] {}: {} of {} texts are longer than data.max_length {} and were cut", name, cut,
                              all, max_length()));
    if (rows.size() < all)
      log_warning(
          fmt::format("[recipe] {}: {} of {} texts have nothing to learn within data.max_length {} and are left "
                      "out",
                      name, all - rows.size(), all, max_length()));
    return rows;
  }

  TokenRow row_of(const LanguageExample& example, LanguageKind kind) const {
    const auto& tokenizer = folder().tokenizer;
    text::LearnedTokens tokens;
    if (kind == LanguageKind::kText) {
      tokens = text::completion_tokens(tokenizer, {}, example.text);
    } else if (kind == LanguageKind::kCompletion) {
      tokens = text::completion_tokens(tokenizer, example.prompt, example.completion);
    } else {
      std::vector<text::ChatMessage> messages;
      for (const auto& [role, content] : example.messages) messages.push_back({role, content});
      try {
        tokens = text::chat_tokens(tokenizer, messages);
      } catch (const Error& error) {
        throw Error(levin::detail::concat("[data] ", example.where, ": ", error.what()));
      }
    }
    if (kind == LanguageKind::kText || options_.learn == "all") tokens.learned.clear();
    auto targets = next_token_targets(tokens.ids, tokens.learned);
    return {.ids = std::move(tokens.ids), .targets = std::move(targets)};
  }

  void split_validation() {
    std::vector<TokenRow> rows, val;
    for (int64_t i = 0; i < rows_[0].size(); ++i) rows.push_back(rows_[0].row(i));
    split_off(rows, val);
    rows_[0] = TokenRows(std::move(rows));
    rows_[1] = TokenRows(std::move(val));
  }

  Options options_;
  bool split_rows_ = false, has_documents_ = false;
};

/// Learns the next token; logs train_loss, and loss and perplexity of validation and test.
class LanguageTrainer : public TextModule {
 public:
  struct Options : TextModelOptions {
    bool merge_adapter = false;
    void fields(auto f) {
      TextModelOptions::fields(f);
      f("merge_adapter", merge_adapter, "save the whole model with its adapters merged, not the adapters");
    }
  };

  LanguageTrainer(const Options& options, const LanguageTexts& data)
      : TextModule(options, {.head = "causal_lm"}),
        merge_(options.merge_adapter),
        has_documents_(data.has_documents()) {}

  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    auto loss = loss_of(batch);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override { return evaluate(batch); }
  StepOutput test_step(const Batch& batch, const StepInfo&) override { return evaluate(batch); }

  void on_validation_epoch_start() override { clear_sums(); }
  void on_validation_epoch_end() override { log_sums("val"); }
  void on_test_epoch_start() override { clear_sums(); }
  void on_test_epoch_end() override { log_sums("test"); }

 protected:
  bool saves_adapter() const override { return !merge_; }

 private:
  Tensor loss_of(const Batch& batch) {
    // Padding stands on the right, where no token sees it: a mask is needed to keep texts apart, and only then.
    return model().decoder(batch["ids"], batch["targets"], has_documents_ ? batch["mask"] : Tensor());
  }

  StepOutput evaluate(const Batch& batch) {
    auto loss = loss_of(batch);
    const auto count = batch["targets"].ne(models::kIgnoredToken).sum();
    sums_ += at::stack({loss.to(at::kDouble) * count, count.to(at::kDouble)});
    return loss;
  }

  /// Losses and number of tokens; the memory stays the same, which compiled steps need.
  void clear_sums() {
    if (!sums_.defined() || sums_.device() != device())
      sums_ = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(device()));
    sums_.zero_();
  }
  void log_sums(const std::string& stage) {
    const auto sums = trainer().fabric().all_reduce(sums_.clone(), "sum");
    const auto mean = sums[0] / sums[1].clamp_min(1);
    log(stage + "_loss", mean, kShown);
    log(stage + "_perplexity", mean.exp(), kShown);
  }

  bool merge_, has_documents_;
  Tensor sums_;
};

}  // namespace

Recipe finetune_lm() {
  return {"finetune_lm", "causal language model of a folder, fine-tuned",
          R"(trainer:
  max_epochs: 3
  gradient_clip_val: 1.0
optimizer:
  class: AdamW
  lr: 2e-5
  weight_decay: 0.0
lr_scheduler:
  class: LinearWarmupCosine
)",
          []() -> std::unique_ptr<TrainProgram> {
            return std::make_unique<TextProgram<LanguageTrainer, LanguageTexts>>();
          }};
}

}  // namespace levin::cli
