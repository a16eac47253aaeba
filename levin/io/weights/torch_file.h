#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "levin/core/state_dict.h"
#include "levin/io/weights/pickle.h"

namespace levin {

namespace detail {
class TorchStorages;
}

using at::Tensor;

/// One tensor of a file, as its pickle declares it: a view of a storage. Offset and strides count elements.
struct TorchEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  /// Tensors of one storage share memory. Its key in the file.
  std::string storage;

  uint64_t bytes() const;
  bool is_contiguous() const;
};

struct TorchFileOptions {
  /// The part of the file to take: "state_dict" for the weights of a Lightning checkpoint. Empty: all of it. "auto":
  /// the state_dict or model_state_dict where there is one, the model or module of a file that has no tensors above
  /// it, else all.
  std::string root = {};
};

/// Who wrote a file of torch.save, and what of it can be read.
enum class TorchFileKind {
  /// torch.save of Python: a state dict, or a tree.
  pickle,
  /// torch::save of LibTorch: a module, an optimizer, tensors, or an OutputArchive that a program filled. It is a
  /// TorchScript archive whose classes are containers.
  libtorch,
  /// torch.jit.save: a program. Its tensors are read, its code is not.
  script,
};

/// A file of torch.save (.pt, .pth, .bin, .ckpt), open for reading: a zip archive, what torch wrote before 1.6, or a
/// TorchScript archive, which LibTorch's torch::save writes. Its pickle is read by the closed reader of
/// weights/pickle.h: it can make tensors and plain values, and nothing is ever run. Each tensor is checked against its
/// storage when the file is opened; data are read tensor by tensor, when asked for.
///
///     levin::TorchFile file("resnet50.pth");
///     Tensor weight = file.read("fc.weight");
///
/// Tensors in nested dicts and lists are named by the way to them: "state_dict.net.weight", "param_groups.0.lr".
class TorchFile {
 public:
  explicit TorchFile(const std::filesystem::path& path, const TorchFileOptions& options = {});

  /// In the order of the file.
  const std::vector<TorchEntry>& entries() const { return entries_; }
  /// The values of the file, below the root; a tensor is an object ("a tensor").
  const pickle::Value& tree() const { return tree_; }
  const std::filesystem::path& path() const;
  /// The part that was taken; empty for all of it.
  const std::string& root() const { return options_.root; }
  TorchFileKind kind() const { return kind_; }
  /// Numbers and texts that stand at the top of the file, for people: {"epoch", "3"}. Those of an argparse.Namespace
  /// are there too: {"args.lr", "0.1"}.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Null when there is none of that name.
  const TorchEntry* find(std::string_view name) const;
  /// The entry of that name; an Error with the nearest name when there is none.
  const TorchEntry& at(std::string_view name) const;

  /// A new CPU tensor with memory of its own, and the strides of the file.
  Tensor read(std::string_view name) const;
  /// Several at once: those that share a storage in the file share memory here.
  std::vector<std::pair<std::string, Tensor>> read(const std::vector<std::string>& names) const;
  /// Rows of the first dimension of a contiguous entry, from `first` on: as many as `into` has, a contiguous CPU tensor
  /// of that dtype.
  void read_rows(const TorchEntry& entry, int64_t first, Tensor& into) const;
  /// Compares the checksum of the tensor's storage; an Error when it differs. Files from before 1.6 have none.
  void verify(const TorchEntry& entry) const;

 private:
  void read_bytes(const TorchEntry& entry, uint64_t begin, Tensor& into) const;

  std::shared_ptr<const detail::TorchStorages> storages_;
  TorchFileOptions options_;
  bool swapped_ = false;
  TorchFileKind kind_ = TorchFileKind::pickle;
  std::map<std::string, std::string> metadata_;
  pickle::Value tree_;
  std::vector<TorchEntry> entries_;
  std::unordered_map<std::string_view, size_t> index_;
};

/// Writes a file that torch.load(weights_only=True) reads as an OrderedDict, whole or not at all. Tensors that share
/// memory share it in the file; they may be on any device.
void write_torch_file(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& tensors);
/// The same for a tree: dicts, lists, numbers, texts and tensors.
void write_torch_tree(const std::filesystem::path& path, const StateDict& tree);
/// The same for an optimizer's state_dict(), whose parameters are numbers in Python and not texts:
/// {"state": {0: {...}}, "param_groups": [...]}.
void write_torch_optimizer(const std::filesystem::path& path, const StateDict& state);

/// Whether a file begins as one of torch.save does; also for the tar of torch before 0.1.10, which TorchFile refuses.
bool is_torch_file(const std::filesystem::path& path);

namespace detail {
/// Whether a value is the state of an optimizer as Python has it: a dict with "state" and "param_groups".
bool is_optimizer_state(const pickle::Value* value);
/// The same as LibTorch's torch::save writes it.
bool is_libtorch_optimizer(const pickle::Value* value);

/// How torch calls a type: its storage ("FloatStorage"; null when there is none) and itself ("float32").
struct TorchType {
  c10::ScalarType type;
  const char* storage;
  const char* name;
};
std::span<const TorchType> torch_types();
}  // namespace detail

}  // namespace levin
