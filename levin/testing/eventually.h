#pragma once

#include <chrono>
#include <functional>

namespace levin::testing {

/// Whether a condition becomes true within a time: asked again and again, for what other processes and threads do.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit = std::chrono::minutes(1));

}  // namespace levin::testing
