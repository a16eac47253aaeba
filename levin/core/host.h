#pragma once

#include <string>

namespace levin {

/// The name of this machine; "localhost" when it has none.
std::string host_name();

}  // namespace levin
