#include "levin/core/progress_bar_style.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace levin {
namespace {

constexpr int kShortestBar = 8;
constexpr int kLongestBar = 40;

constexpr std::string_view kGreen = "\x1b[32m";
constexpr std::string_view kCyan = "\x1b[36m";
constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kBold = "\x1b[1m";
constexpr std::string_view kPlain = "\x1b[0m";

/// Columns of a text in UTF-8, one per code point.
int columns(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

/// The first `count` columns of a text.
std::string_view cut(std::string_view text, int count) {
  size_t at = 0;
  while (at < text.size() && count > 0) {
    ++at;
    while (at < text.size() && (text[at] & 0xc0) == 0x80) ++at;
    --count;
  }
  return text.substr(0, at);
}

/// One piece of the line: its text in a buffer on the stack, and its colour.
struct Piece {
  fmt::memory_buffer text;
  std::string_view color;

  std::string_view view() const { return {text.data(), text.size()}; }
  int width() const { return columns(view()); }
};

void put_duration(fmt::memory_buffer& out, double seconds) {
  const auto total = static_cast<int64_t>(std::lround(seconds));
  if (total < 3600)
    fmt::format_to(std::back_inserter(out), "{}:{:02}", total / 60, total % 60);
  else
    fmt::format_to(std::back_inserter(out), "{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

void put_rate(fmt::memory_buffer& out, double rate, std::string_view unit) {
  const auto to = std::back_inserter(out);
  // Slow things read better the other way round.
  if (rate < 1)
    fmt::format_to(to, "{:.2f} s/{}", 1 / rate, unit);
  else
    fmt::format_to(to, "{:.{}f} {}/s", rate, rate < 10 ? 2 : rate < 100 ? 1 : 0, unit);
}

void put_number(fmt::memory_buffer& out, std::string_view name, double value) {
  const auto to = std::back_inserter(out);
  const double size = std::abs(value);
  if (value == std::round(value) && size < 1e6)
    fmt::format_to(to, "{} {:.0f}", name, value);
  else if (size >= 1e-3 && size < 1e4)
    fmt::format_to(to, "{} {:.{}f}", name, value, size < 10 ? 3 : size < 100 ? 2 : 1);
  else
    fmt::format_to(to, "{} {:.2e}", name, value);
}

void put_bar(std::string& line, double part, int cells, const ProgressStyle& style) {
  const int halves = std::clamp(static_cast<int>(part * cells * 2 + 1e-9), 0, cells * 2);
  const int full = halves / 2;
  const bool half = halves % 2 != 0;
  if (style.color) line += part >= 1 ? kGreen : kCyan;
  for (int i = 0; i < full; ++i) line += style.unicode ? "━" : "=";
  if (half) line += style.unicode ? "╸" : "-";
  if (style.color) line += kPlain;
  if (style.color) line += kDim;
  for (int i = full + (half ? 1 : 0); i < cells; ++i) line += style.unicode ? "─" : " ";
  if (style.color) line += kPlain;
}

}  // namespace

void render_progress(const ProgressFrame& frame, const ProgressStyle& style, std::string& line) {
  const bool known = frame.total > 0;
  const double part = known ? static_cast<double>(frame.done) / static_cast<double>(frame.total) : 0;
  Piece count;
  Piece rate;
  Piece time;
  rate.color = kDim;
  time.color = kDim;
  if (known)
    fmt::format_to(std::back_inserter(count.text), "{:3}% {}/{}", static_cast<int>(part * 100), frame.done,
                   frame.total);
  else
    fmt::format_to(std::back_inserter(count.text), "{}", frame.done);
  if (frame.rate > 0) put_rate(rate.text, frame.rate, frame.unit);
  put_duration(time.text, frame.elapsed);
  if (frame.remaining > 0) {
    time.text.push_back('<');
    put_duration(time.text, frame.remaining);
  }

  // What does not fit is left out, the least needed first: numbers from the last, the rate, the time; then the label is
  // cut.
  const int room = style.width > 0 ? style.width - 1 : 1 << 20;
  const int bar = style.width > 0 && known ? kShortestBar + 1 : 0;
  int used = columns(frame.label) + 1 + bar + count.width();
  const auto fits = [&](int width) {
    if (width == 0 || used + 2 + width > room) return false;
    used += 2 + width;
    return true;
  };
  const bool show_time = fits(time.width());
  const bool show_rate = fits(rate.width());
  size_t shown = 0;
  Piece numbers;
  if (frame.numbers) {
    for (const auto& [name, value] : *frame.numbers) {
      Piece one;
      put_number(one.text, name, value);
      if (!fits(one.width())) break;
      numbers.text.append(std::string_view("  "));
      numbers.text.append(one.view());
      ++shown;
    }
  }

  const int overflow = used - room;
  const auto label = overflow > 0 ? cut(frame.label, std::max(0, columns(frame.label) - overflow)) : frame.label;
  const auto put = [&](const Piece& piece, std::string_view gap) {
    line += gap;
    if (style.color && !piece.color.empty()) line += piece.color;
    line += piece.view();
    if (style.color && !piece.color.empty()) line += kPlain;
  };
  if (style.color) line += kBold;
  line += label;
  if (style.color) line += kPlain;
  if (!label.empty()) line += ' ';
  if (bar > 0) {
    put_bar(line, part, std::min(kLongestBar, kShortestBar + std::max(0, room - used)), style);
    line += ' ';
  }
  put(count, "");
  if (show_rate) put(rate, "  ");
  if (shown > 0) put(numbers, "");
  if (show_time) put(time, "  ");
}

}  // namespace levin
