#pragma once

#include <string>
#include <vector>

#include "levin/plots/drawing.h"

namespace levin {

/// Bars from left to right, one below the other, with words at both ends.
struct BarPlot {
  struct Bar {
    std::string label;
    double value = 0;
    /// What is written behind the bar.
    std::string text = {};
  };
  std::string title = {};
  /// A smaller line below it.
  std::string subtitle = {};
  std::vector<Bar> bars = {};
};

Drawing picture_of(const BarPlot& plot);

}  // namespace levin
