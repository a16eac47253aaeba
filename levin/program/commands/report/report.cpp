#include "levin/report/report.h"

#include <cstdio>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/program/command.h"
#include "levin/program/commands/report/report_serve.h"
#include "levin/report/page.h"

namespace levin::cli {
namespace {

struct ReportFlags {
  std::vector<std::string> paths;
  std::string html;
  bool json = false, serve = false;
  ReportServeOptions server;

  void describe(Flags& flags) {
    flags.repeated_argument("RUN_OR_TRACE", paths, "a trace (.json, .json.gz), or a folder with traces or a run");
    flags.flag("json", json, "print every number as JSON (docs/report.md)");
    flags.flag("html", html, "write one page that needs no network", "FILE");
    flags.flag("serve", serve, "show the page over HTTP, and new rows of the run while it trains");
    flags.flag("host", server.host, "with --serve: the address to listen on; 0.0.0.0: every network of this machine",
               "ADDRESS");
    flags.flag("port", server.port, "with --serve: 0 takes any that is free", "N");
  }

  int run() {
    if (serve) {
      LEVIN_CHECK(!json && html.empty(), "[levin report] --serve goes without --json and --html: the page has both");
      return serve_report({paths.begin(), paths.end()}, server);
    }
    const auto report = levin::report::make_report({paths.begin(), paths.end()});
    if (!html.empty()) {
      AtomicFile page(html);
      page.writer().write(levin::report::html_page(levin::report::to_json(report)));
      page.commit();
    }
    if (json) {
      std::puts(levin::report::to_json(report, 1).c_str());
    } else {
      std::fputs(levin::report::to_text(report).c_str(), stdout);
    }
    if (!html.empty()) std::fprintf(stderr, "%s is written\n", html.c_str());
    return 0;
  }
};

}  // namespace

Command report_command() {
  return make_command<ReportFlags>("report", "say what a step spends its time on, and what to change");
}

}  // namespace levin::cli
