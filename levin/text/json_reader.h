#pragma once

#include <string_view>

namespace levin::text {

/// An Error when JSON is nested deeply. Asked before it is parsed: every level costs memory, and is deleted by a call.
void check_json_depth(std::string_view text, std::string_view name);

}  // namespace levin::text
