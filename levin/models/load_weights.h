#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "levin/io/weights/weights.h"

namespace levin::models {

struct LoadWeightsOptions {
  /// Names that are missing or not expected are an Error. A wrong shape always is one.
  bool strict = true;
  /// How the file calls its tensors: "torchvision", "timm", "huggingface", "levin", "same" (as the module does), or
  /// "auto".
  std::string naming = "auto";
  /// Patterns ("heads.*") of names, as the module has them, that are left as they are.
  std::vector<std::string> ignore = {};
  /// Position embeddings of another grid of patches are stretched to the module's, as torchvision does it.
  bool interpolate_positions = false;
  /// Taken from the beginning of the file's names, where it is: "net." for the `net` of a Lightning module. Without
  /// one, the "module." of DistributedDataParallel is taken away where all names have it.
  std::string strip_prefix = {};
  /// The part of a file of torch.save; see WeightOptions.
  std::string root = "auto";
};

/// What was done. Names are the module's; `unexpected` are those of the file that found no place.
struct LoadWeightsReport {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> ignored;
  std::vector<std::string> interpolated;
  /// Of the file: "timm"; empty when its names were taken as they are.
  std::string naming;
  /// Tensors whose dtype was not the module's.
  int64_t converted = 0;
};

/// Copies the tensors of a weight file (.safetensors, .pth, an index, a folder: see WeightFile) into a module by name,
/// all or nothing: names and shapes are checked and all data are read before the first tensor is changed. Dtype and
/// device stay the module's. Of a tied tensor any one name is enough.
///
///     auto model = levin::models::vit_b_16({.num_classes = 10});
///     levin::models::load_weights(*model, "vit_b_16.pth", {.ignore = {"heads.*"}});
LoadWeightsReport load_weights(torch::nn::Module& module, const std::filesystem::path& path,
                               const LoadWeightsOptions& options = {});

/// Writes the parameters and buffers of a module, whole or not at all: .safetensors, or .pth, .pt and .bin as
/// torch.save does, by the name of the file. The same model in Python loads it strictly.
void save_weights(const torch::nn::Module& module, const std::filesystem::path& path);

/// Position embeddings [1, 1 + n * n, D] stretched to [1, tokens, D]; the first token stays as it is.
Tensor interpolate_positions(const Tensor& embedding, int64_t tokens);

}  // namespace levin::models
