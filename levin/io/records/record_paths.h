#pragma once

#include <string>

#include "levin/io/records/record_formats.h"

namespace levin::detail {

/// The files that a path means: itself, or those of its pattern, sorted by number or name. "{000..146}" counts, "{a,b}"
/// lists, "*", "?" and "[...]" stand for what is there. Every file named is there, or it is an Error that says which is
/// not and what is near.
Paths expand_record_paths(const std::string& path);

/// "{000..146}" and "{a,b}" written out, in their order.
std::vector<std::string> expand_braces(const std::string& path);

}  // namespace levin::detail
