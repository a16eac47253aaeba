#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "levin/generate/placement.h"
#include "levin/models/folder.h"

namespace levin {

/// The units of a language model, which know their names in files of transformers.
std::vector<PlacementUnit> placement_units(const models::LanguageModel& model);

struct PlaceModelOptions {
  /// Where units of "disk" are written that cannot be read from the files of the model as they are: quantized ones,
  /// and all of a model that is in memory. The files have no names and are gone with the process. Empty: none is.
  std::filesystem::path offload_folder = {};
};

/// Moves the units of a model to their places: those of the device to the device, the others to pinned host memory
/// or to the disk, from where they are streamed when they compute (levin/nn/weight_stream.h). Deferred units are
/// initialized one by one, so that no more than one is in memory beside its place. The model is not trained after it.
///
///     auto units = placement_units(*model);
///     auto placement = place_units(units, {.device = at::kCUDA, .max_memory = {{"cuda:0", 8LL << 30}}});
///     place_model(model, placement);
///     auto rows = generate(model, prompts, options);
void place_model(models::Decoder& model, const WeightPlacement& placement, const PlaceModelOptions& options = {});

/// Opens the model of a folder, every unit at its place. Units of "disk" are read from the files of the model at each
/// pass, without a copy of them. The device of the options is that of the placement.
models::LanguageModel open_placed_model(const std::filesystem::path& folder, models::OpenModelOptions options,
                                        const WeightPlacement& placement, const PlaceModelOptions& place = {});

/// Budgets for all places: those that were asked for, and for others 90 % of what is free: of the device, and of host
/// memory.
std::vector<MemoryBudget> memory_budgets(c10::Device device, std::vector<MemoryBudget> asked = {});

/// What a call of generate needs on the device beside weights.
struct DecodeSizes {
  int64_t rows = 1;
  /// Tokens of a row, prompt and new ones.
  int64_t capacity = 1;
  int64_t prefill_chunk = 512;
};
/// Bytes of the cache, and of what a pass computes.
int64_t decode_workspace(const models::LanguageModel& model, const DecodeSizes& sizes, c10::Device device);

}  // namespace levin
