#include "levin/strategies/gemini/chunk_groups.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace levin::detail {

ChunkGroups group_in_chunks(const std::vector<GroupedParam>& params, size_t units, const GeminiOptions& options,
                            int ranks) {
  // What the root has is gathered all through a step; it shall not hold others' parameters there.
  std::vector<size_t> order(params.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_partition(order, [&](size_t i) { return params[i].unit == units; });
  std::vector<ChunkParam> placed;
  for (const auto i : order)
    placed.push_back({.name = params[i].name,
                      .sizes = params[i].sizes,
                      .dtype = params[i].dtype,
                      .section = params[i].unit == units ? 0 : 1});
  ChunkGroups result;
  auto chunk_size = options.chunk_size;
  if (placed.empty()) {
    chunk_size = ranks;
  } else if (chunk_size > 0) {
    check_chunk_size(chunk_size, placed, ranks);
  } else {
    constexpr double kMi = 1 << 20;
    const auto found = search_chunk_size(placed, {.range = static_cast<int64_t>(options.search_range_m * kMi),
                                                  .min_chunk = static_cast<int64_t>(options.min_chunk_size_m * kMi),
                                                  .interval = options.hidden_dim ? options.hidden_dim : 1024,
                                                  .ranks = ranks});
    chunk_size = found.elements;
    result.groups.stays_gathered = found.keep_gathered;
  }
  result.chunks = plan_chunks(placed, chunk_size, ranks);
  result.groups.needs.resize(units + 1);
  for (size_t chunk = 0; chunk < result.chunks.chunks.size(); ++chunk) {
    auto& group = result.groups.groups.emplace_back();
    group.name = fmt::format("chunk {}", chunk);
    group.dtype = result.chunks.chunks[chunk].dtype;
    for (const auto index : result.chunks.chunks[chunk].params) {
      group.params.push_back(order[index]);
      auto& needs = result.groups.needs[params[order[index]].unit];
      if (std::ranges::find(needs, chunk) == needs.end()) needs.push_back(chunk);
    }
  }
  return result;
}

}  // namespace levin::detail
