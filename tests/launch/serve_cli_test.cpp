// levin serve, as a process.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/temporary_folder.h"
#include "tests/generate/http_client.h"

namespace levin::testing::serve_cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kTests = fs::path(source_dir()) / "tests";
const std::string kModel = (kTests / "generate/fixtures/chat").string();

std::vector<std::string> command(std::vector<std::string> words) {
  words.insert(words.begin(), {levin_program(), "serve"});
  return words;
}

/// The port of the address that a server prints when it is ready; 0 when it ends before.
int port_of(Process& server) {
  const std::string address = "http://127.0.0.1:";
  if (!server.wait_for(address)) return 0;
  const auto all = server.out() + server.err();  // both have it, on a line that is written whole
  return std::stoi(all.substr(all.find(address) + address.size()));
}

TEST(ServeCli, ServesUntilItIsTold) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Process server(command({kModel, "--port", "0", "--name", "tiny"}), {"LEVIN_API_KEY=sk-1"});
    const auto port = port_of(server);
    ASSERT_NE(port, 0) << server.err();
    const std::vector<std::string> key{"Authorization: Bearer sk-1"};
    EXPECT_EQ(http(port, "GET", "/health").status, 200);
    EXPECT_EQ(http(port, "GET", "/v1/models").status, 401);
    EXPECT_EQ(http(port, "GET", "/v1/models", {}, key).json()["data"][0]["id"], "tiny");
    EXPECT_EQ(http(port, "POST", "/v1/completions", R"({"prompt": "The sea", "max_tokens": 3})", key).status, 200);
    // A request that runs is finished.
    HttpConnection running(port);
    running.send(
        http_text("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 200, "ignore_eos": true})", key));
    while (http(port, "GET", "/v1/stats", {}, key).json()["running"] == 0) {
    }
    server.signal(signal);
    std::string text;
    while (running.receive(text)) {
    }
    EXPECT_EQ(reply_of(text).status, 200) << text;
    EXPECT_EQ(server.wait(), 0) << server.err();
    EXPECT_EQ(server.out(), fmt::format("http://127.0.0.1:{}\n", port));  // for scripts: nothing else
    EXPECT_THAT(server.err(), HasSubstr("stopped"));
  }
}

TEST(ServeCli, NamesSettingsThatItDoesNotObey) {
  const TemporaryFolder temporary;
  fs::copy(kModel, temporary / "model");
  write_file(temporary / "model/generation_config.json", R"({"eos_token_id": 259, "repetition_penalty": 1.05})");
  Process server(command({(temporary / "model").string(), "--port", "0"}));
  ASSERT_NE(port_of(server), 0) << server.err();
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.err();
  EXPECT_THAT(server.err(), HasSubstr("generation_config.json of the model is not obeyed: repetition_penalty 1.05; "
                                      "requests say what counts"));
}

TEST(ServeCli, WeightsOnTheDiskAnswerTheSame) {
  const TemporaryFolder folder;
  const auto map = (folder.path() / "map.json").string();
  write_file(map, R"({"": "cpu", "blocks": "disk"})");
  std::vector<std::string> texts;
  for (const bool streams : {false, true}) {
    std::vector<std::string> words{kModel, "--port", "0", "--device", "cpu"};
    if (streams) words.insert(words.end(), {"--device-map", map});
    Process server(command(words));
    const auto port = port_of(server);
    ASSERT_NE(port, 0) << server.err();
    const auto reply =
        http(port, "POST", "/v1/completions", R"({"prompt": "The sea", "max_tokens": 8, "temperature": 0})");
    ASSERT_EQ(reply.status, 200);
    texts.push_back(reply.json()["choices"][0]["text"]);
    server.signal(SIGTERM);
    EXPECT_EQ(server.wait(), 0);
    EXPECT_EQ(server.err().find("(streamed)") != std::string::npos, streams) << server.err();
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(ServeCli, RanksThatHaveTheModelTogetherAnswerTheSame) {
  const auto ask = [](int port) {
    return http(port, "POST", "/v1/completions", R"({"prompt": "The sea", "max_tokens": 8, "temperature": 0})");
  };
  Process one(command({kModel, "--port", "0"})), two(command({kModel, "--port", "0", "--tensor-parallel", "2"}));
  const auto port = port_of(one), shared = port_of(two);
  ASSERT_NE(port, 0) << one.err();
  ASSERT_NE(shared, 0) << two.err();
  const auto expected = ask(port).json()["choices"], found = ask(shared).json()["choices"];
  EXPECT_EQ(found, expected);
  // What is scored goes through the ranks as well.
  const auto score = [](int to) {
    return http(to, "POST", "/v1/completions",
                R"({"prompt": "The sea", "echo": true, "max_tokens": 0, "logprobs": 1})");
  };
  const auto alone = score(port).json()["choices"][0]["logprobs"],
             together = score(shared).json()["choices"][0]["logprobs"];
  ASSERT_EQ(together["tokens"], alone["tokens"]);
  for (size_t t = 1; t < alone["tokens"].size(); ++t)
    EXPECT_NEAR(together["token_logprobs"][t].get<double>(), alone["token_logprobs"][t].get<double>(), 1e-4);
  one.signal(SIGTERM);
  EXPECT_EQ(one.wait(), 0);
  // A rank that dies ends the server, by a line that names it.
  const auto victim = two.rank(1);
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGKILL);
  EXPECT_EQ(two.wait(), 128 + SIGKILL) << two.err();
  EXPECT_THAT(two.err(), HasSubstr(fmt::format("levin: rank 1 (pid {}) was killed by SIGKILL", victim)));
  EXPECT_TRUE(two.all_gone());
}

TEST(ServeCli, RefusesInOneLine) {
  const auto refused = [&](const std::vector<std::string>& words, const std::string& expected) {
    const auto ran = run_program(command(words));
    EXPECT_EQ(ran.status, 1);
    EXPECT_THAT(ran.text(), AllOf(HasSubstr("error: ["), HasSubstr(expected)));
    EXPECT_EQ(std::ranges::count(ran.text(), '\n'), 1) << ran.text();
  };
  refused({"nowhere"}, "nowhere");
  refused({kModel, "--port", "70000"}, "port 70000 is not from 0 to 65535");
  refused({kModel, "--api-key", "two words"}, "API key");
  refused({kModel, "--tensor-parallel", "7"}, "heads, which 7 ranks cannot share");
  refused({kModel, "--tensor-parallel", "2", "--device-map", "cpu"}, "--tensor-parallel does not go with --device-map");
  refused({kModel, "--draft-model", "nowhere"}, "nowhere");
  refused({kModel, "--prompt-lookup", "-1"}, "prompt_lookup -1 must not be negative");
  refused({kModel, "--host", "203.0.113.7", "--port", "0"}, "cannot listen on 203.0.113.7:0");
  Process first(command({kModel, "--port", "0"}));
  const auto port = port_of(first);
  ASSERT_NE(port, 0) << first.err();
  refused({kModel, "--port", std::to_string(port)}, "Address already in use");
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait(), 0);
}

}  // namespace
}  // namespace levin::testing::serve_cli
