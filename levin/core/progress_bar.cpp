#include "levin/core/progress_bar.h"

#include <charconv>
#include <chrono>
#include <cstdlib>

#include <sys/ioctl.h>
#include <unistd.h>

#include "levin/core/progress_bar_style.h"

namespace levin {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kLineSeconds = 1;
constexpr double kSilenceSeconds = 10;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// A locale that was set to C on purpose cannot show the bar's characters; one that was not set nearly always can.
bool shows_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const auto value = variable(name);
    if (!value.empty()) return value != "C" && value != "POSIX";
  }
  return true;
}

}  // namespace

int terminal_width(std::FILE* file) {
  const auto told = variable("LEVIN_TERMINAL_WIDTH");
  int width = 0;
  if (!told.empty()) {
    std::from_chars(told.data(), told.data() + told.size(), width);
    return width > 0 ? width : 0;
  }
  if (!::isatty(::fileno(file)) || variable("TERM") == "dumb") return 0;
  struct winsize size {};
  return ::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

ProgressBar::ProgressBar(std::string label, int64_t total, ProgressOptions options)
    : label_(std::move(label)), total_(total), options_(std::move(options)) {
  if (!options_.clock) options_.clock = steady_seconds;
  live_ = options_.live.value_or(terminal_width(options_.file) > 0);
  color_ = live_ && variable("NO_COLOR").empty();
  start_ = drawn_at_ = rated_at_ = options_.clock();
  line_.reserve(512);
  numbers_.reserve(8);
  if (live_) draw(start_, false);
}

ProgressBar::~ProgressBar() {
  finish();
}

void ProgressBar::start_at(int64_t step) {
  done_ = first_ = drawn_step_ = rated_step_ = step;
}

void ProgressBar::set(std::string_view name, double value) {
  for (auto& [known, number] : numbers_) {
    if (known == name) {
      number = value;
      return;
    }
  }
  numbers_.emplace_back(std::string(name), value);
}

void ProgressBar::advance(int64_t steps) {
  if (count(steps)) redraw();
}

bool ProgressBar::count(int64_t steps) {
  done_ += steps;
  return !finished_ && !paused_at_ && is_due(options_.clock());
}

void ProgressBar::redraw() {
  if (!finished_ && !paused_at_) draw(options_.clock(), false);
}

bool ProgressBar::is_due(double now) const {
  const double silence = now - drawn_at_;
  if (live_) return silence >= kRedrawSeconds;
  if (silence >= kSilenceSeconds) return true;
  // The last line comes from finish().
  return silence >= kLineSeconds && total_ > 0 && done_ < total_ && done_ * 10 / total_ > drawn_step_ * 10 / total_;
}

void ProgressBar::draw(double now, bool last) {
  const double elapsed = now - start_;
  if (now > rated_at_ && done_ > rated_step_) {
    // Recent steps count more: the weight of what is older than the bar's first tenth fades within about three seconds.
    const double recent = static_cast<double>(done_ - rated_step_) / (now - rated_at_);
    const double weight = std::min(1.0, (now - rated_at_) / 3);
    rate_ = rate_ == 0 ? recent : rate_ + weight * (recent - rate_);
    rated_at_ = now;
    rated_step_ = done_;
  }
  if (last && elapsed > 0) rate_ = static_cast<double>(done_ - first_) / elapsed;
  drawn_at_ = now;
  drawn_step_ = done_;

  const int width = terminal_width(options_.file);
  const ProgressStyle style{live_ ? (width > 0 ? width : 80) : 0, color_, shows_unicode()};
  const double remaining = total_ > 0 && rate_ > 0 ? static_cast<double>(total_ - done_) / rate_ : -1;
  line_.clear();
  if (live_) line_ += "\r";
  render_progress(
      {label_, done_, total_, rate_ * options_.per_step, options_.unit, elapsed, last ? 0 : remaining, &numbers_},
      style, line_);
  // What is left of a longer line before is erased.
  if (live_) line_ += "\x1b[K";
  if (!live_ || (last && options_.keep)) line_ += "\n";
  if (live_ && last && !options_.keep) line_ = "\r\x1b[K";
  std::fwrite(line_.data(), 1, line_.size(), options_.file);
  std::fflush(options_.file);
  on_screen_ = live_ && !last;
}

void ProgressBar::finish() {
  if (finished_) return;
  resume();
  finished_ = true;
  draw(options_.clock(), true);
}

void ProgressBar::discard() {
  clear();
  finished_ = true;
}

void ProgressBar::clear() {
  if (!on_screen_) return;
  std::fputs("\r\x1b[K", options_.file);
  std::fflush(options_.file);
  on_screen_ = false;
  drawn_at_ -= kRedrawSeconds;
}

void ProgressBar::print_above(std::string_view line, std::FILE* file) {
  const bool was_on_screen = on_screen_;
  clear();
  std::fwrite(line.data(), 1, line.size(), file);
  std::fputc('\n', file);
  std::fflush(file);
  if (was_on_screen) redraw();
}

void ProgressBar::pause() {
  if (finished_ || paused_at_) return;
  clear();
  paused_at_ = options_.clock();
}

void ProgressBar::resume() {
  if (!paused_at_) return;
  const double away = options_.clock() - *paused_at_;
  start_ += away;
  drawn_at_ += away;
  rated_at_ += away;
  paused_at_.reset();
  if (live_) redraw();
}

}  // namespace levin
