#include "levin/plots/line_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace levin {
namespace {

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  if (!(high > low) || count < 1) return {low};
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (rough <= factor * power * (1 + 1e-9)) {
      step = factor * power;
      break;
    }
  std::vector<double> ticks;
  // ceil gives -0 just below 0, which would be written so; + 0.0 makes it 0.
  for (double i = std::ceil(low / step - 1e-9) + 0.0; i * step <= high + 1e-9 * step; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string sparkline(const std::vector<double>& values, int width) {
  static constexpr std::array blocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  Range range;
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
    const double share = range.high > range.low ? (sum / finite - range.low) / (range.high - range.low) : 0;
    line += blocks[static_cast<size_t>(std::clamp(share * 8, 0.0, 7.0))];
  }
  return line;
}

}  // namespace levin
