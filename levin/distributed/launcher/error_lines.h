#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "levin/distributed/launcher/output_relay.h"

namespace levin::detail {

/// An error line that a relay holds.
struct HeldError {
  int rank;
  std::reference_wrapper<OutputRelay> relay;
};

/// Releases all that is held, in the order in which it came. A line that several ranks hold is shown once, with their
/// numbers: "[ranks 0-3] error: ...". `shown` counts the ranks of every line; `skip_shown`: those that it has are not
/// shown again.
void show_errors(std::span<const HeldError> held, Console& console, std::map<std::string, size_t>& shown,
                 bool skip_shown);

}  // namespace levin::detail
