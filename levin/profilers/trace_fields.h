#pragma once

#include <cstdint>
#include <string_view>

namespace levin::detail {

/// The text of a field in a line of a trace as Kineto writes it: what follows `"name": `, up to a comma, or the quoted
/// text.
std::string_view trace_field(std::string_view line, std::string_view name);
double trace_number(std::string_view text);
/// Nanoseconds out of microseconds with up to three decimals, exact: a double cannot hold those of a clock.
int64_t trace_time(std::string_view text);
/// What the line of a kernel has.
inline constexpr std::string_view kKernelLine = "\"cat\": \"kernel\"";

}  // namespace levin::detail
