#pragma once

#include <cstdint>
#include <optional>

namespace levin {

/// Bytes of host memory that can still be had without swapping: what the system says, and what the container that this
/// process runs in allows. None where neither tells.
std::optional<int64_t> available_host_memory();

}  // namespace levin
