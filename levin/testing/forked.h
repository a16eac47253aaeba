#pragma once

#include <functional>
#include <string>

namespace levin::testing {

/// What a forked child of this process says: what `body` returns, "error: " and the line of its exception, or "ended by
/// signal N". A child that hangs dies of SIGALRM (14) after a minute.
std::string in_a_child(const std::function<std::string()>& body);

}  // namespace levin::testing
