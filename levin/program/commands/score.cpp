#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/weights/weights.h"
#include "levin/models/language_score.h"
#include "levin/models/sentence_embedding.h"
#include "levin/program/command.h"
#include "levin/program/commands/input_lines.h"
#include "levin/program/commands/model_flags.h"
#include "levin/text/tokenizer.h"

namespace levin::cli {
namespace {

using ScoreJson = nlohmann::ordered_json;

/// Rows of FILE. A line that begins with { is JSON with "ids" or "text", any other a text. The tokenizer of the folder
/// is read with the first text.
class RowReader {
 public:
  RowReader(std::string folder, std::optional<models::SentencePooling> sentences)
      : folder_(std::move(folder)), sentences_(std::move(sentences)) {}

  std::vector<int64_t> row(const std::string& line, const std::string& where) {
    const auto json = JsonLine::of(line, where, R"({"ids": [464, 2068]})");
    if (!json) return of_text(line, where);
    return json->has("text") && !json->has("ids") ? of_text(json->text("text"), where) : json->ids();
  }

 private:
  std::vector<int64_t> of_text(const std::string& text, const std::string& where) {
    if (!tokenizer_) tokenizer_ = text::Tokenizer::from_folder(folder_);
    auto ids = tokenizer_->encode(sentences_ ? models::sentence_text(text, *sentences_) : text).ids;
    LEVIN_CHECK(!ids.empty(), where, " has no tokens");
    return ids;
  }

  std::string folder_;
  /// Of a folder of sentence-transformers, for embeddings.
  std::optional<models::SentencePooling> sentences_;
  std::optional<text::Tokenizer> tokenizer_;
};

struct Score {
  std::string folder, file, logits, embeddings, pooling = "auto", head = "auto";
  ModelFlags model_flags;
  int64_t batch = 8;
  bool json = false;

  void describe(Flags& flags) {
    flags.argument("FOLDER", folder, "a model folder of transformers: config.json and weights");
    flags.argument("FILE", file,
                   "a text a line, or JSON lines with \"ids\" (a list of tokens) or \"text\"; -: standard input");
    flags.flag("json", json, "print a JSON line for each row: ids, logprobs, perplexity");
    flags.flag("logits", logits,
               "write float32 logits [T, V] of row i as tensor \"i\"; of an encoder or a classifier its last hidden "
               "states, and as "
               "\"i.head\" what its head gives",
               "FILE");
    flags.flag("embeddings", embeddings,
               "of an encoder: write one vector for each row, float32 [rows, D], as tensor \"embeddings\"", "FILE");
    flags.flag("pooling", pooling, "of --embeddings: how tokens become one vector [what modules.json says, else mean]",
               "NAME", {"auto", "mean", "first", "last", "max", "mean_sqrt"});
    flags.flag("head", head, "of an encoder: none gives hidden states alone [what config.json says]", "NAME",
               {"auto", "none", "masked_lm", "sequence_classification", "token_classification", "causal_lm"});
    flags.flag("batch", batch, "rows that go through the model together", "N");
    model_flags.describe(flags);
  }

  int run() {
    for (const auto& [flag, path] : {std::pair("logits", &logits), std::pair("embeddings", &embeddings)})
      LEVIN_CHECK(path->empty() || path->ends_with(".safetensors"), "[levin score] --", flag, " \"", *path,
                  "\" must end with .safetensors");
    LEVIN_CHECK(batch > 0, "[levin score] --batch ", batch, " must be positive");
    // Before its tokenizer is looked for.
    if (std::filesystem::is_directory(folder)) models::ModelConfig::read(std::filesystem::path(folder) / "config.json");
    const auto sentences =
        embeddings.empty() ? std::optional<models::SentencePooling>() : models::sentence_pooling(folder);
    const auto rows = read_rows(sentences);
    auto options = model_flags.options("levin score");
    options.head = head;
    if (!embeddings.empty()) return write_embeddings(rows, sentences.value_or(models::SentencePooling()), options);
    const auto model = models::open_model(folder, options);
    const auto scores = models::score_rows(model, rows, {.batch = batch, .keep_outputs = !logits.empty()});
    if (!logits.empty()) write_outputs(scores);
    json ? print_json(rows, scores) : print_table(model, rows, scores);
    return 0;
  }

