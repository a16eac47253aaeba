#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// tf.train.Example, as protobuf writes it: named lists of byte strings, floats or whole numbers.
namespace levin::detail {

/// Views point into what was parsed.
using TfValues = std::variant<std::vector<std::string_view>, std::vector<float>, std::vector<int64_t>>;

struct TfFeature {
  std::string_view name;
  TfValues values;
};

/// The features in the order of the file, a name that comes twice once, with the later values. Throws an Error that
/// gives only the reason ("the varint at byte 7 does not end") for the caller to place. Lists may be packed or not.
std::vector<TfFeature> parse_tf_example(std::string_view bytes);

/// Features must be sorted by name for the bytes to be those that TensorFlow's deterministic output has.
std::string write_tf_example(const std::vector<TfFeature>& features);

}  // namespace levin::detail
