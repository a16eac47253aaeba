#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

namespace levin::report {

/// Of a report whose files change: both numbers rise, `version` with every change, `traces` when traces were read
/// again.
struct LiveState {
  uint64_t version = 0, traces = 0;
};

struct PageOptions {
  /// The page asks its server for what is newer than this (`levin report --serve`); none: it asks for nothing.
  std::optional<LiveState> live = {};
};

/// The page that shows a report (docs/report.md, "JSON keys"): one HTML file with its style, its script and the numbers
/// in it. It loads nothing. Names of the report cannot become markup: "<" is escaped in the numbers, the script writes
/// text nodes alone, and the page's Content-Security-Policy allows no script but its own.
///
///     std::ofstream("report.html") << levin::report::html_page(json);
[[nodiscard]] std::string html_page(std::string_view report_json, const PageOptions& options = {});

/// The same without a second copy in memory.
void write_html_page(std::ostream& out, std::string_view report_json, const PageOptions& options = {});

}  // namespace levin::report
