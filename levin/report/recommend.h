#pragma once

#include <vector>

#include "levin/report/report.h"

namespace levin::report {

/// What to change, the most expensive first. A rule speaks only of what costs a noticeable part of a step.
std::vector<Recommendation> recommend(const TraceReport& report);

/// Adds what only several ranks show: a rank that the others wait for.
void recommend_together(const DistributedView& view, std::vector<TraceReport*>& ranks);

/// The step without one of its costs.
std::vector<WhatIf> estimate(const TraceReport& report);

}  // namespace levin::report
