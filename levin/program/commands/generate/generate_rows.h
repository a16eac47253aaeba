#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "levin/generate/generate.h"
#include "levin/models/folder.h"
#include "levin/program/commands/generate/generate_input.h"
#include "levin/program/commands/generate/generate_output.h"
#include "levin/text/tokenizer.h"

namespace levin::cli {

/// The texts of `levin generate`, written as they end. Prompts go to generate() some hundred rows at a time: which rows
/// are in a batch together depends on their places in INPUT alone, so that a run that was resumed computes what it
/// would have computed.
class GenerateRows {
 public:
  struct Options {
    const std::vector<GeneratePrompt>& prompts;
    const GenerateOptions& options;
    GenerateOutput& output;
    bool json = false;
    /// Prints texts as they come, in place of a progress bar.
    bool stream = false;
    double loaded_seconds = 0;
  };
  explicit GenerateRows(const Options& options);
  ~GenerateRows();

  /// Rank 0, where ranks have the model together; the others call follow_rows().
  void write(models::LanguageModel& model, const text::Tokenizer* tokenizer, const RunSettings& settings);

 private:
  struct Row;
  struct Run;

  bool take(const GeneratedToken& token);
  void end(size_t row, const Generated& result);
  void show(const Row& row, const std::string& more);
  void begin_shown();
  void flush();
  std::string line_of(const Row& row) const;

  const Options asked_;
  std::unique_ptr<Run> run_;
};

/// Computes along with rank 0.
void follow_rows(models::LanguageModel& model, const GenerateOptions& options);

}  // namespace levin::cli
