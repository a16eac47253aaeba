#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

namespace torch::nn {
class Module;
}

namespace levin {

/// A part of a model that is placed as one: a block, an embedding, a head. Those that share a parameter are one part.
struct PlacementUnit {
  /// "blocks.3"; of tied ones the first.
  std::string name;
  int64_t bytes = 0;
  /// Modules that it is tied to: "head" of "tokens".
  std::vector<std::string> tied = {};
  /// Units with the same number lie in the same memory on the host, which is counted once; -1: alone.
  int64_t shared = -1;
  /// It has layers of its own.
  bool is_block = false;
  /// What files of transformers call its parameters: of the module itself, then of those it is tied to. For maps.
  std::vector<std::vector<std::string>> file_names = {};
};

/// The units of a model, in the order of registration: its children, and the children of those that only hold others.
/// Tensors may be without data (deferred, meta).
std::vector<PlacementUnit> placement_units(const torch::nn::Module& model);

/// Bytes that may be used of a place: "cuda:0", "cpu" or "disk".
struct MemoryBudget {
  std::string place;
  int64_t bytes = 0;
};

struct PlacementOptions {
  /// "auto" or "balanced": GPUs get equal shares, then come host memory and disk. "sequential": a GPU is filled before
  /// the next. "cpu": all in host memory.
  std::string device_map = "auto";
  /// Where units compute that are in host memory or on the disk. On the CPU those of "cpu" are where they compute.
  c10::Device device = c10::kCPU;
  /// In the order in which places are filled. A disk that is not named is without limit and comes last.
  std::vector<MemoryBudget> max_memory = {};
  /// Bytes of the device that are not for weights: cache, activations.
  int64_t workspace = 0;
  /// Units that are streamed need room for that many of them on the device: one that computes, one that comes.
  int64_t buffers = 2;
};

/// Where every unit of a model lies.
struct WeightPlacement {
  c10::Device device = c10::kCPU;
  std::vector<PlacementUnit> units = {};
  /// Of each unit: "cuda:0", "cpu", "disk".
  std::vector<std::string> places = {};
  int64_t buffers = 2;

  /// Whether the unit comes to the device for each of its calls.
  bool streams(size_t unit) const;
  /// Weights of a place; those that units share in host memory once.
  int64_t bytes_at(std::string_view place) const;
  /// What one pass brings to the device.
  int64_t streamed_bytes() const;
  /// On the device, for those that come.
  int64_t buffer_bytes() const;
  /// Lines for people: "cuda:0  3.45 GB  tokens, blocks.0-3, norm, head".
  std::string describe() const;
};

/// Places units by size, as accelerate's infer_auto_device_map and get_balanced_memory do with modules that must not
/// be split: in order, never back to a place before. Unlike there
/// - nothing is reserved where all units fit; else room for `buffers` of the largest that is left;
/// - units of less than a hundredth of the largest (norms) are on the device.
/// An Error when a word or a place is not known, or when the device has no room for the buffers.
WeightPlacement place_units(std::vector<PlacementUnit> units, const PlacementOptions& options);

/// An Error when a place has less room than what is to be there.
void check_room(const WeightPlacement& placement, const PlacementOptions& options);

/// The same from a map of module names to places, as `device_map` of transformers: {"tokens": 0, "blocks": "cpu",
/// "": "disk"}. The longest name counts. Names are those of our modules, or of transformers' where units know
/// them: {"transformer.h.3": "cpu"}. An Error when a unit has no place or a name no unit.
WeightPlacement placement_from_map(std::vector<PlacementUnit> units,
                                   const std::vector<std::pair<std::string, std::string>>& map,
                                   const PlacementOptions& options);
/// The map in the text of a JSON object. `where` begins the errors.
std::vector<std::pair<std::string, std::string>> read_device_map(std::string_view json, const std::string& where);

}  // namespace levin
