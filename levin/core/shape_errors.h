#pragma once

#include <string>

namespace levin {

/// Explains, for the rest of the process, torch's errors about shapes that run_main prints and that name no module:
/// `clause` follows them.
void explain_shape_errors(const std::string& clause);

}  // namespace levin
