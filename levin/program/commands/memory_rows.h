#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levin/memory/estimate.h"

namespace levin::cli {

/// The training step that is asked about, and what is varied on it.
struct MemoryStep {
  std::string model, strategy = "auto", precision = "32-true", optimizer = "adam", accelerator = "cuda";
  int64_t batch = 32, devices = 1, accumulate = 1;
  /// Of image models, and of language models; set once the model is known.
  std::optional<int64_t> image_size, num_classes, sequence_length;
  bool checkpointing = false, offload = false;
  /// Of language models: the linear layers of the blocks in few bits, and adapters of this rank over frozen weights; 0:
  /// all is trained.
  std::string quantize;
  int64_t lora = 0;
  std::vector<std::string> lora_targets = {"all-linear"};

  /// Tokens of the longest text that the model takes; 0 for a model of images.
  int64_t longest_text() const;
  /// Whether the model takes tokens, and not images.
  bool is_text() const;
  /// "batches of 32 images of 224 pixels, adam", with the adapters
  std::string to_string() const;
};

/// One configuration, and its estimate.
struct MemoryRow {
  /// "bf16-mixed fsdp x8 checkpointing"
  std::string name;
  MemoryQuestion question;
  /// In a plot, where there is little room.
  std::string label = {};
  /// In the table of a ladder, below the row before it; empty: the name.
  std::string rung = {};
  MemoryEstimate estimate = {};
};

/// The row of the step as it is, without its estimate; of a pipeline one for each of its ranks.
std::vector<MemoryRow> memory_rows(const MemoryStep& step);
/// Rows from plain 32-true training on one device to everything combined, each with one technique more.
std::vector<MemoryRow> memory_ladder(const MemoryStep& step);
/// Runs the training step on meta tensors.
MemoryEstimate estimate_row(const MemoryStep& step, const MemoryQuestion& question);

void print_memory_table(const MemoryStep& step, const std::vector<MemoryRow>& rows);
void print_memory_csv(const std::vector<MemoryRow>& rows);
void print_memory_json(const MemoryStep& step, const std::vector<MemoryRow>& rows);
/// What generating text takes.
void print_inference(const MemoryStep& step, bool json, bool csv);
/// A bar for the peak of each row.
void plot_memory_peaks(const std::string& path, const MemoryStep& step, const std::vector<MemoryRow>& rows);

}  // namespace levin::cli
