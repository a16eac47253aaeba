#include "levin/nn/context/layout.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/core/error.h"

namespace levin {

std::vector<Share> ContextLayout::runs(int64_t length, int rank) const {
  const int64_t chunks = balanced ? 2 * size : size;
  LEVIN_CHECK(length >= chunks, "[context_parallel] ", length, " tokens cannot be spread over ", size,
              " ranks: ", balanced ? "balanced they are cut into 2 x " : "they are cut into ", size,
              balanced ? fmt::format(" = {}", chunks) : "", " chunks, and each needs a token");
  const auto first = Share::of(length, chunks, rank);
  if (!balanced) return {first};
  const auto last = Share::of(length, chunks, chunks - 1 - rank);
  // The two chunks in the middle are one run.
  if (first.first + first.count == last.first) return {{first.first, first.count + last.count}};
  return {first, last};
}

int64_t ContextLayout::count(int64_t length, int rank) const {
  int64_t all = 0;
  for (const auto& run : runs(length, rank)) all += run.count;
  return all;
}

int64_t ContextLayout::most(int64_t length) const {
  int64_t most = 0;
  for (int rank = 0; rank < size; ++rank) most = std::max(most, count(length, rank));
  return most;
}

}  // namespace levin
