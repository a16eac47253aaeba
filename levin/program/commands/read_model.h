#pragma once

#include <optional>
#include <string>

#include "levin/generate/placed_model.h"
#include "levin/models/folder.h"
#include "levin/program/commands/placement_flags.h"

namespace levin::cli {

/// Opens a model folder with a progress bar, its weights where `placement` says; its notes are printed. `command`
/// ("levin serve") begins the errors.
models::LanguageModel read_model(const std::string& command, const std::string& folder, models::OpenModelOptions asked,
                                 const PlacementFlags& flags = {},
                                 const std::optional<WeightPlacement>& placement = {});

}  // namespace levin::cli
