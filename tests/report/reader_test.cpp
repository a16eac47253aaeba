#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include "levin/core/error.h"
#include "levin/report/json_text.h"
#include "levin/report/report.h"
#include "levin/report/trace/trace_reader.h"
#include "levin/testing/temporary_folder.h"
#include "tests/report/trace_text.h"

namespace levin::report {
namespace {

using report_test::base_trace;
using report_test::TraceText;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

std::string error_of_text(const std::string& text) {
  return error_of([&] { report_trace(read_trace_text(text, "a.json")); });
}

TEST(Reader, SaysWhatIsWrong) {
  EXPECT_EQ(error_of_text(""), "[report] \"a.json\" is empty");
  EXPECT_THAT(error_of_text("hello"), HasSubstr("\"a.json\" is not JSON"));
  EXPECT_THAT(error_of_text("{\"loss\": [1, 2]}"), HasSubstr("no \"traceEvents\""));
  EXPECT_THAT(error_of_text("{\"traceEvents\": 3}"), HasSubstr("are no list"));
  EXPECT_THAT(error_of_text("{\"traceEvents\": []}"), HasSubstr("has no events of a profiler"));
  EXPECT_THAT(error_of_text("{\"traceEvents\": [1]}"), HasSubstr("an event is expected"));
  EXPECT_THAT(error_of_text("{\"traceEvents\": [{]}"), HasSubstr("is damaged in event 1"));
  EXPECT_THAT(error_of_text("{\"traceEvents\": []} x"), HasSubstr("text after its end"));
  EXPECT_THAT(error_of_text("[[]]"), HasSubstr("is not a trace: its list has no events"));
}

TEST(Reader, EveryCutIsAnError) {
  const auto text = base_trace().text();
  for (size_t size = 0; size < text.size(); size += 7) {
    const auto error = error_of_text(text.substr(0, size));
    EXPECT_TRUE(error.starts_with("[report] \"a.json\" ")) << size << ": " << error;
  }
}

TEST(Reader, BlocksOfAnySize) {
  const auto text = base_trace().text();
  for (const size_t block : {1, 2, 3, 17, 4096}) {
    const auto trace = read_trace_blocks("a.json", [&](const auto& add) {
      for (size_t at = 0; at < text.size(); at += block) add(std::string_view(text).substr(at, block));
    });
    EXPECT_EQ(trace.host.size(), 6u);
    EXPECT_EQ(trace.device.size(), 3u);
  }
}

TEST(Reader, HostileValues) {
  TraceText trace = base_trace();
  trace.raw(R"({"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1e300, "dur": 1})")
      .raw(R"({"ph": "X", "cat": "cpu_op", "name": "b", "ts": 5, "dur": -1})")
      .raw(R"({"ph": "X", "cat": "kernel", "name": "k", "pid": "x", "tid": {}, "ts": 1500, "dur": N/A, "args": 3})")
      .raw(R"({"ph": "X", "cat": 7, "name": null, "ts": "1", "dur": [1]})")
      .raw(R"({"ph": "X", "cat": "cpu_op", "name": "</script>\ud83d\ude00\ud800\u0000", "ts": 1990, "dur": 1})");
  Report report;
  report.traces.push_back(report_trace(read_trace_text(trace.text())));
  EXPECT_THAT(report.traces[0].warnings, ::testing::Contains(HasSubstr("3 events have no usable time")));
  EXPECT_THAT(to_json(report), HasSubstr("</script>\xf0\x9f\x98\x80?"));
  EXPECT_NE(nlohmann::json::parse(to_json(report), nullptr, false).is_discarded(), true);
  std::string deep = "{\"x\": " + std::string(100'000, '[') + std::string(100'000, ']') + ", \"traceEvents\": []}";
  EXPECT_THAT(error_of_text(deep), HasSubstr("no events of a profiler"));
}

TEST(Reader, TimesAreExactToTheNanosecond) {
  EXPECT_EQ(time_of("1623143566756123.456"), 1623143566756123456);
  EXPECT_EQ(time_of("12"), 12000);
  EXPECT_EQ(time_of("\"12.5\""), 12500);
  EXPECT_EQ(time_of("-1.5"), -1500);
  EXPECT_EQ(time_of("1e3"), 1'000'000);
  EXPECT_FALSE(time_of("N/A"));
  EXPECT_FALSE(time_of("99999999999999999999"));
}

TEST(Reader, Gzip) {
  const levin::testing::TemporaryFolder folder;
  const auto text = base_trace().text();
  const auto path = folder.path() / "w.1.pt.trace.json.gz";
  gzFile file = ::gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ::gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  ::gzclose(file);
  EXPECT_EQ(read_trace(path).device.size(), 3u);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_THAT(error_of([&] { read_trace(path); }), HasSubstr("w.1.pt.trace.json.gz"));
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(Folders, TracesMetricsConfigurationAndCheckpoints) {
  const levin::testing::TemporaryFolder folder;
  const auto run = folder.path() / "version_0";
  write(run / "metrics.csv", "epoch,loss,step\r\n0,2.5,1\r\n0,,2\r\n1,nan,3\r\n");
  write(run / "config.yaml", "trainer:\n  max_epochs: 3\nmodel: resnet50\n");
  write(run / "checkpoints" / "epoch=0-step=10.ckpt" / "model.bin", "12345");
  write(run / "traces" / "node_1.200.pt.trace.json", base_trace().text());
  write(run / "traces" / "node_1.1000.pt.trace.json", base_trace().text());
  const auto report = make_report({run});
  ASSERT_EQ(report.runs.size(), 1u);
  const auto& found = report.runs[0];
  ASSERT_EQ(found.curves.size(), 2u);
  EXPECT_EQ(found.curves[1].name, "loss");
  EXPECT_EQ(found.curves[1].steps, (std::vector<double>{1, 3}));
  EXPECT_EQ(found.configuration[0], (std::pair<std::string, std::string>{"trainer.max_epochs", "3"}));
  ASSERT_EQ(found.checkpoints.size(), 1u);
  EXPECT_EQ(found.checkpoints[0].step, 10);
  EXPECT_EQ(found.checkpoints[0].bytes, 5u);
  ASSERT_EQ(report.traces.size(), 2u);
  EXPECT_EQ(found.traces.size(), 2u);
  for (const auto& trace : report.traces) EXPECT_EQ(trace.span, trace.file.find(".200.") != std::string::npos ? 1 : 2);
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_TRUE(json["runs"][0]["curves"][1]["values"][1].is_null());  // JSON has no nan
  EXPECT_TRUE(json["comparison"].is_null());
}

TEST(Folders, TwoFilesAreCompared) {
  const levin::testing::TemporaryFolder folder;
  auto faster = base_trace();
  write(folder.path() / "before.json", base_trace().text());
  TraceText after;
  after.annotation("ProfilerStep#1", 0, 650, 1).op("aten::linear", 0, 100, 2);
  write(folder.path() / "after.json", after.text());
  const auto json =
      nlohmann::json::parse(to_json(make_report({folder.path() / "before.json", folder.path() / "after.json"})));
  EXPECT_TRUE(json["distributed"].is_null());
  EXPECT_EQ(json["comparison"]["names"].size(), 2u);
  EXPECT_EQ(json["comparison"]["total"]["speedup"][1], 2.0);
  bool found = false;
  for (const auto& row : json["comparison"]["operators"]) {
    if (row["name"] != "aten::linear") continue;
    found = true;
    EXPECT_EQ(row["host_self_us"], (nlohmann::json{40.0, 100.0}));
    EXPECT_EQ(row["difference_us"][1], 60.0);
  }
  EXPECT_TRUE(found);
}

TEST(Folders, WhatIsNotThere) {
  const levin::testing::TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { make_report({folder.path()}); }), HasSubstr("has neither traces"));
  EXPECT_THAT(error_of([&] { make_report({folder.path() / "no"}); }), HasSubstr("there is no"));
  EXPECT_THAT(error_of([] { make_report({}); }), HasSubstr("name a trace"));
}

}  // namespace
}  // namespace levin::report
