#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace levin::report {

/// From which events each number of a trace comes, by its key in the JSON.
const std::vector<std::pair<std::string_view, std::string_view>>& number_sources();

}  // namespace levin::report
