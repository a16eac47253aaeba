#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::detail {

using at::Tensor;

/// What a tensor is like, without its values.
struct TensorSpec {
  bool defined = false;
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> sizes = {};

  static TensorSpec of(const Tensor& tensor);
  int64_t bytes() const;
  /// "float32 [4, 8]"
  std::string text() const;
  bool operator==(const TensorSpec&) const = default;
};

/// What a unit has returned: one spec for each tensor of its result, defined or not.
struct UnitResult {
  std::string unit;
  std::vector<TensorSpec> tensors;
  bool operator==(const UnitResult&) const = default;
};

/// What must be known of the way to a stage, before it can be run on its own: learned once for each shape of
/// micro-batches by the stage before, and told to this one.
struct StageShapes {
  /// Of all units that are called before the first one of the stage, in the order of the calls.
  std::vector<UnitResult> before;
  /// The tensors that the first unit of the stage is given.
  std::vector<TensorSpec> inputs;
  /// Which of them come from the stage before. The others (masks, angles of positions) are made on each rank.
  std::vector<bool> carried;
  /// The stage has been told.
  bool told = false;

  std::vector<TensorSpec> carried_specs() const;
  std::string to_text() const;
  static StageShapes from_text(const std::string& text);
};

/// A tensor of that kind that is nobody's value: NaN where it can be, so that whoever computes with it cannot overlook
/// it. `dense` has memory of its own; else all elements are one.
Tensor placeholder(const TensorSpec& spec, c10::Device device, bool dense);

}  // namespace levin::detail
