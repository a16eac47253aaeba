#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace levin::cli {

struct ReportServeOptions {
  std::string host = "127.0.0.1";
  /// 0: any that is free.
  int port = 8080;
};

/// Serves the page of a report that follows its files, until the process is ended. The address is printed to stdout.
int serve_report(const std::vector<std::filesystem::path>& paths, const ReportServeOptions& options);

}  // namespace levin::cli
