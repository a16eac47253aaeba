#pragma once

#include <array>
#include <cstdint>

namespace levin::detail {

/// What the ten kinds of drawn shapes are called.
inline constexpr std::array kShapeNames{"disc", "ring",  "square",          "frame",         "triangle",
                                        "plus", "cross", "upright_stripes", "level_stripes", "chequers"};

/// How far inside a shape a point is: > 0 inside. (u, v) is relative to the shape's centre, in units of its size.
double inside_shape(int64_t kind, double u, double v);

}  // namespace levin::detail
