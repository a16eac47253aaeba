#pragma once

#include <functional>
#include <string>

namespace levin::testing {

/// The message of the levin::Error that f throws; "no error" when it throws nothing. Another exception passes through.
/// A message that is not one line of the form "[where] what" fails the test.
std::string error_of(const std::function<void()>& f);

}  // namespace levin::testing