 private:
  std::vector<std::vector<int64_t>> read_rows(const std::optional<models::SentencePooling>& sentences) const {
    std::vector<std::vector<int64_t>> rows;
    RowReader reader(folder, sentences);
    read_input_lines("levin score", file, [&](const std::string& line, const std::string& where) {
      if (!line.empty()) rows.push_back(reader.row(line, where));
    });
    LEVIN_CHECK(!rows.empty(), "[levin score] \"", file, "\" has no lines");
    return rows;
  }

  /// By what the folder says of sentences, or the mean of the tokens, normalized.
  int write_embeddings(const std::vector<std::vector<int64_t>>& rows, models::SentencePooling how,
                       models::OpenModelOptions options) const {
    LEVIN_CHECK(logits.empty() && !json, "[levin score] --embeddings goes without --logits and --json");
    options.head = "none";
    if (pooling != "auto") how.mode = pooling;
    const auto vectors = models::embed_rows(models::open_model(folder, options), rows, how, batch);
    write_safetensors(embeddings, {{"embeddings", vectors}});
    fmt::print("{} rows of {} numbers, pooling {}{}\n", vectors.size(0), vectors.size(1), how.mode,
               how.normalize ? ", normalized" : "");
    return 0;
  }

  void write_outputs(const std::vector<models::RowScore>& scores) const {
    NamedTensors tensors;
    for (size_t i = 0; i < scores.size(); ++i) {
      tensors.emplace_back(std::to_string(i), scores[i].output);
      if (scores[i].head.defined()) tensors.emplace_back(fmt::format("{}.head", i), scores[i].head);
    }
    write_safetensors(logits, tensors);
  }

  static void print_json(const std::vector<std::vector<int64_t>>& rows, const std::vector<models::RowScore>& scores) {
    for (size_t i = 0; i < rows.size(); ++i) {
      ScoreJson line{{"ids", rows[i]}};
      if (scores[i].head.defined() && scores[i].head.dim() == 1) {
        const auto head = scores[i].head.contiguous();
        line["logits"] = std::vector<float>(head.const_data_ptr<float>(), head.const_data_ptr<float>() + head.numel());
      } else {
        line["logprobs"] = scores[i].logprobs;
        line["perplexity"] = std::isnan(scores[i].perplexity) ? ScoreJson(nullptr) : ScoreJson(scores[i].perplexity);
      }
      std::puts(line.dump().c_str());
    }
  }

  /// "  positive 0.9312": the likeliest class of a row, where there is one.
  static std::string likeliest_label(const models::LanguageModel& model, const Tensor& head) {
    if (!head.defined() || head.dim() != 1) return {};
    const auto names = models::label_names(model.config);
    constexpr const char* kSingle = "single_label_classification";
    if (std::ssize(names) != head.numel() || names.size() < 2 || model.config.text("problem_type", kSingle) != kSingle)
      return {};
    const auto shares = head.softmax(0);
    const auto best = shares.argmax().item<int64_t>();
    return fmt::format("  {} {:.4f}", printable(names[static_cast<size_t>(best)]), shares[best].item<double>());
  }

  static void print_table(const models::LanguageModel& model, const std::vector<std::vector<int64_t>>& rows,
                          const std::vector<models::RowScore>& scores) {
    double sum = 0;
    size_t count = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!scores[i].head.defined() && model.decoder)
        fmt::print("{:>6}  {:>6} tokens  perplexity {:.4f}\n", i, rows[i].size(), scores[i].perplexity);
      else
        fmt::print("{:>6}  {:>6} tokens{}\n", i, rows[i].size(), likeliest_label(model, scores[i].head));
      for (const auto each : scores[i].logprobs) sum += each;
      count += scores[i].logprobs.size();
    }
    if (count > 0)
      fmt::print("all: {} scored, perplexity {:.4f}\n", count, std::exp(-sum / static_cast<double>(count)));
  }
};

}  // namespace

Command score_command() {
  return make_command<Score>("score", "log probabilities and perplexity of tokens under a language model");
}

}  // namespace levin::cli
