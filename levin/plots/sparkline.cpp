#include "levin/plots/sparkline.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "levin/plots/axes.h"

namespace levin {
std::string sparkline(const std::vector<double>& values, int width) {
  static constexpr std::array blocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  PlotRange range;
  for (const double value : values)
    if (std::isfinite(value)) range.add(value);
  std::string line;
  const auto count = static_cast<int64_t>(values.size());
  const auto columns = std::min<int64_t>(width, count);
  for (int64_t column = 0; column < columns; ++column) {
    double sum = 0;
    int finite = 0;
    for (int64_t i = column * count / columns; i < (column + 1) * count / columns; ++i)
      if (std::isfinite(values[static_cast<size_t>(i)])) {
        sum += values[static_cast<size_t>(i)];
        ++finite;
      }
    if (finite == 0) {
      line += ' ';
      continue;
    }
    const double part = range.high > range.low ? (sum / finite - range.low) / (range.high - range.low) : 0;
    line += blocks[static_cast<size_t>(std::clamp(part * 8, 0.0, 7.0))];
  }
  return line;
}

}  // namespace levin
