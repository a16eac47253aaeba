#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/core/state_dict.h"

namespace levin::detail {

/// The files of a checkpoint as text and back: state.json (the tree) and manifest.json (what must be there).
/// docs/checkpoint.md describes both.

inline constexpr int64_t kCheckpointVersion = 1;
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kStateFile = "state.json";

/// A piece of a tensor: `shape` of it from `start` on stands as `name` in `file`.
struct TensorPart {
  std::string file;
  std::string name;
  std::vector<int64_t> start;
  std::vector<int64_t> shape;
  std::string checksum;
};

/// A tensor of the state. One part when a full tensor was saved, more when ranks saved their shards.
struct TensorEntry {
  std::string id;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<TensorPart> parts;
};

struct FileEntry {
  std::string name;
  uint64_t bytes = 0;
  /// Of the content; for safetensors files of the header alone, as their tensors have their own.
  std::string checksum;
};

struct Manifest {
  int64_t version = kCheckpointVersion;
  std::string levin;
  std::string torch;
  int64_t world_size = 1;
  double saved_at = 0;
  std::vector<FileEntry> files;
  std::vector<TensorEntry> tensors;
};

/// An Error unless the parts are pieces of the tensor that neither overlap nor leave anything out.
void check_parts(const TensorEntry& tensor, const std::string& where);
std::string manifest_text(const Manifest& manifest);
/// An Error for anything but a manifest of this or an older format, whole and undamaged.
Manifest parse_manifest(const std::string& text, const std::string& where);

/// A tensor's place in a tree: names and list positions from the top.
using StatePath = std::vector<std::string>;
/// The tree as JSON; every tensor is replaced by the id that `place` gives.
std::string tree_text(const StateDict& state,
                      const std::function<std::string(const StatePath&, const at::Tensor&)>& place);

/// The tree of a state.json, parsed once, decoded name by name.
class Tree {
 public:
  Tree(const std::string& text, const std::string& where);
  ~Tree();
  Tree(Tree&&) noexcept;

  std::vector<std::string> keys() const;
  bool is_dict(std::string_view key) const;
  /// The value of a name; tensors come from `read`.
  StateValue decode(std::string_view key, const std::function<at::Tensor(const std::string& id)>& read) const;
  /// The same, with the place of each tensor (from the name at the top on).
  StateValue decode_at(std::string_view key,
                       const std::function<at::Tensor(const StatePath& path, const std::string& id)>& read) const;
  /// What a dict holds on its first level: names, and the tensors' ids (empty for what is none).
  std::vector<std::pair<std::string, std::string>> children(std::string_view key) const;

 private:
  struct Json;
  std::unique_ptr<Json> json_;
  std::string where_;
};

}  // namespace levin::detail
