#pragma once

#include <functional>
#include <string>
#include <vector>

#include "levin/distributed/collective.h"

namespace levin::detail {

/// Runs what every rank does for itself, without talking to the others, and returns when all have done it. When it
/// fails on any of them, all throw the same line, with the rank when it was not everyone's.
void together(Collective& group, const std::function<void()>& step);
/// The same for a step that makes a text: all texts, by rank, on every rank.
std::vector<std::string> gather_together(Collective& group, const std::function<std::string()>& step);

}  // namespace levin::detail
