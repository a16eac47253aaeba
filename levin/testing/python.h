#pragma once

#include <optional>
#include <string>

namespace levin::testing {

/// A Python that imports these modules ("torch, safetensors"), for tests in which other programs read what Levin wrote:
/// the one that LEVIN_PEER_PYTHON names, unchecked, or python3. Nothing where there is none; the test is then skipped.
std::optional<std::string> python_with(const std::string& modules);

}  // namespace levin::testing
