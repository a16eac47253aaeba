#include <algorithm>
#include <array>
#include <cstdio>

#include <ATen/Functions.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/memory/estimate.h"
#include "levin/models/decoder_sizes.h"
#include "levin/models/registry.h"
#include "levin/nn/functional.h"
#include "levin/plots/bar_plot.h"
#include "levin/plots/drawing.h"
#include "levin/program/command.h"
#include "levin/program/flags.h"

namespace levin::cli {
namespace {

struct MemoryFlags {
  std::string model, strategy = "auto", precision = "32-true", optimizer = "adam", accelerator = "cuda", plot;
  std::string timeline;
  int64_t batch = 32, devices = 1, accumulate = 1;
  /// Of models of images, and of text; 0 is the model's own.
  int64_t image_size = 0, num_classes = 0, sequence_length = 0;
  bool checkpointing = false, offload = false, ladder = false, csv = false, json = false;
};

/// One configuration, and what it takes.
struct MemoryRow {
  std::string name;
  MemoryQuestion question;
  /// In a picture, where there is little room.
  std::string label = {};
  /// In the table, below the rung before it; empty: the name.
  std::string rung = {};
  MemoryEstimate estimate = {};
};

bool is_decoder(const std::string& model) {
  const auto decoders = models::decoder_names();
  return std::find(decoders.begin(), decoders.end(), model) != decoders.end();
}

void check_number(const char* flag, int64_t value, int64_t most) {
  LEVIN_CHECK(value >= 1 && value <= most, "[levin memory] ", flag, " ", value, " is not allowed (1 to ", most, ")");
}

/// What is not told is the model's own.
void complete(MemoryFlags& flags, const CLI::App& app) {
  const auto known = models::module_names();
  LEVIN_CHECK(!flags.model.empty(), "[levin memory] name a model: levin memory --model vit_b_16 (known: ", join(known),
              ")");
  if (std::find(known.begin(), known.end(), flags.model) == known.end())
    fail_unknown("levin memory", "--model", flags.model, known);
  const bool text = is_decoder(flags.model);
  for (const auto* flag : text ? std::array{"--image-size", "--num-classes"} : std::array{"--sequence-length", ""})
    LEVIN_CHECK(*flag == '\0' || app.count(flag) == 0, "[levin memory] ", flag, " is not for ", flags.model,
                ", a model of ", text ? "text (--sequence-length is)" : "images (--image-size is)");
  const auto longest = text ? models::decoder_options(flags.model).max_positions : 0;
  const auto set = [&](const char* flag, int64_t& value, int64_t usual, int64_t most) {
    if (app.count(flag) == 0) value = usual;
    check_number(flag, value, most);
  };
  if (text) {
    set("--sequence-length", flags.sequence_length, longest, longest);
  } else {
    set("--image-size", flags.image_size, 224, 1 << 16);
    set("--num-classes", flags.num_classes, 1000, 1 << 30);
  }
}

bool parse_memory(const std::vector<std::string>& words, MemoryFlags& flags) {
  CLI::App app("Tells how much memory a training step will take, by kind, before anything is allocated.",
               "levin memory");
  app.add_option("--model", flags.model, "vit_b_16, resnet50, gpt2, gpt_6_7b, ...")->type_name("NAME");
  app.add_option("--batch", flags.batch, "images or sequences of a batch, on each rank (32)")->type_name("N");
  app.add_option("--image-size", flags.image_size, "side of the images (224)")->type_name("N");
  app.add_option("--num-classes", flags.num_classes, "classes of images (1000)")->type_name("N");
  app.add_option("--sequence-length", flags.sequence_length, "tokens of a sequence (as many as the model takes)")
      ->type_name("N");
  app.add_option("--strategy", flags.strategy, join(known_strategies()) + " (auto)")->type_name("NAME");
  app.add_option("--precision", flags.precision, "32-true, bf16-mixed, bf16-true, ... (32-true)")->type_name("NAME");
  app.add_option("--optimizer", flags.optimizer, join(known_memory_optimizers()) + " (adam)")->type_name("NAME");
  app.add_option("--devices,--world-size", flags.devices, "ranks (1)")->type_name("N");
  app.add_option("--accumulate", flags.accumulate, "batches of one optimizer step (1)")->type_name("N");
  app.add_option("--accelerator", flags.accelerator, "whose kernels and allocator; it need not be here (cuda)")
      ->type_name("cuda|cpu");
  app.add_flag("--checkpointing", flags.checkpointing, "activations of blocks are computed again in backward");
  app.add_flag("--offload", flags.offload, "state in host memory, as far as the strategy can do it");
  app.add_flag("--ladder", flags.ladder, "the whole ladder, from 32-true on one device to all techniques");
  app.add_flag("--csv", flags.csv, "bytes, as CSV");
  app.add_flag("--json", flags.json, "bytes, as JSON");
  app.add_option("--plot", flags.plot, "draw the peaks")->type_name("FILE.svg|FILE.png");
  app.add_option("--timeline", flags.timeline, "draw the memory over the step (of the last row)")
      ->type_name("FILE.svg|FILE.png");
  if (!parse_flags(app, words)) return false;
  complete(flags, app);
  // The loss of a decoder is walked portion by portion: beyond that an answer would take minutes.
  check_number("--batch", flags.batch, is_decoder(flags.model) ? (1 << 24) / flags.sequence_length : 1 << 24);
  check_number("--devices", flags.devices, 1 << 20);
  check_number("--accumulate", flags.accumulate, 1 << 20);
  const auto check_word = [](const char* flag, const std::string& word, const std::vector<std::string>& known) {
    if (std::find(known.begin(), known.end(), word) == known.end()) fail_unknown("levin memory", flag, word, known);
  };
  check_word("--accelerator", flags.accelerator, {"cuda", "gpu", "cpu"});
  check_word("--strategy", flags.strategy, known_strategies());
  check_word("--optimizer", flags.optimizer, known_memory_optimizers());
  for (const auto& [flag, path] : {std::pair("--plot", flags.plot), std::pair("--timeline", flags.timeline)})
    LEVIN_CHECK(path.empty() || path.ends_with(".svg") || path.ends_with(".png"), "[levin memory] ", flag, " \"", path,
                "\" must end with .svg or .png");
  LEVIN_CHECK(!flags.csv || !flags.json, "[levin memory] --csv and --json exclude each other");
  return true;
}

MemoryQuestion question_of(const MemoryFlags& flags) {
  return {.strategy = flags.strategy,
          .precision = flags.precision,
          .optimizer = flags.optimizer,
          .world_size = static_cast<int>(flags.devices),
          .offload = flags.offload,
          .device = flags.accelerator == "cpu" ? at::kCPU : at::kCUDA,
          .checkpoint_blocks = flags.checkpointing,
          .accumulate = static_cast<int>(flags.accumulate)};
}

std::string row_name(const MemoryQuestion& question) {
  const auto strategy = resolve_strategy_name(question.strategy, question.world_size);
  auto name = question.precision;
  if (question.world_size > 1 || strategy != "single_device") name += " " + strategy;
  if (question.world_size > 1) name += fmt::format(" x{}", question.world_size);
  if (question.checkpoint_blocks) name += " checkpointing";
  if (question.offload && !strategy.ends_with("_offload")) name += " offload";
  return name;
}

/// From the plainest way to train to all that there is, each rung with one technique more.
std::vector<MemoryRow> ladder_of(const MemoryFlags& flags) {
  auto plain = question_of(flags);
  plain.strategy = "auto", plain.world_size = 1;
  plain.offload = plain.checkpoint_blocks = false;
  std::vector<MemoryRow> rows;
  const auto add = [&](const MemoryQuestion& question, std::string label) {
    rows.push_back({row_name(question), question, std::move(label)});
    if (question.strategy == "auto") return;
    auto& rung = rows.back().rung;
    rung = "  + " + question.strategy;
    if (question.world_size > 1) rung += fmt::format(" x{}", question.world_size);
    if (question.offload) rung += " offload";
  };
  auto rung = plain;
  rung.precision = "32-true";
  add(rung, rung.precision);
  rung.precision = "bf16-mixed";
  add(rung, rung.precision);
  auto pure = plain;
  pure.precision = "bf16-true";
  add(pure, pure.precision);
  rung.checkpoint_blocks = true;
  add(rung, "checkpointing");
  rung.world_size = static_cast<int>(flags.devices);
  if (flags.devices > 1)
    for (const auto& [strategy, label] :
         std::initializer_list<std::pair<const char*, const char*>>{{"deepspeed_stage_1", "zero 1"},
                                                                    {"deepspeed_stage_2", "zero 2"},
                                                                    {"deepspeed_stage_3", "zero 3"},
                                                                    {"fsdp", "fsdp"}}) {
      rung.strategy = strategy;
      add(rung, label);
    }
  rung.strategy = "deepspeed_stage_2", rung.offload = true;
  add(rung, "zero 2, host");
  rung.strategy = "fsdp";
  add(rung, "fsdp, host");
  return rows;
}

MemoryEstimate estimate_images(const MemoryFlags& flags, const MemoryQuestion& question) {
  const auto make = [&] {
    return models::make(flags.model, {.num_classes = flags.num_classes, .image_size = flags.image_size});
  };
  const Batch batch{{"image", at::empty({flags.batch, 3, flags.image_size, flags.image_size}, at::kMeta)},
                    {"label", at::empty({flags.batch}, at::TensorOptions(at::kMeta).dtype(at::kLong))}};
  return estimate_memory(
      make, [](auto& model, const Batch& given) { return model(given["image"]); },
      [](const Tensor& logits, const Batch& given) { return cross_entropy(logits, given["label"]); }, batch, question);
}

/// A decoder computes its loss itself, without keeping the logits.
MemoryEstimate estimate_tokens(const MemoryFlags& flags, const MemoryQuestion& question) {
  const auto make = [&] { return models::decoder(models::decoder_options(flags.model)); };
  const auto tokens = at::TensorOptions(at::kMeta).dtype(at::kLong);
  const Batch batch{{"tokens", at::empty({flags.batch, flags.sequence_length}, tokens)},
                    {"targets", at::empty({flags.batch, flags.sequence_length}, tokens)}};
  return estimate_memory(
      make, [](auto& model, const Batch& given) { return model(given["tokens"], given["targets"]); },
      [](const Tensor& loss, const Batch&) { return loss; }, batch, question);
}

MemoryEstimate estimate_row(const MemoryFlags& flags, const MemoryQuestion& question) {
  return is_decoder(flags.model) ? estimate_tokens(flags, question) : estimate_images(flags, question);
}

/// "batches of 32 images of 224 pixels, adam"
std::string step_text(const MemoryFlags& flags) {
  const auto counted = [](int64_t n, const char* one) { return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s"); };
  const auto batch =
      is_decoder(flags.model)
          ? fmt::format("{} of {}", counted(flags.batch, "sequence"), counted(flags.sequence_length, "token"))
          : fmt::format("{} of {}", counted(flags.batch, "image"), counted(flags.image_size, "pixel"));
  return fmt::format("batches of {}, {}", batch, flags.optimizer);
}

std::vector<std::pair<const char*, int64_t>> columns_of(const MemoryEstimate& e) {
  return {{"parameters", e.parameters},
          {"gradients", e.gradients},
          {"optimizer", e.optimizer},
          {"activations", e.activations},
          {"temporary", e.temporary},
          {"peak", e.device_peak},
          {"host", e.host}};
}

void print_memory_table(const MemoryFlags& flags, const std::vector<MemoryRow>& rows) {
  const auto name_of = [](const MemoryRow& row) { return row.rung.empty() ? row.name : row.rung; };
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, name_of(row).size());
  std::string out = fmt::format("{}: {} parameters, {}, on each rank\n\n", flags.model,
                                format_count(static_cast<double>(rows[0].estimate.num_parameters)), step_text(flags));
  const auto column = [](const char* name) { return std::max<size_t>(std::string_view(name).size(), 7) + 2; };
  out += fmt::format("{:<{}}", "", width);
  for (const auto& [name, bytes] : columns_of({})) out += fmt::format("{:>{}}", name, column(name));
  out += "  in\n";
  for (const auto& row : rows) {
    out += fmt::format("{:<{}}", name_of(row), width);
    for (const auto& [name, bytes] : columns_of(row.estimate))
      out += fmt::format("{:>{}}", bytes == 0 ? "-" : format_bytes(static_cast<double>(bytes)), column(name));
    out += fmt::format("  {}\n", to_string(row.estimate.peak_part));
  }
  if (rows.size() == 1) {
    const auto& only = rows[0].estimate;
    out += fmt::format("\nAt most {} on the device, in {}; {} in host memory.\n",
                       format_bytes(static_cast<double>(only.device_peak)), to_string(only.peak_part),
                       only.host > 0 ? format_bytes(static_cast<double>(only.host)) : "nothing");
  }
  std::fputs(out.c_str(), stdout);
}

void print_memory_csv(const std::vector<MemoryRow>& rows) {
  std::string out = "configuration";
  for (const auto& [name, bytes] : columns_of({})) out += fmt::format(",{}", name);
  out += ",peak_part\n";
  for (const auto& row : rows) {
    out += row.name;
    for (const auto& [name, bytes] : columns_of(row.estimate)) out += fmt::format(",{}", bytes);
    out += fmt::format(",{}\n", to_string(row.estimate.peak_part));
  }
  std::fputs(out.c_str(), stdout);
}

void print_memory_json(const MemoryFlags& flags, const std::vector<MemoryRow>& rows) {
  nlohmann::ordered_json json{
      {"model", flags.model}, {"num_parameters", rows[0].estimate.num_parameters}, {"batch", flags.batch}};
  if (is_decoder(flags.model))
    json["sequence_length"] = flags.sequence_length;
  else
    json["image_size"] = flags.image_size;
  json["optimizer"] = flags.optimizer;
  json["accelerator"] = flags.accelerator;
  for (const auto& row : rows) {
    nlohmann::ordered_json item{{"name", row.name},
                                {"strategy", row.question.strategy},
                                {"precision", row.question.precision},
                                {"devices", row.question.world_size},
                                {"checkpointing", row.question.checkpoint_blocks},
                                {"offload", row.question.offload}};
    for (const auto& [name, bytes] : columns_of(row.estimate)) item[name] = bytes;
    item["peak_part"] = to_string(row.estimate.peak_part);
    json["rows"].push_back(std::move(item));
  }
  std::puts(json.dump(2).c_str());
}

}  // namespace

int memory(const std::vector<std::string>& words, const Args&) {
  MemoryFlags flags;
  if (!parse_memory(words, flags)) return 0;
  auto rows = flags.ladder ? ladder_of(flags) : std::vector<MemoryRow>{{"", question_of(flags), flags.precision}};
  if (!flags.ladder) rows[0].name = row_name(rows[0].question);
  for (auto& row : rows) {
    try {
      row.estimate = estimate_row(flags, row.question);
    } catch (const Error& error) {
      // Of a ladder, the rungs that are possible.
      if (!flags.ladder) throw;
      fmt::print(stderr, "left out: {}: {}\n", row.name, error.what());
      row.name.clear();
    }
  }
  std::erase_if(rows, [](const MemoryRow& row) { return row.name.empty(); });
  LEVIN_CHECK(!rows.empty(), "[levin memory] no rung of the ladder is possible");
  if (flags.json)
    print_memory_json(flags, rows);
  else if (flags.csv)
    print_memory_csv(rows);
  else
    print_memory_table(flags, rows);
  if (!flags.plot.empty()) {
    BarPlot plot{.title = fmt::format("{}: peak of device memory in a training step", flags.model),
                 .subtitle = flags.devices > 1 ? fmt::format("{}, on each of {} ranks", step_text(flags), flags.devices)
                                               : step_text(flags)};
    for (const auto& row : rows) {
      const auto peak = static_cast<double>(row.estimate.device_peak);
      plot.bars.push_back({row.label, peak, format_bytes(peak)});
    }
    write_drawing(flags.plot, picture_of(plot));
  }
  if (!flags.timeline.empty())
    write_drawing(flags.timeline, picture_of(rows.back().estimate.timeline, nullptr,
                                             flags.model + ", " + rows.back().name + ": predicted"));
  return 0;
}

}  // namespace levin::cli
