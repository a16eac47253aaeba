#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// The look of ProgressBar, of which TrainerProgressBar is made: colours, characters, and what is left out of a narrow
/// line.
namespace levin {

/// What a progress line shows.
struct ProgressFrame {
  std::string_view label;
  int64_t done = 0;
  int64_t total = 0;
  /// Of `unit` per second; 0 when not known yet.
  double rate = 0;
  std::string_view unit = "it";
  double elapsed = 0;
  /// Seconds to go; negative when not known.
  double remaining = -1;
  std::vector<std::pair<std::string, double>>* numbers = nullptr;
};

/// How it is shown.
struct ProgressStyle {
  /// Columns; the line is never wider. 0: as wide as it comes, without a bar (a plain line).
  int width = 80;
  bool color = false;
  bool unicode = true;
};

/// Appends the line, without an end of line.
void render_progress(const ProgressFrame& frame, const ProgressStyle& style, std::string& line);

}  // namespace levin
