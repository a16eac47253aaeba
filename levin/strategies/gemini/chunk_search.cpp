#include "levin/strategies/gemini/chunk_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

int64_t round_up_chunk(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

// Padded sizes, each parameter once, those that may share chunks in a row.
struct SearchedSizes {
  std::map<std::pair<int, c10::ScalarType>, std::vector<int64_t>> rows;
  int64_t total = 0;
  const ChunkParam* largest = nullptr;
  int64_t largest_numel = 0;
};

SearchedSizes sizes_to_place(std::span<const ChunkParam> params, int ranks) {
  std::set<const void*> seen;
  std::vector<const ChunkParam*> once;
  double sum = 0;
  double squares = 0;
  for (const auto& param : params) {
    if (param.key && !seen.insert(param.key).second) continue;
    once.push_back(&param);
    const auto numel = static_cast<double>(param.padded_numel(ranks));
    sum += numel;
    squares += numel * numel;
  }
  const double count = std::max<double>(1, static_cast<double>(once.size()));
  const double mean = sum / count;
  const double limit = mean + 3 * std::sqrt(std::max(0.0, squares / count - mean * mean));
  SearchedSizes sizes;
  for (const auto* param : once) {
    const auto numel = param->padded_numel(ranks);
    sizes.total += numel;
    // The comparison forgives the rounding of a deviation that is zero.
    if (static_cast<double>(numel) > limit * (1 + 1e-9)) continue;
    sizes.rows[{param->section, param->dtype}].push_back(numel);
    if (!sizes.largest || numel > sizes.largest_numel) {
      sizes.largest = param;
      sizes.largest_numel = numel;
    }
  }
  return sizes;
}

int64_t waste_of(const SearchedSizes& sizes, int64_t chunk) {
  int64_t waste = 0;
  for (const auto& [kind, row] : sizes.rows) {
    int64_t left = 0;
    for (const auto numel : row) {
      if (numel > left) {
        waste += left;
        left = chunk;
      }
      left -= numel;
    }
    waste += left;
  }
  return waste;
}

}  // namespace

int64_t ChunkParam::numel() const {
  int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return count;
}

int64_t ChunkParam::padded_numel(int ranks) const {
  const auto rows = sizes.empty() ? 1 : sizes[0];
  return rows ? round_up_chunk(rows, ranks) * (numel() / rows) : 0;
}

ChunkSize search_chunk_size(std::span<const ChunkParam> params, const ChunkSearchOptions& options) {
  LEVIN_CHECK(options.interval > 0, "[colossalai] hidden_dim must be positive, not ", options.interval);
  LEVIN_CHECK(options.range >= 0, "[colossalai] search_range_m must not be negative");
  const auto sizes = sizes_to_place(params, options.ranks);
  LEVIN_CHECK(!params.empty(), "[colossalai] the module has no parameters");
  if (sizes.total == 0) return {options.ranks, 0, true};  // all of them are empty
  if (sizes.total < options.min_chunk) {
    const auto elements = round_up_chunk(sizes.total, options.ranks);
    return {elements, elements - sizes.total, true};
  }
  const auto start = round_up_chunk(std::max(options.min_chunk, sizes.largest_numel), options.interval);
  ChunkSize best{0, std::numeric_limits<int64_t>::max(), false};
  for (auto size = start; size <= start + options.range && best.waste > 0; size += options.interval)
    if (const auto waste = waste_of(sizes, size); waste < best.waste) best = {size, waste, false};
  best.elements = round_up_chunk(best.elements, options.ranks);
  best.waste = waste_of(sizes, best.elements);
  return best;
}

void check_chunk_size(int64_t asked, std::span<const ChunkParam> params, int ranks) {
  const auto sizes = sizes_to_place(params, ranks);
  LEVIN_CHECK(asked >= sizes.largest_numel, "[colossalai] chunk_size ", asked, " is smaller than parameter \"",
              sizes.largest->name, "\" with ", sizes.largest_numel, " elements; set chunk_size to ",
              round_up_chunk(sizes.largest_numel, ranks), " or more, or to 0 to have it searched for");
}

}  // namespace levin::detail
