#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "levin/models/folder.h"
#include "levin/models/language/weight_plan.h"

/// Modules that are trained whole beside adapters (`modules_to_save` of PEFT), and their tensors in the adapter's file.
namespace levin::models::detail {

/// What PEFT puts before the names of transformers.
inline constexpr const char* kPeftPrefix = "base_model.model.";

/// A parameter of a module that is trained whole, and its names with the prefix of the architecture.
struct SavedParameter {
  std::string ours;
  Tensor tensor;
  WeightLayout layout = WeightLayout::kPlain;
  std::vector<std::string> names;
  /// Another name that files have: "embed_out.weight" of GPT-NeoX, whose module is now "lm_head".
  std::string also = {};
};

/// Those of the modules whose names end with one of the words, as PEFT finds them. A word that only meets a part of a
/// joined layer, a quantized layer or one with adapters is an Error.
std::vector<SavedParameter> saved_parameters(const LanguageModel& model, const std::vector<std::string>& words);

/// Puts the words that name something on `model.saved_modules`, and gives back the others. Nothing is trained yet. A
/// tied head of which one side is named is untied: PEFT trains a copy of that side.
std::vector<std::string> keep_modules(LanguageModel& model, const std::vector<std::string>& words);

/// The tensors of the adapter's file, by PEFT's names.
NamedTensors saved_tensors(const LanguageModel& model);
/// Plans the reading of these tensors; what is missing or mis-shaped is an Error. Names of the file that are used go to
/// `used`.
std::vector<PlannedWeight> plan_saved(const LanguageModel& model, const WeightFile& file,
                                      const std::vector<SavedParameter>& parameters, std::set<std::string>& used);

/// The ends of names of modules, to offer where a word is not known.
std::vector<std::string> module_words(const LanguageModel& model);

}  // namespace levin::models::detail
