// levin report --serve, as a process.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/temporary_folder.h"
#include "tests/generate/http_client.h"

namespace levin::testing::report_cli {
namespace {

using ::testing::HasSubstr;

void write_rows(const std::filesystem::path& file, int rows) {
  std::ofstream out(file);
  out << "step,loss\n";
  for (int i = 0; i < rows; ++i) out << i << "," << 2.5 - 0.1 * i << "\n";
}

TEST(ReportCli, ServesARunWhileItGrows) {
  const TemporaryFolder folder;
  write_rows(folder / "metrics.csv", 2);
  Process server({levin_program(), "report", folder.path().string(), "--serve", "--port", "0"});
  const std::string address = "http://127.0.0.1:";
  ASSERT_TRUE(server.wait_for(address)) << server.err();
  const auto told = server.out() + server.err();  // both have it, on a line that is written whole
  const int port = std::stoi(told.substr(told.find(address) + address.size()));

  EXPECT_THAT(http(port, "GET", "/").body, HasSubstr("data-live=\""));
  const auto before = http(port, "GET", "/state").json();
  const auto values = [&] { return http(port, "GET", "/runs.json").json()["runs"][0]["curves"][0]["values"]; };
  EXPECT_EQ(values().size(), 2U);
  write_rows(folder / "metrics.csv", 5);
  // The files are looked at once in a second.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (http(port, "GET", "/state").json() == before && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(values().size(), 5U);

  // Another name for this machine, which a page of another site could use.
  HttpConnection named(port);
  named.send("GET /state HTTP/1.1\r\nHost: report.example\r\nConnection: close\r\n\r\n");
  std::string text;
  while (named.receive(text)) {
  }
  EXPECT_EQ(reply_of(text).status, 403) << text;
  EXPECT_EQ(http(port, "GET", "/metrics.csv").status, 404) << "the page and its numbers, no files";
  server.signal(SIGTERM);
  server.wait();
}

TEST(ReportCli, RefusesInOneLine) {
  const auto refused = [](std::vector<std::string> words, const std::string& expected) {
    words.insert(words.begin(), {levin_program(), "report"});
    const auto ran = run_program(words);
    EXPECT_NE(ran.status, 0);
    EXPECT_THAT(ran.text(), HasSubstr(expected));
    EXPECT_EQ(std::ranges::count(ran.text(), '\n'), 1) << ran.text();
  };
  refused({"nowhere", "--serve"}, "there is no \"nowhere\"");
  refused({".", "--serve", "--json"}, "--serve goes without --json and --html");
  refused({".", "--serve", "--port", "70000"}, "port 70000 is not from 0 to 65535");
}

}  // namespace
}  // namespace levin::testing::report_cli
