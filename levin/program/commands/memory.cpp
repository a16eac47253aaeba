#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/models/registry.h"
#include "levin/plots/drawing.h"
#include "levin/program/command.h"
#include "levin/program/commands/memory_language.h"
#include "levin/program/commands/memory_rows.h"
#include "levin/strategies/choice.h"

namespace levin::cli {
namespace {

void check_number(const char* flag, int64_t value, int64_t most) {
  LEVIN_CHECK(value >= 1 && value <= most, "[levin memory] --", flag, " ", value, " is not allowed (1 to ", most, ")");
}

struct Memory {
  MemoryStep step;
  bool ladder = false, csv = false, json = false, inference = false;
  std::string plot, timeline, lora_targets;

  void describe(Flags& flags) {
    auto& model =
        flags.flag("model", step.model, "model by name: vit_b_16, resnet50, gpt2, distilbert, ...; or a model folder",
                   "NAME", models::module_names());
    model.words_are_hints = true;
    flags.flag("batch", step.batch, "batch size: images or sequences per rank", "N").aliases = {"batch-size"};
    flags.flag("image-size", step.image_size, "height and width of the images [224]", "N");
    flags.flag("num-classes", step.num_classes, "classes of an image model [1000]", "N");
    flags.flag("sequence-length", step.sequence_length, "tokens per sequence [the model's maximum]", "N");
    auto& strategy = flags.flag("strategy", step.strategy, "distributed strategy; model_parallel:dp_shard=4,tp=2 too",
                                "NAME", known_strategies());
    strategy.words_are_hints = true;  // the strategy itself refuses what it does not know
    auto& precision = flags.flag("precision", step.precision, "as in Trainer: 32-true, bf16-mixed, bf16-true, ...",
                                 "NAME", known_precisions());
    precision.words_are_hints = true;
    flags.flag("optimizer", step.optimizer, "optimizer", "NAME", known_memory_optimizers());
    flags.flag("devices", step.devices, "number of ranks", "N").aliases = {"world-size"};
    flags.flag("accumulate", step.accumulate, "batches per optimizer step (gradient accumulation)", "N").aliases = {
        "accumulate-grad-batches"};
    flags.flag("accelerator", step.accelerator, "whose kernels and allocator are assumed; no such device is needed",
               "NAME", {"cuda", "gpu", "cpu"});
    flags.flag("checkpointing", step.checkpointing,
               "activation checkpointing: recompute the activations of each block in backward");
    flags.flag("offload", step.offload, "offload state to host memory, as far as the strategy supports it");
    flags.flag("quantize", step.quantize,
               "of a language model: linear layers in few bits: int8, int8-weights, int4, nf4, nf4-double or fp8",
               "NAME");
    flags.flag("lora", step.lora, "of a language model: train adapters of this rank over frozen weights; 0: all of it",
               "RANK");
    flags.flag("lora-targets", lora_targets, "layers that get adapters: q_proj,v_proj [all-linear]", "NAMES");
    flags.flag("inference", inference, "of a language model: weights, keys and values of all sequences, one pass");
    flags.flag("ladder", ladder, "a row per technique, from 32-true on one device to everything combined");
    flags.flag("csv", csv, "print bytes as CSV");
    flags.flag("json", json, "print bytes as JSON");
    flags.flag("plot", plot, "write a bar plot of the peaks (.svg or .png)", "FILE");
    flags.flag("timeline", timeline, "write a plot of memory over the step, of the last row (.svg or .png)", "FILE");
  }

  int run() {
    check();
    if (inference) {
      print_inference(step, json, csv);
      return 0;
    }
    const auto rows = estimates();
    if (json)
      print_memory_json(step, rows);
    else if (csv)
      print_memory_csv(rows);
    else
      print_memory_table(step, rows);
    if (!plot.empty()) plot_memory_peaks(plot, step, rows);
    if (!timeline.empty())
      write_drawing(timeline, picture_of(rows.back().estimate.timeline, nullptr,
                                         step.model + ", " + rows.back().name + ": predicted"));
    return 0;
  }

