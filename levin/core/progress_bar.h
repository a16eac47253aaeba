#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {

struct ProgressOptions {
  /// What is counted, for the rate: "1830 img/s".
  std::string unit = "it";
  /// How many of `unit` one step is: the batch size, when steps are batches and the unit is images.
  double per_step = 1;
  /// Where it is drawn.
  std::FILE* file = stderr;
  /// Live (one line, redrawn) or plain lines; by default live when `file` is a terminal, or LEVIN_TERMINAL_WIDTH says
  /// that one stands behind it.
  std::optional<bool> live = {};
  /// Whether the finished bar stays on the terminal.
  bool keep = true;
  /// Seconds, rising; for tests.
  std::function<double()> clock = {};
};

/// How far a loop is:
///
///     Epoch 1/5 ━━━━━━━━━━━╸─────── 62% 145/234  1830 img/s  loss 0.412  0:07<0:04
///
/// What the line looks like is in progress_bar_style.h.
/// On a terminal one line, redrawn at most ten times a second; elsewhere a plain line for every tenth, at most one a
/// second, and at least one every ten. An update between two drawings costs a look at the clock and allocates nothing.
///
///     levin::ProgressBar bar("Epoch 1/5", loader.size(), {.unit = "img", .per_step = 64});
///     for (auto& batch : loader) {
///       bar.set("loss", loss);
///       bar.advance();
///     }
class ProgressBar {
 public:
  /// A total of 0 means that the end is not known.
  ProgressBar(std::string label, int64_t total, ProgressOptions options = {});
  /// Finishes the bar, where it stands.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance(int64_t steps = 1);
  /// As advance, but leaves the drawing to the caller: true when one is due. Then is the time to find out numbers that
  /// cost something, to `set` them and to call redraw().
  [[nodiscard]] bool count(int64_t steps = 1);
  /// Draws now, whether it is due or not.
  void redraw();
  /// Starts at a step other than 0 (a resumed epoch): those before do not count for the rate.
  void start_at(int64_t step);
  /// A number to show beside; shown at the next drawing.
  void set(std::string_view name, double value);
  /// Forgets all numbers that were set.
  void clear_numbers() { numbers_.clear(); }
  /// Draws the last state and ends the line. Later calls do nothing.
  void finish();
  /// Ends without a last line; on a terminal the bar is taken off.
  void discard();
  /// Takes the bar off the terminal, so that a line can be printed; it comes back with the next drawing.
  void clear();
  /// Prints a line above the bar.
  void print_above(std::string_view line, std::FILE* file = stdout);
  /// Takes the bar off the terminal and stops its clock, for another bar in its place; resume() brings both back.
  void pause();
  void resume();

 private:
  void draw(double now, bool last);
  bool is_due(double now) const;

  std::string label_;
  int64_t total_;
  ProgressOptions options_;
  bool live_ = false;
  bool color_ = false;
  int64_t done_ = 0;
  int64_t first_ = 0;
  double start_ = 0;
  double drawn_at_ = 0;
  int64_t drawn_step_ = 0;
  double rate_ = 0;  // steps per second, smoothed
  double rated_at_ = 0;
  int64_t rated_step_ = 0;
  std::optional<double> paused_at_;
  bool on_screen_ = false;
  bool finished_ = false;
  std::vector<std::pair<std::string, double>> numbers_;
  std::string line_;
};

/// Columns of the terminal behind `file`: LEVIN_TERMINAL_WIDTH when a launcher set it, else what the terminal says; 0:
/// none.
int terminal_width(std::FILE* file);

}  // namespace levin
