#pragma once

#include <string>
#include <vector>

namespace levin::cli {

/// Whether a name passes patterns such as "encoder.*"; those that begin with ! exclude. No patterns: everything does.
bool passes(const std::string& name, const std::vector<std::string>& patterns);

/// Whether a pattern speaks of names with their "module." prefix, which is stripped by default.
bool name_module_prefix(const std::vector<std::string>& patterns);

}  // namespace levin::cli
