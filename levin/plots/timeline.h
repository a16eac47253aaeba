#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/plots/drawing.h"

namespace levin {

/// Lanes one below the other, with blocks over time: what each rank does when.
struct TimelinePlot {
  struct Block {
    double start = 0, end = 0;
    /// Written in the block where it has room.
    std::string text = {};
    /// Index of its kind.
    int kind = 0;
  };
  struct Lane {
    std::string label;
    /// Behind the lane.
    std::string note = {};
    /// In the order of time; none over another.
    std::vector<Block> blocks = {};
  };
  struct Kind {
    std::string name;
    uint32_t color = 0x2563eb;
    /// Stands before the text of a block where there are no colours.
    char letter = '#';
  };
  std::string title = {};
  /// A smaller line below it.
  std::string subtitle = {};
  std::vector<Kind> kinds = {};
  std::vector<Lane> lanes = {};
};

Drawing picture_of(const TimelinePlot& plot);

struct TimelineTextOptions {
  /// Time of one cell. A block is shown in the cells whose middle it covers.
  double unit = 1;
  /// Longer timelines take further rows of lanes. 0 means no limit.
  int columns = 100;
  /// With colours of a terminal (ANSI, 24 bits).
  bool color = false;
};
/// The lanes as lines of characters, then the kinds.
std::string text_of(const TimelinePlot& plot, const TimelineTextOptions& options = {});

}  // namespace levin