 private:
  /// Sizes that are not given are the model's own.
  void set_sizes() {
    const bool text = step.is_text();
    for (const auto& [flag, value, is_of_text] :
         {std::tuple("--image-size", step.image_size, false), std::tuple("--num-classes", step.num_classes, false),
          std::tuple("--sequence-length", step.sequence_length, true)})
      LEVIN_CHECK(!value || is_of_text == text, "[levin memory] ", flag, " is not for ", step.model, ", a model of ",
                  text ? "text (--sequence-length is)" : "images (--image-size is)");
    const auto set = [&](const char* flag, std::optional<int64_t>& value, int64_t usual, int64_t most) {
      value = value.value_or(usual);
      check_number(flag, *value, most);
    };
    if (text) {
      const auto longest = step.longest_text();
      set("sequence-length", step.sequence_length, longest, longest);
    } else {
      set("image-size", step.image_size, 224, 1 << 16);
      set("num-classes", step.num_classes, 1000, 1 << 30);
    }
  }

  void check() {
    LEVIN_CHECK(!step.model.empty(),
                "[levin memory] name a model: levin memory --model vit_b_16 (known: ", join(models::module_names()),
                ")");
    const auto known = models::module_names();
    if (!is_model_folder(step.model) && std::ranges::find(known, step.model) == known.end()) {
      LEVIN_CHECK(!std::filesystem::is_directory(step.model), "[levin memory] --model \"", step.model,
                  "\" is a folder without a config.json");
      fail_unknown("levin memory", "--model", shown(step.model), known);
    }
    set_sizes();
    // The loss of a decoder is estimated chunk by chunk: beyond that an answer would take minutes.
    check_number("batch", step.batch, step.is_text() ? (1 << 24) / *step.sequence_length : 1 << 24);
    check_number("devices", step.devices, 1 << 20);
    check_number("accumulate", step.accumulate, 1 << 20);
    for (const auto& [flag, path] : {std::pair("--plot", plot), std::pair("--timeline", timeline)})
      LEVIN_CHECK(path.empty() || path.ends_with(".svg") || path.ends_with(".png"), "[levin memory] ", flag, " \"",
                  path, "\" must end with .svg or .png");
    LEVIN_CHECK(!csv || !json, "[levin memory] --csv and --json exclude each other");
    check_language();
  }

  void check_language() {
    LEVIN_CHECK(step.is_text() || (step.quantize.empty() && step.lora == 0 && !inference),
                "[levin memory] --quantize, --lora and --inference are for language models, not for ", step.model);
    if (step.lora != 0) check_number("lora", step.lora, 1 << 16);
    LEVIN_CHECK(step.quantize.empty() || step.lora > 0 || inference, "[levin memory] --quantize ", step.quantize,
                " freezes the model: add --lora RANK to train adapters, or --inference");
    LEVIN_CHECK(lora_targets.empty() || step.lora > 0, "[levin memory] --lora-targets needs --lora RANK");
    if (!lora_targets.empty())
      step.lora_targets = config::Codec<std::vector<std::string>>::read(config::Node::of_text(lora_targets));
    LEVIN_CHECK(!inference || (!ladder && plot.empty() && timeline.empty()),
                "[levin memory] --inference goes without --ladder, --plot and --timeline");
  }

  std::vector<MemoryRow> estimates() const {
    auto rows = ladder ? memory_ladder(step) : memory_rows(step);
    for (auto& row : rows) {
      try {
        row.estimate = estimate_row(step, row.question);
      } catch (const Error& error) {
        // A ladder has the rows that are possible.
        if (!ladder) throw;
        fmt::print(stderr, "left out: {}: {}\n", row.name, error.what());
        row.name.clear();
      }
    }
    std::erase_if(rows, [](const MemoryRow& row) { return row.name.empty(); });
    LEVIN_CHECK(!rows.empty(), "[levin memory] no row of the ladder is possible");
    return rows;
  }
};

}  // namespace

Command memory_command() {
  return make_command<Memory>("memory", "estimate the memory of a training step, without a GPU");
}

}  // namespace levin::cli
