#pragma once

#include <vector>

#include "levin/strategies/gemini/chunk_plan.h"
#include "levin/strategies/options.h"
#include "levin/strategies/sharding/group_plan.h"

namespace levin::detail {

/// Parameters in chunks, each of which is a group.
struct ChunkGroups {
  ChunkPlan chunks;
  GroupPlan groups;
};

/// Searches for the size of chunks where the options leave it open.
ChunkGroups group_in_chunks(const std::vector<GroupedParam>& params, size_t units, const GeminiOptions& options,
                            int ranks);

}  // namespace levin::detail
