#pragma once

#include "levin/planner/search.h"
#include "levin/plots/drawing.h"

namespace levin::planner {

/// A plan as a picture: which ranks and nodes have which stage, the pipeline of a step as the simulator plays it, where
/// the time goes, and the memory of the fullest rank. Large meshes are drawn in part, and the picture says so.
Drawing picture_of(const PlanQuestion& question, const Plan& plan);

}  // namespace levin::planner
