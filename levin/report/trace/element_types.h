#pragma once

#include <string_view>

namespace levin::report {

/// Bytes of an element, by PyTorch's words for it in traces: those of C++ (float, c10::BFloat16, long int) and those of
/// collectives (Float, BFloat16, Long). 0 for others.
int bytes_of_type(std::string_view type);

}  // namespace levin::report
