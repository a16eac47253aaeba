#include "levin/report/trace/ranges.h"

#include <algorithm>

namespace levin::report {

Ranges merge(Ranges ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.end <= range.start; });
  const auto by_start = [](const Range& a, const Range& b) { return a.start < b.start; };
  if (!std::is_sorted(ranges.begin(), ranges.end(), by_start)) std::sort(ranges.begin(), ranges.end(), by_start);
  size_t count = 0;
  for (const auto& range : ranges) {
    if (count > 0 && range.start <= ranges[count - 1].end) {
      ranges[count - 1].end = std::max(ranges[count - 1].end, range.end);
    } else {
      ranges[count++] = range;
    }
  }
  ranges.resize(count);
  return ranges;
}

Ranges intersect(const Ranges& a, const Ranges& b) {
  Ranges out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Range common{std::max(a[i].start, b[j].start), std::min(a[i].end, b[j].end)};
    if (common.start < common.end) out.push_back(common);
    if (a[i].end < b[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return out;
}

Ranges subtract(const Ranges& a, const Ranges& b) {
  Ranges out;
  size_t j = 0;
  for (auto range : a) {
    while (j < b.size() && b[j].end <= range.start) ++j;
    for (size_t k = j; k < b.size() && b[k].start < range.end; ++k) {
      if (b[k].start > range.start) out.push_back({range.start, b[k].start});
      range.start = std::max(range.start, std::min(b[k].end, range.end));
    }
    if (range.start < range.end) out.push_back(range);
  }
  return out;
}

Ns length(const Ranges& ranges) {
  Ns sum = 0;
  for (const auto& range : ranges) sum += range.end - range.start;
  return sum;
}

Ns length_in(const Ranges& ranges, Ns start, Ns end) {
  auto at =
      std::lower_bound(ranges.begin(), ranges.end(), start, [](const Range& r, Ns time) { return r.end <= time; });
  Ns sum = 0;
  for (; at != ranges.end() && at->start < end; ++at)
    sum += std::max<Ns>(0, std::min(at->end, end) - std::max(at->start, start));
  return sum;
}

}  // namespace levin::report
