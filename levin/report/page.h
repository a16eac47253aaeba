#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

namespace levin::report {

/// The page that shows a report (docs/report.md, "JSON keys"): one HTML file with its style, its script and the numbers
/// in it. It loads nothing. Names of the report cannot become markup: "<" is escaped in the numbers, the script writes
/// text nodes alone, and the page's Content-Security-Policy allows no script but its own.
///
///     std::ofstream("report.html") << levin::report::html_page(json);
[[nodiscard]] std::string html_page(std::string_view report_json);

/// The same without a second copy in memory.
void write_html_page(std::ostream& out, std::string_view report_json);

}  // namespace levin::report
