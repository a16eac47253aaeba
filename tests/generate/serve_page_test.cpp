// The page of levin serve in a browser, where there is one.
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "levin/generate/serve/server.h"
#include "levin/models/folder.h"
#include "levin/testing/paths.h"

namespace levin::testing {
namespace {

int page_browser(const std::string& words) {
  const auto script = source_dir() + "/tests/generate/page_browser.py";
  const auto status = std::system(("python3 '" + script + "' " + words).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ServePage, WorksInABrowser) {
  if (page_browser("find") == 77) GTEST_SKIP() << "no Chromium on this machine (LEVIN_BROWSER names another)";
  const auto folder = source_dir() + "/tests/generate/fixtures/chat";
  Server server(models::open_model(folder), text::Tokenizer::from_folder(folder), {.port = 0});
  std::thread running([&] { server.run(); });
  const auto status = page_browser("check " + server.url());
  server.stop();
  running.join();
  EXPECT_EQ(status, 0) << "what failed is above";
}

}  // namespace
}  // namespace levin::testing
