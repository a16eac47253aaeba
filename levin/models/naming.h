#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin::models {

/// How the weights of a model are called elsewhere. Levin's models have torchvision's names; timm and Hugging Face's
/// transformers call the same tensors otherwise, and transformers keeps queries, keys and values apart.
///
///     auto naming = levin::models::detect_naming(names);                       // {"vit", "timm"}
///     auto plan = levin::models::plan_naming(names, naming.scheme, "torchvision");
///
/// Known: "torchvision", "timm", "huggingface", for the Vision Transformer and the ResNets (whose names timm shares
/// with torchvision), and "huggingface" and "levin" for decoders (models/decoder.h). "huggingface" are the names in the
/// files of ViTForImageClassification, ResNetForImageClassification, GPT2LMHeadModel and LlamaForCausalLM.
struct Naming {
  /// "vit", "resnet", "gpt2" or "llama"; empty when the names are of none.
  std::string architecture;
  std::string scheme;
  /// Names that the scheme does not have.
  std::vector<std::string> unknown;
};

/// All schemes.
std::span<const std::string> naming_schemes();

/// The scheme that knows most of the names. Empty when none knows half of them.
Naming detect_naming(std::span<const std::string> names);
/// The same when the scheme is known.
Naming detect_naming(std::span<const std::string> names, std::string_view scheme);

/// One tensor under its new name: the sources joined along their first dimension, and of that the part-th of `parts`;
/// `transposed` at last, where one side keeps its matrices as [in, out] and the other as [out, in].
struct RenamedWeight {
  std::string name;
  std::vector<std::string> sources;
  int64_t part = 0;
  int64_t parts = 1;
  bool transposed = false;
};

/// What the tensors of a file are called in another scheme, in their order. An Error for names that the first scheme
/// does not know, and for queries without their keys and values. Tensors that are no weights (the masks in old files of
/// GPT-2) are left out.
std::vector<RenamedWeight> plan_naming(std::span<const std::string> names, std::string_view from, std::string_view to);

/// The shape of a tensor with sources of these shapes; an Error when they cannot be joined or cut.
std::vector<int64_t> renamed_shape(const RenamedWeight& weight, std::span<const std::vector<int64_t>> sources);

}  // namespace levin::models
