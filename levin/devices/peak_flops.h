#pragma once

#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace levin {

/// Multiply-adds count as two. What the maker promises for dense matrix products in a dtype, in FLOP/s, by the name a
/// device has ("NVIDIA H200"); nothing for a device that is not in the table. `tf32`: float32 products may use TF32.
std::optional<double> peak_flops(std::string_view device_name, c10::ScalarType dtype, bool tf32 = false);

}  // namespace levin
