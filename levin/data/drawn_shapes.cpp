#include "levin/data/drawn_shapes.h"

#include <algorithm>
#include <cmath>

namespace levin::detail {

double inside_shape(int64_t kind, double u, double v) {
  const double r = std::hypot(u, v);
  const double box = std::max(std::abs(u), std::abs(v));
  switch (kind) {
    case 0:
      return 1 - r;  // disc
    case 1:
      return 0.28 - std::abs(r - 0.75);  // ring
    case 2:
      return 0.9 - box;  // square
    case 3:
      return 0.22 - std::abs(box - 0.75);  // frame
    case 4:
      return std::min(v + 0.8, 0.8 - v - 1.8 * std::abs(u) + 0.2);  // triangle
    case 5:
      return std::min(1 - box, 0.25 - std::min(std::abs(u), std::abs(v)));  // plus
    case 6:
      return std::min(1 - box, 0.25 - std::min(std::abs(u - v), std::abs(u + v)) / 1.4);  // cross
    case 7:
      return std::min(1 - box, std::sin(9 * u));  // upright stripes
    case 8:
      return std::min(1 - box, std::sin(9 * v));  // level stripes
    default:
      return std::min(1 - box, std::sin(7 * u) * std::sin(7 * v));  // chequers
  }
}

}  // namespace levin::detail
