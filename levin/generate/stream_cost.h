#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "levin/generate/placed_model.h"

namespace levin {

/// Bytes per second from pinned host memory to a device: the best of some copies. 0 for the CPU.
double measured_link(c10::Device device, int64_t bytes = int64_t{64} << 20);

/// What streaming costs, and which batch makes up for it. A pass brings the same bytes whatever the batch is: tokens
/// per second grow with the batch, until the device computes as long as the weights take to come.
struct StreamCost {
  /// Of one pass.
  int64_t bytes = 0;
  double link_bytes_per_s = 0;
  /// Rows from which on computing takes as long as the link; none where the speed of the device is not known.
  std::optional<int64_t> hiding_batch = {};
  /// Rows whose cache fits, with weights on the device or streamed as they then would be; none where memory is no
  /// limit.
  std::optional<int64_t> fitting_batch = {};

  /// Of one pass; 0 where the link is not known.
  double seconds() const { return link_bytes_per_s > 0 ? static_cast<double>(bytes) / link_bytes_per_s : 0; }
  /// A line for people; `rows` decode together.
  std::string describe(int64_t rows) const;
};

/// `model` may be without data. `flops`: FLOP/s of the device for matrix products, 0 where it is not known.
StreamCost stream_cost(const models::LanguageModel& model, const WeightPlacement& placement,
                       const PlacementOptions& options, const DecodeSizes& sizes, double link_bytes_per_s,
                       double flops);

/// FLOP/s that a device reaches in matrix products of that dtype, about: half of what its maker says.
double expected_flops(c10::Device device, c10::ScalarType dtype);

}  // namespace levin
