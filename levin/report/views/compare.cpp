#include "levin/report/views/compare.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace levin::report {
namespace {

std::vector<const TraceReport*> first_of_runs(const Report& report) {
  std::vector<const TraceReport*> firsts;
  for (const auto& trace : report.traces) {
    const auto known = std::find_if(firsts.begin(), firsts.end(), [&](auto* first) { return first->run == trace.run; });
    if (known == firsts.end()) {
      firsts.push_back(&trace);
    } else if (std::pair(trace.rank, trace.span) < std::pair((*known)->rank, (*known)->span)) {
      *known = &trace;
    }
  }
  return firsts;
}

class Rows {
 public:
  explicit Rows(size_t runs) : runs_(runs) {}

  ComparedRow& at(const std::string& name) {
    auto& row = rows_[name];
    if (row.name.empty()) {
      row.name = name;
      for (auto* list : {&row.calls, &row.device_us, &row.host_us, &row.difference_us}) list->resize(runs_);
    }
    return row;
  }

  // Those that differ most come first. Operators count host and device.
  std::vector<ComparedRow> sorted() {
    std::vector<std::pair<double, ComparedRow>> rows;
    for (auto& [name, row] : rows_) {
      double most = 0;
      for (size_t run = 0; run < runs_; ++run) {
        row.difference_us[run] = row.device_us[run] + row.host_us[run] - row.device_us[0] - row.host_us[0];
        most = std::max(most, std::abs(row.difference_us[run]));
      }
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

}  // namespace

std::optional<Comparison> compare_runs(const Report& report) {
  const auto runs = first_of_runs(report);
  if (runs.size() < 2) return std::nullopt;
  Comparison view;
  Rows operators(runs.size()), kernels(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& run = *runs[i];
    const auto steps = static_cast<double>(run.steps.steps.size());
    view.names.push_back(run.run);
    view.total_us.push_back(run.steps.average_total / 1e3);
    for (size_t part = 0; part < kParts; ++part) view.parts_us[part].push_back(run.steps.average[part] / 1e3);
    for (const auto& row : run.operators) {
      auto& compared = operators.at(run.events.name(row.name));
      compared.calls[i] = static_cast<double>(row.calls) / steps;
      compared.device_us[i] = static_cast<double>(row.device_self) / 1e3 / steps;
      compared.host_us[i] = static_cast<double>(row.host_self) / 1e3 / steps;
    }
    for (const auto& row : run.kernels) {
      auto& compared = kernels.at(run.events.name(row.name));
      compared.calls[i] = static_cast<double>(row.calls) / steps;
      compared.device_us[i] = static_cast<double>(row.total) / 1e3 / steps;
    }
  }
  view.operators = operators.sorted();
  view.kernels = kernels.sorted();
  return view;
}

}  // namespace levin::report
