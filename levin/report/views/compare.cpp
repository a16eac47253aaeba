#include "levin/report/views/compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "levin/core/error.h"

namespace levin::report {
namespace {

struct RunOfTraces {
  std::string name;
  std::vector<const TraceReport*> traces;
  std::set<int64_t> ranks;
  double steps = 0;
};

std::vector<RunOfTraces> runs_of(const Report& report) {
  std::vector<RunOfTraces> runs;
  for (const auto& trace : report.traces) {
    auto run = std::find_if(runs.begin(), runs.end(), [&](const RunOfTraces& each) { return each.name == trace.run; });
    if (run == runs.end()) run = runs.insert(runs.end(), {.name = trace.run});
    run->traces.push_back(&trace);
    run->ranks.insert(trace.rank);
    run->steps += static_cast<double>(trace.steps.steps.size());
  }
  return runs;
}

template <class Row>
void make_columns(Row& row, size_t runs) {
  for (auto* list : {&row.calls, &row.device_us, &row.host_us, &row.difference_us}) list->resize(runs);
}

// Operators and units count host and device. Returns the largest difference.
template <class Row>
double set_differences(Row& row) {
  double most = 0;
  for (size_t run = 0; run < row.calls.size(); ++run) {
    row.difference_us[run] = row.device_us[run] + row.host_us[run] - row.device_us[0] - row.host_us[0];
    most = std::max(most, std::abs(row.difference_us[run]));
  }
  return most;
}

class Rows {
 public:
  explicit Rows(size_t runs) : runs_(runs) {}

  ComparedRow& at(const std::string& name) {
    auto& row = rows_[name];
    if (row.name.empty()) {
      row.name = name;
      make_columns(row, runs_);
    }
    return row;
  }

  // Those that differ most come first.
  std::vector<ComparedRow> sorted() {
    std::vector<std::pair<double, ComparedRow>> rows;
    for (auto& [name, row] : rows_) {
      const double most = set_differences(row);
      rows.emplace_back(most, std::move(row));
    }
    std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<ComparedRow> out;
    for (auto& [most, row] : rows) {
      if (out.size() < 500) out.push_back(std::move(row));
    }
    return out;
  }

 private:
  size_t runs_;
  std::map<std::string, ComparedRow> rows_;
};

/// Units of all runs, by the units around them and their name.
class Units {
 public:
  explicit Units(size_t runs) : runs_(runs) {}

  void add(const std::vector<ModuleRow>& modules, size_t run, double steps) {
    std::vector<size_t> places;
    for (const auto& module : modules) {
      const int parent = module.parent < 0 ? -1 : static_cast<int>(places[static_cast<size_t>(module.parent)]);
      const auto [at, is_new] = known_.emplace(std::pair{parent, module.name}, rows_.size());
      if (is_new) {
        rows_.push_back({.name = module.name, .parent = parent, .depth = module.depth});
        make_columns(rows_.back(), runs_);
      }
      places.push_back(at->second);
      auto& row = rows_[at->second];
      row.calls[run] += static_cast<double>(module.occurrences) / steps;
      row.device_us[run] += static_cast<double>(module.device_total()) / 1e3 / steps;
      row.host_us[run] += static_cast<double>(module.host_total) / 1e3 / steps;
    }
  }

  std::vector<ComparedUnit> take() {
    for (auto& row : rows_) set_differences(row);
    return std::move(rows_);
  }

 private:
  size_t runs_;
  std::map<std::pair<int, std::string>, size_t> known_;
  std::vector<ComparedUnit> rows_;
};

/// Means of the time of steps with one name.
class StepTimes {
 public:
  void add(const std::string& name, size_t run, size_t runs, Ns time) {
    const auto [at, is_new] = places_.emplace(name, rows_.size());
    if (is_new) rows_.push_back({name, std::vector<std::pair<double, double>>(runs)});
    auto& [sum, count] = rows_[at->second].second[run];
    sum += static_cast<double>(time) / 1e3;
    ++count;
  }

  std::vector<ComparedStep> means() const {
    std::vector<ComparedStep> out;
    for (const auto& [name, sums] : rows_) {
      auto& row = out.emplace_back(ComparedStep{.name = name});
      for (const auto& [sum, count] : sums) row.total_us.push_back(count > 0 ? sum / count : -1);
    }
    return out;
  }

 private:
  std::map<std::string, size_t> places_;
  std::vector<std::pair<std::string, std::vector<std::pair<double, double>>>> rows_;
};

std::string device_of(const TraceReport& trace) {
  return trace.gpus.empty() ? "CPU" : trace.gpus[0].info.name;
}

std::vector<std::string> warnings_of(const std::vector<RunOfTraces>& runs) {
  std::vector<std::string> out;
  for (size_t i = 1; i < runs.size(); ++i) {
    const auto &first = runs[0], &run = runs[i];
    if (run.ranks != first.ranks)
      out.push_back(levin::detail::concat("\"", run.name, "\" has the traces of ", run.ranks.size(), " ranks, \"",
                                          first.name, "\" of ", first.ranks.size(),
                                          ": their means are of different ranks"));
    if (const auto a = device_of(*first.traces[0]), b = device_of(*run.traces[0]); a != b)
      out.push_back(levin::detail::concat("\"", run.name, "\" ran on ", b.empty() ? "another device" : b, ", \"",
                                          first.name, "\" on ", a.empty() ? "another" : a));
  }
  return out;
}

}  // namespace

std::optional<Comparison> compare_runs(const Report& report) {
  const auto runs = runs_of(report);
  if (runs.size() < 2) return std::nullopt;
  Comparison view;
  Rows operators(runs.size()), kernels(runs.size());
  Units units(runs.size());
  StepTimes steps, ranks;
  view.total_us.resize(runs.size());
  for (auto& part : view.parts_us) part.resize(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& run = runs[i];
    view.runs.push_back({.name = run.name,
                         .traces = run.traces.size(),
                         .ranks = run.ranks.size(),
                         .steps = static_cast<uint64_t>(run.steps)});
    for (const auto* trace : run.traces) {
      for (const auto& step : trace->steps.steps) {
        view.total_us[i] += static_cast<double>(step.total()) / 1e3 / run.steps;
        for (size_t part = 0; part < kParts; ++part)
          view.parts_us[part][i] += static_cast<double>(step.parts[part]) / 1e3 / run.steps;
        steps.add(step.name, i, runs.size(), step.total());
        ranks.add(std::to_string(trace->rank), i, runs.size(), step.total());
      }
      for (const auto& row : trace->operators) {
        auto& compared = operators.at(trace->events.name(row.name));
        compared.calls[i] += static_cast<double>(row.calls) / run.steps;
        compared.device_us[i] += static_cast<double>(row.device_self) / 1e3 / run.steps;
        compared.host_us[i] += static_cast<double>(row.host_self) / 1e3 / run.steps;
      }
      for (const auto& row : trace->kernels) {
        auto& compared = kernels.at(trace->events.name(row.name));
        compared.calls[i] += static_cast<double>(row.calls) / run.steps;
        compared.device_us[i] += static_cast<double>(row.total) / 1e3 / run.steps;
      }
      units.add(trace->modules, i, run.steps);
    }
  }
  view.operators = operators.sorted();
  view.kernels = kernels.sorted();
  view.units = units.take();
  view.steps = steps.means();
  view.ranks = ranks.means();
  std::ranges::sort(view.ranks, {}, [](const ComparedStep& row) { return std::stoll(row.name); });
  view.warnings = warnings_of(runs);
  return view;
}

}  // namespace levin::report
