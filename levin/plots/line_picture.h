#pragma once

#include <string>

#include "levin/plots/drawing.h"
#include "levin/plots/line_plot.h"

namespace levin {

/// The plot as a drawing, for SVG and PNG alike. A plot without any finite point says "no data".
///
///     const auto picture = picture_of(plot);
///     write_drawing("lr_find.svg", picture);
///     write_drawing("lr_find.png", picture);
Drawing picture_of(const LinePlot& plot);

std::string to_svg(const LinePlot& plot);

/// Where there is nothing to draw: "no data", in the middle of a field.
void draw_no_data(Drawing& drawing, double left, double top, double right, double bottom);

}  // namespace levin
