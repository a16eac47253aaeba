#include "levin/report/page.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::report {
namespace {

constexpr std::string_view kOpening = R"(<script type="application/json" id="report">)";

/// What a browser takes for the numbers: the text up to the first end of a script element.
std::string embedded(const std::string& page) {
  const auto begin = page.find(kOpening) + kOpening.size();
  return page.substr(begin, page.find("</script", begin) - begin);
}

size_t count(const std::string& text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

TEST(Page, HoldsTheNumbersAsTheyAre) {
  const nlohmann::json report{{"schema", 1}, {"title", "a\"b\\c"}, {"traces", nlohmann::json::array()}};
  EXPECT_EQ(nlohmann::json::parse(embedded(html_page(report.dump()))), report);
}

TEST(Page, HasOneScriptAndLoadsNothing) {
  const auto page = html_page("{}");
  EXPECT_EQ(count(page, "<script"), 2U) << "the numbers, and the script of the page";
  EXPECT_EQ(count(page, "{{"), 0U) << "every piece of the page is filled in";
  EXPECT_NE(page.find("default-src 'none'; script-src 'sha256-"), std::string::npos);
  EXPECT_EQ(page.find("unsafe-inline"), std::string::npos);
  for (const auto* word : {"src=\"", "href=\"http", "url(", "@import", "innerHTML", "outerHTML", "insertAdjacentHTML",
                           "document.write", "eval(", "new Function"}) {
    EXPECT_EQ(page.find(word), std::string::npos) << word;
  }
}

TEST(Page, HostileNamesStayText) {
  const auto empty = html_page("{}");
  for (const std::string name :
       {"<script>alert(1)</script>", "</script><script>alert(1)</script>", "</ScRiPt >", "<!-- <script>",
        "]]>\"'`><img src=x onerror=alert(1)>", "{{script}}", "\xE2\x80\xA8 and \xE2\x80\xA9"}) {
    const auto page = html_page(nlohmann::json{{"title", name}}.dump());
    EXPECT_EQ(count(page, "<"), count(empty, "<")) << name << " adds no element";
    EXPECT_EQ(count(page, "\xE2\x80\xA8"), 0U);
    EXPECT_EQ(nlohmann::json::parse(embedded(page)).at("title"), name);
  }
}

TEST(Page, BytesThatAreNoUtf8BecomeTheReplacementCharacter) {
  const std::string bad = "{\"title\":\"a\xFF\xC0\xAF\xED\xA0\x80 b\xF0\x9F\x98\"}",
                    fine = "{\"title\":\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"}";
  EXPECT_FALSE(nlohmann::json::accept(bad));
  const std::string replaced = "\xEF\xBF\xBD";
  std::string expected = "a";
  for (int i = 0; i < 6; ++i) expected += replaced;
  expected += " b" + replaced + replaced + replaced;
  EXPECT_EQ(nlohmann::json::parse(embedded(html_page(bad))).at("title"), expected);
  EXPECT_EQ(embedded(html_page(fine)), fine);
}

// In a browser: every view draws, no script of a name runs, a report of 20 MB opens in under 3 seconds.
TEST(Page, OpensInABrowser) {
  const testing::TemporaryFolder folder;
  const auto run = [&](const std::string& what) {
    const auto script = testing::source_dir() + "/tests/report/page_browser.py";
    return std::system(("python3 '" + script + "' " + what + " '" + folder.path().string() + "'").c_str());
  };
  const auto found = run("find");
  if (WIFEXITED(found) && WEXITSTATUS(found) == 77)
    GTEST_SKIP() << "no Chromium on this machine (LEVIN_BROWSER names another)";
  ASSERT_EQ(found, 0);
  ASSERT_EQ(run("reports"), 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string json((std::istreambuf_iterator<char>(in)), {});
    auto html = entry.path();
    std::ofstream out(html.replace_extension(".html"), std::ios::binary);
    write_html_page(out, json);
  }
  EXPECT_EQ(run("check"), 0) << "what failed is above";
}

}  // namespace
}  // namespace levin::report
