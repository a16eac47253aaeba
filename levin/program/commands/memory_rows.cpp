#include "levin/program/commands/memory_rows.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "levin/models/registry.h"
#include "levin/nn/functional.h"
#include "levin/program/commands/memory_language.h"
#include "levin/program/flags.h"
#include "levin/strategies/choice.h"

namespace levin::cli {
namespace {

MemoryQuestion question_of(const MemoryStep& step) {
  return {.strategy = step.strategy,
          .precision = step.precision,
          .optimizer = step.optimizer,
          .world_size = static_cast<int>(step.devices),
          .offload = step.offload,
          .device = step.accelerator == "cpu" ? at::kCPU : at::kCUDA,
          .checkpoint_blocks = step.checkpointing,
          .accumulate = static_cast<int>(step.accumulate)};
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

MemoryRow rung_of(const MemoryQuestion& question, std::string label) {
  MemoryRow row{row_name(question), question, std::move(label)};
  if (question.strategy == "auto") return row;
  row.rung = "  + " + question.strategy;
  if (question.world_size > 1) row.rung += fmt::format(" x{}", question.world_size);
  if (question.offload) row.rung += " offload";
  return row;
}

MemoryEstimate estimate_images(const MemoryStep& step, const MemoryQuestion& question) {
  const auto make = [&] {
    return models::make(step.model, {.num_classes = *step.num_classes, .image_size = *step.image_size});
  };
  const Batch batch{{"image", at::empty({step.batch, 3, *step.image_size, *step.image_size}, at::kMeta)},
                    {"label", at::empty({step.batch}, at::TensorOptions(at::kMeta).dtype(at::kLong))}};
  return estimate_memory(
      make, [](auto& model, const Batch& given) { return model(given["image"]); },
      [](const Tensor& logits, const Batch& given) { return cross_entropy(logits, given["label"]); }, batch, question);
}

}  // namespace

int64_t MemoryStep::longest_text() const {
  return longest_text_of(model);
}

bool MemoryStep::is_text() const {
  return longest_text() > 0;
}

std::string MemoryStep::to_string() const {
  const auto samples = is_text() ? counted(batch, "sequence") + " of " + counted(sequence_length.value_or(0), "token")
                                 : counted(batch, "image") + " of " + counted(image_size.value_or(0), "pixel");
  auto text = fmt::format("batches of {}, {}", samples, optimizer);
  if (!quantize.empty()) text += ", linear layers in " + quantize;
  if (lora > 0) text += fmt::format(", adapters of rank {}", lora);
  return text;
}

std::vector<MemoryRow> memory_rows(const MemoryStep& step) {
  auto question = question_of(step);
  const auto layout = state_layout(question.strategy, question.world_size, question.offload);
  const int ranks = layout.pipeline ? layout.pipeline->ranks : 1;
  if (ranks == 1) return {{row_name(question), question, step.precision}};
  std::vector<MemoryRow> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    question.pipeline_rank = rank;
    rows.push_back(
        {fmt::format("{} pipeline rank {}", row_name(question), rank), question, fmt::format("pipeline {}", rank)});
  }
  return rows;
}

std::vector<MemoryRow> memory_ladder(const MemoryStep& step) {
  auto plain = question_of(step);
  plain.strategy = "auto", plain.world_size = 1;
  plain.offload = plain.checkpoint_blocks = false;
  std::vector<MemoryRow> rows;
  for (const char* precision : {"32-true", "bf16-mixed", "bf16-true"}) {
    plain.precision = precision;
    rows.push_back(rung_of(plain, precision));
  }
  auto rung = plain;
  rung.precision = "bf16-mixed";
  rung.checkpoint_blocks = true;
  rows.push_back(rung_of(rung, "checkpointing"));
  rung.world_size = static_cast<int>(step.devices);
  const std::vector<std::pair<const char*, const char*>> sharded{{"deepspeed_stage_1", "zero 1"},
                                                                 {"deepspeed_stage_2", "zero 2"},
                                                                 {"deepspeed_stage_3", "zero 3"},
                                                                 {"fsdp", "fsdp"}};
  for (const auto& [strategy, label] : sharded) {
    if (step.devices == 1) break;
    rung.strategy = strategy;
    rows.push_back(rung_of(rung, label));
  }
  rung.offload = true;
  rung.strategy = "deepspeed_stage_2";
  rows.push_back(rung_of(rung, "zero 2, host"));
  rung.strategy = "fsdp";
  rows.push_back(rung_of(rung, "fsdp, host"));
  return rows;
}

MemoryEstimate estimate_row(const MemoryStep& step, const MemoryQuestion& question) {
  return step.is_text() ? estimate_language(step, question) : estimate_images(step, question);
}

}  // namespace levin::cli
