#include "levin/strategies/gemini/chunk_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

ChunkPlan plan_in_order(std::span<const ChunkParam> params, std::span<const size_t> order, int64_t chunk_size,
                        int ranks) {
  LEVIN_CHECK(chunk_size > 0, "[colossalai] chunk_size must be positive, not ", chunk_size);
  ChunkPlan plan;
  plan.chunk_size = (chunk_size + ranks - 1) / ranks * ranks;
  plan.ranks = ranks;
  plan.chunk_of.assign(params.size(), -1);
  std::map<const void*, int> placed;
  std::map<std::pair<int, c10::ScalarType>, int> open;
  const auto add_chunk = [&](const ChunkParam& param, int64_t capacity, bool own) {
    PlannedChunk chunk;
    chunk.dtype = param.dtype;
    chunk.capacity = capacity;
    chunk.own = own;
    plan.chunks.push_back(std::move(chunk));
    return static_cast<int>(plan.chunks.size()) - 1;
  };
  for (const auto index : order) {
    const auto& param = params[index];
    if (const auto tied = placed.find(param.key); param.key && tied != placed.end()) {
      plan.chunk_of[index] = tied->second;
      continue;
    }
    const auto numel = param.padded_numel(ranks);
    int target = 0;
    if (numel > plan.chunk_size) {
      target = add_chunk(param, (numel + ranks - 1) / ranks * ranks, true);
    } else {
      const auto found = open.find({param.section, param.dtype});
      if (found != open.end() && plan.chunks[found->second].occupied + numel <= plan.chunk_size)
        target = found->second;
      else
        target = open[{param.section, param.dtype}] = add_chunk(param, plan.chunk_size, false);
    }
    auto& chunk = plan.chunks[target];
    chunk.params.push_back(index);
    chunk.offsets.push_back(chunk.occupied);
    chunk.occupied += numel;
    chunk.utilized += param.numel();
    plan.chunk_of[index] = target;
    if (param.key) placed[param.key] = target;
  }
  return plan;
}

}  // namespace

ChunkPlan plan_chunks(std::span<const ChunkParam> params, int64_t chunk_size, int ranks) {
  std::vector<size_t> order(params.size());
  std::iota(order.begin(), order.end(), size_t{0});
  return plan_in_order(params, order, chunk_size, ranks);
}

ChunkPlan plan_chunks_by_use(std::span<const ChunkParam> params, std::span<const std::string> used, int64_t chunk_size,
                             int ranks) {
  std::map<std::string, size_t> first;
  for (size_t i = 0; i < used.size(); ++i) first.emplace(used[i], i);
  const auto turn = [&](size_t index) {
    const auto found = first.find(params[index].name);
    return found == first.end() ? used.size() : found->second;
  };
  std::vector<size_t> order(params.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return turn(a) < turn(b); });
  return plan_in_order(params, order, chunk_size, ranks);
}

std::string ChunkPlan::describe() const {
  int64_t capacity = 0;
  int64_t utilized = 0;
  int64_t own = 0;
  for (const auto& chunk : chunks) {
    capacity += chunk.capacity;
    utilized += chunk.utilized;
    own += chunk.own;
  }
  const auto used = capacity ? 100.0 * static_cast<double>(utilized) / static_cast<double>(capacity) : 100.0;
  auto text = fmt::format("{} chunks of {} elements, {:.1f} % used", chunks.size(), chunk_size, used);
  if (own) text += fmt::format(" ({} of them larger, for one parameter each)", own);
  return text;
}

int64_t valid_elements(const PlannedChunk& chunk, std::span<const ChunkParam> params, int ranks, int rank) {
  int64_t count = 0;
  for (const auto index : chunk.params) {
    const auto& param = params[index];
    const auto rows = param.sizes.empty() ? 1 : param.sizes[0];
    if (rows == 0) continue;
    const auto each = (rows + ranks - 1) / ranks;
    const auto mine = std::clamp<int64_t>(rows - each * rank, 0, each);
    count += mine * (param.numel() / rows);
  }
  return count;
}

}  // namespace levin::detail
