#pragma once

#include <string>

#include "levin/generate/placed_model.h"
#include "levin/program/flags.h"

namespace levin::cli {

/// Flags of commands that place the weights of a model: --device-map, --max-memory, --offload-folder.
struct PlacementFlags {
  std::string device_map, max_memory, offload_folder;

  void describe(Flags& flags);
  /// Whether one was given.
  bool used() const { return !device_map.empty() || !max_memory.empty() || !offload_folder.empty(); }
  /// The device that is meant: what --device says, else the first GPU of --max-memory, else a GPU that is there.
  std::string device(const std::string& asked) const;
  /// Places the model, whose tensors may be without data, and tells where everything goes and what it costs. `command`
  /// ("levin generate") begins the errors.
  WeightPlacement place(const std::string& command, const models::LanguageModel& model, c10::Device device,
                        const DecodeSizes& sizes) const;
  /// Opens the model as it was placed. The device has no more than its budget of --max-memory: an allocation beyond
  /// fails.
  models::LanguageModel open(const std::string& command, const std::string& folder,
                             const models::OpenModelOptions& options, const WeightPlacement& placement) const;

 private:
  void limit(const std::string& command, c10::Device device) const;
  std::vector<MemoryBudget> budgets(const std::string& command) const;
};

}  // namespace levin::cli
