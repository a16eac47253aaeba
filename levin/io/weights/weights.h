#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levin/io/weights/safetensors.h"

namespace levin {

namespace detail {
class OpenWeights;
}

/// One tensor of a weight file.
struct WeightEntry {
  std::string name;
  /// "float32", "bfloat16"; for a type that torch lacks as the file calls it ("F4").
  std::string dtype;
  /// Undefined for a type that torch lacks.
  c10::ScalarType type = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  /// Another name of a tensor that the file keeps once.
  bool is_alias = false;
  /// Rows of the first dimension lie one after the other in the file: read_rows reads nothing else.
  bool by_rows = true;

  int64_t numel() const;
};

struct WeightOptions {
  /// The part of a file of torch.save to take, such as "state_dict"; "auto" finds it (see TorchFileOptions). Empty: all
  /// of the file, with its names as they are.
  std::string root = "auto";
  /// Takes "module." from the names of a file of torch.save where all of them have it: DistributedDataParallel and
  /// DataParallel put it there. Not for an empty root.
  bool strip_module = true;
};

/// The tensors of a model, however they are kept: a .safetensors file, a file of torch.save (.pt, .pth, .bin, .ckpt),
/// an index of several of either (model.safetensors.index.json, pytorch_model.bin.index.json), or a folder with one of
/// these, such as a checkpoint of Levin or a model from a hub. What a file is, is told by its content, not by its name.
///
///     levin::WeightFile weights("resnet50.pth");
///     for (const auto& entry : weights.entries()) Tensor t = weights.read(entry.name);
class WeightFile {
 public:
  explicit WeightFile(const std::filesystem::path& path, const WeightOptions& options = {});

  /// In the order of the file, or of the names where there are several files.
  const std::vector<WeightEntry>& entries() const { return entries_; }
  /// Null when there is none of that name.
  const WeightEntry* find(std::string_view name) const;
  /// The entry of that name; an Error with the nearest name when there is none.
  const WeightEntry& at(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  /// A new CPU tensor.
  Tensor read(std::string_view name) const;
  /// Several at once: tensors that share memory in the file (tied weights) share it here. So do those that
  /// safetensors.torch.save_model has left out: it names them in the metadata.
  NamedTensors read(const std::vector<std::string>& names) const;
  /// Into a contiguous CPU tensor of that shape and dtype.
  void read_into(std::string_view name, Tensor& into) const;
  /// The same for rows of the first dimension from `first` on, as many as `into` has.
  void read_rows(std::string_view name, int64_t first, Tensor& into) const;

  /// The name of a format (weight_formats.h): "safetensors", "torch".
  std::string_view format() const { return format_; }
  const std::filesystem::path& path() const { return path_; }
  /// The files that hold the tensors.
  const std::vector<std::filesystem::path>& files() const;
  /// What a file says about itself: the metadata of safetensors, the plain values at the top of a torch file.
  const std::map<std::string, std::string>& metadata() const;
  /// The part of a torch file that was taken; empty for all of it.
  const std::string& root() const;
  /// What was taken from the beginning of all names: "module." or nothing.
  const std::string& stripped() const;
  uint64_t bytes() const;

 private:
  std::filesystem::path path_;
  std::string_view format_;
  std::shared_ptr<const detail::OpenWeights> open_;
  std::vector<WeightEntry> entries_;
  std::unordered_map<std::string_view, size_t> index_;
};

/// Opens whatever holds weights.
inline WeightFile open_weights(const std::filesystem::path& path, const WeightOptions& options = {}) {
  return WeightFile(path, options);
}

/// How torch calls a type: "float32".
std::string dtype_name(c10::ScalarType type);
/// The type of that name ("float32", "bfloat16", "float16", ...); an Error with the nearest when there is none.
c10::ScalarType dtype_from_name(std::string_view operation, std::string_view name);

}  // namespace levin
