#include "levin/profilers/simple.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/profilers/table.h"

namespace levin {
namespace {

double seconds(std::chrono::nanoseconds duration) {
  return static_cast<double>(duration.count()) / 1e9;
}

}  // namespace

SimpleProfiler::SimpleProfiler(SimpleProfilerOptions options)
    : Profiler({.dirpath = std::move(options.dirpath), .filename = std::move(options.filename)}),
      extended_(options.extended) {}

ActionId SimpleProfiler::register_action(std::string name) {
  const auto [found, is_new] = index_.try_emplace(std::move(name), static_cast<int32_t>(actions_.size()));
  if (is_new) actions_.push_back({.name = found->first});
  return ActionId{found->second};
}

SimpleProfiler::Action& SimpleProfiler::at(ActionId action, const char* what) {
  const auto index = static_cast<size_t>(action);
  LEVIN_CHECK(index < actions_.size(), "[profiler.", what, "] action ", static_cast<int32_t>(action),
              " is not known; register_action() gives ids");
  return actions_[index];
}

void SimpleProfiler::start(ActionId action) {
  auto& entry = at(action, "start");
  LEVIN_CHECK(!entry.is_running, "[profiler.start] action \"", entry.name, "\" is running already");
  entry.is_running = true;
  entry.start = Clock::now();
}

void SimpleProfiler::stop(ActionId action) {
  const auto now = Clock::now();
  auto& entry = at(action, "stop");
  LEVIN_CHECK(entry.is_running, "[profiler.stop] action \"", entry.name, "\" was not started");
  entry.is_running = false;
  add(action, now - entry.start);
}

void SimpleProfiler::add(ActionId action, std::chrono::nanoseconds duration) {
  auto& entry = at(action, "add");
  if (entry.calls++ == 0) recorded_.push_back(static_cast<size_t>(action));
  entry.sum += duration;
}

std::string SimpleProfiler::summary() const {
  return summary(Clock::now() - made_);
}

std::string SimpleProfiler::summary(std::chrono::nanoseconds total) const {
  struct Line {
    const Action* action;
    double mean, sum, percentage;
  };
  std::vector<Line> lines;
  int64_t calls = 0;
  for (const auto index : recorded_) {
    const auto& action = actions_[index];
    const auto sum = seconds(action.sum);
    lines.push_back({&action, sum / static_cast<double>(action.calls), sum, 100.0 * sum / seconds(total)});
    calls += action.calls;
  }
  std::ranges::stable_sort(lines, std::ranges::greater(), extended_ ? &Line::percentage : &Line::mean);

  using detail::five_digits;
  auto text = title() + "Profiler Report\n";
  if (!lines.empty()) {
    size_t width = 0;
    for (const auto& line : lines) width = std::max(width, detail::count_characters(line.action->name));
    detail::ReportTable table(width);
    if (extended_) {
      table.header({"Action", "Mean duration (s)", "Num calls", "Total time (s)", "Percentage %"});
      table.row({"Total", "-", std::to_string(calls), five_digits(seconds(total)), "100 %"});
      table.rule();
      for (const auto& [action, mean, sum, percentage] : lines)
        table.row({action->name, five_digits(mean), std::to_string(action->calls), five_digits(sum),
                   five_digits(percentage)});
    } else {
      table.header({"Action", "Mean duration (s)", "Total time (s)"});
      for (const auto& [action, mean, sum, percentage] : lines)
        table.row({action->name, five_digits(mean), five_digits(sum)});
    }
    table.rule();
    text += table.text();
  }
  return text + "\n";
}

}  // namespace levin
