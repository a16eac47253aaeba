#include "levin/report/live.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/testing/temporary_folder.h"

namespace levin::report {
namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

constexpr const char* kTrace =
    R"({"traceEvents":[{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":1,"tid":1,"ts":0,"dur":10},)"
    R"({"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,"ts":1,"dur":5}]})";

nlohmann::json parsed(const std::string& text) {
  return nlohmann::json::parse(text);
}

TEST(LiveReport, NewRowsOfARunAppear) {
  const testing::TemporaryFolder folder;
  LiveReport live({folder.path()});
  EXPECT_EQ(parsed(live.runs_json()).at("runs").size(), 0U) << "a run that has written nothing yet";
  EXPECT_FALSE(live.refresh());

  write(folder / "metrics.csv", "step,loss\n0,2.5\n");
  ASSERT_TRUE(live.refresh());
  EXPECT_EQ(parsed(live.runs_json()).at("runs").at(0).at("curves").at(0).at("values"), nlohmann::json({2.5}));
  const auto before = live.state();

  write(folder / "metrics.csv", "step,loss\n0,2.5\n1,2.0\n");
  ASSERT_TRUE(live.refresh());
  EXPECT_EQ(parsed(live.runs_json()).at("runs").at(0).at("curves").at(0).at("values"), nlohmann::json({2.5, 2.0}));
  EXPECT_GT(live.state().version, before.version);
  EXPECT_EQ(live.state().traces, before.traces) << "no trace has to be sent again";
  EXPECT_FALSE(live.refresh());
}

TEST(LiveReport, ATraceIsReadWhenItIsWhole) {
  const testing::TemporaryFolder folder;
  const auto run = folder / "levin_logs/version_0";
  write(run / "metrics.csv", "step,loss\n0,2.5\n");
  LiveReport live({folder.path()});
  const auto before = live.state();
  const auto trace = run / "host_1.1700000000.pt.trace.json";
  write(trace, std::string(kTrace).substr(0, 60));
  live.refresh();
  write(trace, kTrace);
  ASSERT_TRUE(live.refresh());
  const auto report = parsed(live.report_json());
  ASSERT_EQ(report.at("traces").size(), 1U);
  EXPECT_EQ(report.at("traces").at(0).at("operators").at(0).at("name"), "aten::add");
  EXPECT_GT(live.state().traces, before.traces);
  EXPECT_EQ(report.at("runs").size(), 1U);

  // Rows of a run with a trace: the trace is not read again.
  const auto traces = live.state().traces;
  write(run / "metrics.csv", "step,loss\n0,2.5\n1,2.25\n");
  ASSERT_TRUE(live.refresh());
  EXPECT_EQ(live.state().traces, traces);
  EXPECT_EQ(parsed(live.report_json()).at("runs").at(0).at("curves").at(0).at("values").size(), 2U);
}

TEST(LiveReport, APathThatIsNotThereIsAnError) {
  EXPECT_THROW(LiveReport({"/nowhere"}), Error);
  EXPECT_THROW(LiveReport({}), Error);
}

TEST(LiveReport, ItsPageAsksItsServerAlone) {
  const auto page = html_page("{}", {.live = LiveState{.version = 7, .traces = 2}});
  EXPECT_NE(page.find("data-live=\"7/2\""), std::string::npos);
  EXPECT_NE(page.find("connect-src 'self'"), std::string::npos);
  const auto file = html_page("{}");
  EXPECT_EQ(file.find("data-live=\""), std::string::npos);
  EXPECT_EQ(file.find("connect-src"), std::string::npos) << "the page of a file asks nobody";
}

}  // namespace
}  // namespace levin::report
