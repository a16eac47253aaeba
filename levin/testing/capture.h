#pragma once

#include <functional>
#include <string>

namespace levin::testing {

/// What f writes to standard output, or to standard error. An exception of f passes through.
std::string captured_stdout(const std::function<void()>& f);
std::string captured_stderr(const std::function<void()>& f);

}  // namespace levin::testing
