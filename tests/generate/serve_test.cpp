// levin serve, within this process: real connections to a tiny model.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/syscall.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/generate/generate.h"
#include "levin/generate/serve/api_error.h"
#include "levin/generate/serve/embedding_rows.h"
#include "levin/generate/serve/model_thread.h"
#include "levin/generate/serve/server.h"
#include "levin/models/language_score.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"
#include "tests/generate/http_client.h"

namespace levin::testing::serve_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const fs::path kTests = fs::path(source_dir()) / "tests";

class ServeTest : public ::testing::Test {
 protected:
  void start(ServeOptions options = {}, const fs::path& folder = kTests / "generate/fixtures/chat") {
    options.port = 0;
    model_ = models::open_model(folder, {.head = folder.filename() == "bert" ? "none" : "auto"});
    if (fs::exists(folder / "tokenizer.json")) tokenizer_ = text::Tokenizer::from_folder(folder);
    server_ = std::make_unique<Server>(*model_, tokenizer_, options);
    running_ = std::thread([this] { server_->run(); });
  }
  void TearDown() override {
    if (!server_) return;
    if (!stopped_) server_->stop();
    running_.join();
  }

  HttpReply post(const std::string& path, const std::string& body, const std::vector<std::string>& headers = {}) {
    return http(server_->port(), "POST", path, body, headers);
  }
  HttpReply get(const std::string& path, const std::vector<std::string>& headers = {}) {
    return http(server_->port(), "GET", path, {}, headers);
  }
  std::string completed(const std::string& body) {
    const auto reply = post("/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? reply.json()["choices"][0]["text"].get<std::string>() : "";
  }
  GenerateOptions options_of_folder(GenerateOptions options) {
    return folder_generate_options(kTests / "generate/fixtures/chat", std::move(options));
  }
  /// Whether it becomes true within ten seconds.
  template <class Test>
  static bool soon(Test&& test) {
    for (int i = 0; i < 1000; ++i) {
      if (test()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  std::optional<models::LanguageModel> model_;
  std::optional<text::Tokenizer> tokenizer_;
  std::unique_ptr<Server> server_;
  std::thread running_;
  bool stopped_ = false;
};

/// Writes for seconds unless it is cancelled.
constexpr const char* kLong = R"({"prompt": "x", "max_tokens": 511, "ignore_eos": true, "n": 16, "stream": true})";

TEST_F(ServeTest, CompletionsAreThoseOfGenerate) {
  start();
  const std::vector<std::string> prompts{"The sea", "A ship sails é"};
  for (const auto& [options, fields] : std::vector<std::pair<GenerateOptions, std::string>>{
           {{.max_new_tokens = 20, .temperature = 0}, R"("max_tokens": 20, "temperature": 0)"},
           {{.max_new_tokens = 12, .temperature = 0.8, .top_p = 0.9, .num_return_sequences = 2, .seed = 5},
            R"("max_tokens": 12, "temperature": 0.8, "top_p": 0.9, "n": 2, "seed": 5)"},
           {{.max_new_tokens = 12,
           .temperature = 0,
           .presence_penalty = 1,
           .frequency_penalty = 0.5,
           .top_logprobs = 3},
            R"("max_tokens": 12, "temperature": 0, "presence_penalty": 1, "frequency_penalty": 0.5, "logprobs": 3)"}}) {
    const auto rows = generate(model_->decoder, *tokenizer_, prompts, options_of_folder(options));
    const auto reply =
        post("/v1/completions", fmt::format(R"({{"prompt": {}, {}}})", nlohmann::json(prompts).dump(), fields));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const auto json = reply.json();
    ASSERT_EQ(json["choices"].size(), rows.size());
    int64_t tokens = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto& choice = json["choices"][i];
      EXPECT_EQ(choice["index"], i);
      EXPECT_EQ(choice["text"], rows[i].text);
      EXPECT_EQ(choice["finish_reason"], rows[i].finish_reason);
      tokens += static_cast<int64_t>(rows[i].ids.size());
      if (options.top_logprobs == 0) {
        EXPECT_TRUE(choice["logprobs"].is_null());
        continue;
      }
      for (size_t t = 0; t < rows[i].ids.size(); ++t) {
        EXPECT_NEAR(choice["logprobs"]["token_logprobs"][t].get<double>(), rows[i].logprobs[t], 1e-4);
        // Parts of characters all read as U+FFFD.
        EXPECT_GE(choice["logprobs"]["top_logprobs"][t].size(), 1u);
      }
    }
    EXPECT_EQ(json["usage"]["prompt_tokens"], 7 + 15);
    EXPECT_EQ(json["usage"]["completion_tokens"], tokens);
  }
}

TEST_F(ServeTest, SixtyFourAtOnceAreAsAlone) {
  start({.engine = {.max_rows = 24}});
  const auto body = [](int i) {
    return fmt::format(R"({{"prompt": "Ship {}", "max_tokens": {}, "temperature": 0.9, "seed": {}}})", i, 6 + i % 7, i);
  };
  std::vector<std::string> alone(64), together(64);
  for (int i = 0; i < 64; ++i) alone[i] = completed(body(i));
  std::vector<std::thread> clients;
  for (int i = 0; i < 64; ++i) clients.emplace_back([&, i] { together[i] = completed(body(i)); });
  for (auto& client : clients) client.join();
  EXPECT_EQ(together, alone);
}

TEST_F(ServeTest, PiecesOfAStreamAreTheWhole) {
  start();
  // Each byte is a token of this model: characters come in parts.
  for (const std::string path : {"/v1/completions", "/v1/chat/completions"}) {
    const bool is_chat = path != "/v1/completions";
    const std::string fields = is_chat ? R"("messages": [{"role": "user", "content": "Hi é"}])" : R"("prompt": "Hi é")";
    const auto with = [&](const char* more) {
      return "{" + fields + R"(, "max_tokens": 80, "temperature": 1.2, "seed": 3)" + more + "}";
    };
    const auto whole = post(path, with("")).json();
    const auto reply = post(path, with(R"(, "stream": true, "stream_options": {"include_usage": true})"));
    ASSERT_EQ(reply.status, 200);
    EXPECT_THAT(reply.head, HasSubstr("text/event-stream"));
    EXPECT_THAT(reply.body, ::testing::EndsWith("data: [DONE]\n\n"));
    std::string text, finish;
    const auto events = events_of(reply.body);
    for (const auto& event : events) {
      EXPECT_EQ(event["id"], events[0]["id"]);
      if (event["choices"].empty()) continue;
      const auto& choice = event["choices"][0];
      text += is_chat ? choice["delta"].value("content", "") : choice["text"].get<std::string>();
      if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    }
    const auto& expected = whole["choices"][0];
    EXPECT_EQ((is_chat ? expected["message"]["content"] : expected["text"]), text);
    EXPECT_EQ(expected["finish_reason"], finish);
    EXPECT_EQ(events.back()["usage"], whole["usage"]);
    EXPECT_GT(events.size(), 20u);
    if (is_chat) {
      EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
    }
  }
}

TEST_F(ServeTest, AStopStringEndsATextAndDoesNotLeak) {
  start();
  const auto whole = completed(R"({"prompt": "The sea", "max_tokens": 30, "temperature": 0})");
  const auto at = whole.size() / 2;
  auto begin = at;
  while (begin > 0 && (static_cast<unsigned char>(whole[begin]) & 0xC0) == 0x80) --begin;
  auto end = begin + 2;
  while (end < whole.size() && (static_cast<unsigned char>(whole[end]) & 0xC0) == 0x80) ++end;
  const auto stop = whole.substr(begin, end - begin);
  const nlohmann::json body{
      {"prompt", "The sea"}, {"max_tokens", 30}, {"temperature", 0}, {"stop", stop}, {"stream", true}};
  const auto reply = post("/v1/completions", body.dump());
  std::string text;
  for (const auto& event : events_of(reply.body)) text += event["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(text, whole.substr(0, whole.find(stop)));
}

TEST_F(ServeTest, AClientThatLeavesFreesItsPlaceWithinAStep) {
  start();
  for (const bool stream : {true, false}) {
    auto body = std::string(kLong);
    if (!stream) body.replace(body.find("\"stream\": true"), 14, "\"stream\": false");
    const auto before = server_->stats();
    HttpConnection connection(server_->port());
    connection.send(http_text("POST", "/v1/completions", body));
    std::string text;
    ASSERT_TRUE(soon([&] { return server_->stats().running > 0; }));
    if (stream) {
      ASSERT_TRUE(connection.receive(text));
    }
    connection.close();
    const auto left = server_->stats().steps;
    ASSERT_TRUE(soon([&] { return server_->stats().running == 0; }));
    const auto after = server_->stats();
    // The step that ran when the connection closed, the one that saw it, and what ran between the two calls above.
    EXPECT_LE(after.steps - left, 6);
    EXPECT_EQ(after.cancelled - before.cancelled, 16);
    EXPECT_EQ(after.blocks_used, 0);
  }
  EXPECT_THAT(get("/metrics").body, HasSubstr("levin_disconnected_total 2\n"));
}

TEST_F(ServeTest, RefusesWhatIsWrongByItsName) {
  start();
  struct Case {
    std::string path, body;
    int status;
    std::string param;
  };
  const std::string deep(200, '['), chat = "/v1/chat/completions", text = "/v1/completions";
  const std::vector<Case> cases{
      {text, "", 400, ""},
      {text, "[1]", 400, ""},
      {text, "{\"prompt\": \"x\"", 400, ""},
      {text, "{\"prompt\": \"\xff\xfe\"}", 400, ""},
      {text, "{\"prompt\": " + deep + "}", 400, ""},
      {text, "{}", 400, "prompt"},
      {text, R"({"prompt": 3})", 400, "prompt"},
      {text, R"({"prompt": ""})", 400, "prompt"},
      {text, R"({"prompt": []})", 400, "prompt"},
      {text, R"({"prompt": [1, "x"]})", 400, "prompt"},
      {text, R"({"prompt": [260]})", 400, "prompt"},
      {text, R"({"prompt": [-1]})", 400, "prompt"},
      {text, R"({"prompt": [1e3]})", 400, "prompt"},
      {text, R"({"prompt": [18446744073709551615]})", 400, "prompt"},
      {text, R"({"prompt": ")" + std::string(513, 'x') + R"("})", 400, "prompt"},
      {text, R"({"prompt": "x", "model": "another"})", 404, "model"},
      {text, R"({"prompt": "x", "model": 7})", 400, "model"},
      {text, R"({"prompt": "x", "max_tokens": 0})", 400, "max_tokens"},
      {text, R"({"prompt": "x", "max_tokens": -5})", 400, "max_tokens"},
      {text, R"({"prompt": "x", "max_tokens": 1.5})", 400, "max_tokens"},
      {text, R"({"prompt": "x", "max_tokens": 100000})", 400, "max_tokens"},
      {text, R"({"prompt": "x", "max_tokens": 18446744073709551615})", 400, "max_tokens"},
      {text, R"({"prompt": "x", "temperature": -0.1})", 400, "temperature"},
      {text, R"({"prompt": "x", "temperature": "hot"})", 400, "temperature"},
      {text, R"({"prompt": "x", "top_p": 0})", 400, "top_p"},
      {text, R"({"prompt": "x", "top_p": 1.1})", 400, "top_p"},
      {text, R"({"prompt": "x", "n": 0})", 400, "n"},
      {text, R"({"prompt": "x", "n": 1000})", 400, "n"},
      {text, R"({"prompt": ["x", "y"], "n": 100})", 400, "n"},
      {text, R"({"prompt": "x", "stop": 5})", 400, "stop"},
      {text, R"({"prompt": "x", "stop": [""]})", 400, "stop"},
      {text, R"({"prompt": "x", "seed": true})", 400, "seed"},
      {text, R"({"prompt": "x", "stream": "yes"})", 400, "stream"},
      {text, R"({"prompt": "x", "stream_options": {"include_usage": true}})", 400, "stream_options"},
      {text, R"({"prompt": "x", "logprobs": 21})", 400, "logprobs"},
      {text, R"({"prompt": "x", "logit_bias": {"7": 200}})", 400, "logit_bias"},
      {text, R"({"prompt": "x", "bad_words": "y"})", 400, "bad_words"},
      {text, R"({"prompt": "x", "bad_words": [""]})", 400, "bad_words"},
      {text, R"({"prompt": "x", "logit_bias": {"x": -100}})", 400, "logit_bias"},
      {text, R"({"prompt": "x", "best_of": 2})", 400, "best_of"},
      {text, R"({"prompt": "x", "suffix": "y"})", 400, "suffix"},
      {text, R"({"prompt": "x", "response_format": {"type": "json_object"}})", 400, "response_format"},
      {text, R"({"prompt": "x", "guided_json": {"type": "object"}})", 400, "guided_json"},
      {text, R"({"prompt": "x", "use_beam_search": true})", 400, "use_beam_search"},
      {text, R"({"prompt": "x", "guided_json": {}})", 400, "guided_json"},
      {text, R"({"prompt": "x", "grammar": "root ::= x"})", 400, "grammar"},
      {text, R"({"prompt": "x", "num_beams": 4})", 400, "num_beams"},
      {text, R"({"prompt": "x", "do_sample": false})", 400, "do_sample"},
      {text, R"({"prompt": "x", "prompt_logprobs": 1})", 400, "prompt_logprobs"},
      {text, R"({"prompt": "x", "skip_special_tokens": false})", 400, "skip_special_tokens"},
      {text, R"({"prompt": "x", "include_stop_str_in_output": true})", 400, "include_stop_str_in_output"},
      {text, R"({"prompt": "x", "add_special_tokens": false})", 400, "add_special_tokens"},
      {chat, R"({"messages": [{"role": "user", "content": "Hi"}], "tool_choice": "required"})", 400, "tool_choice"},
      {chat, R"({"messages": [{"role": "user", "content": "Hi"}], "modalities": ["text", "audio"]})", 400,
       "modalities"},
      {chat, R"({"messages": [{"role": "user", "content": "Hi"}], "audio": {"voice": "alloy"}})", 400, "audio"},
      {chat, R"({"messages": [{"role": "user", "content": "Hi"}], "web_search_options": {}})", 400,
       "web_search_options"},
      {chat, R"({"messages": [{"role": "user", "content": "Hi"}], "guided_regex": "a+"})", 400, "guided_regex"},
      {chat, R"({"messages": "Hi"})", 400, "messages"},
      {chat, R"({"messages": []})", 400, "messages"},
      {chat, R"({"messages": ["Hi"]})", 400, "messages[0]"},
      {chat, R"({"messages": [{"content": "Hi"}]})", 400, "messages[0].role"},
      {chat, R"({"messages": [{"role": "user", "content": 5}]})", 400, "messages[0].content"},
      {chat, R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", 400, "messages[0].content"},
      {chat, R"({"messages": [{"role": "user", "content": "Hi"}], "tools": [{}]})", 400, "tools"},
      {chat, R"({"messages": [{"role": "user", "content": "Hi"}], "top_logprobs": 2})", 400, "top_logprobs"},
      {chat, R"({"messages": [{"role": "user", "content": "Hi"}], "response_format": {"type": "json_object"}})", 400,
       "response_format"},
      {"/v1/embeddings", R"({"input": "x"})", 400, "model"},
      {"/v1/nothing", "{}", 404, ""},
  };
  for (const auto& one : cases) {
    const auto reply = post(one.path, one.body);
    ASSERT_EQ(reply.status, one.status) << one.body << "\n" << reply.body;
    EXPECT_EQ(reply.error("param"), one.param) << one.body;
    EXPECT_FALSE(reply.error("message").empty()) << one.body;
    EXPECT_EQ(reply.error("type"), "invalid_request_error") << one.body;
  }
  EXPECT_EQ(server_->stats().steps, 0);
  // What asks for nothing is no matter.
  EXPECT_EQ(post(text, R"({"prompt": "x", "max_tokens": 1, "suffix": "", "response_format": {"type": "text"}})").status,
            200);
  EXPECT_EQ(post(chat, R"({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "tools": [{}],
                           "tool_choice": "none", "modalities": ["text"]})")
                .status,
            200);
  EXPECT_EQ(get("/v1/completions").status, 405);
  // A bias decides where it is large enough; a word that is not to come does not.
  const auto biased = post(text, R"({"prompt": "x", "max_tokens": 3, "temperature": 0, "logit_bias": {"65": 100}})");
  const auto word = biased.json()["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(word, std::string(3, word[0]));
  const auto body = nlohmann::json{{"prompt", "x"},
                                   {"max_tokens", 3},
                                   {"temperature", 0},
                                   {"logit_bias", {{"65", 100}}},
                                   {"bad_words", {word.substr(0, 1)}}};
  EXPECT_EQ(post(text, body.dump()).json()["choices"][0]["text"].get<std::string>().find(word[0]), std::string::npos);
  // Options that leave no token are the client's matter.
  nlohmann::json none{{"prompt", "x"}, {"logit_bias", nlohmann::json::object()}};
  for (int64_t id = 0; id < 260; ++id) none["logit_bias"][std::to_string(id)] = -100;
  EXPECT_EQ(post(text, none.dump()).status, 400);
  // What is not known is ignored; a bias of -100 bans a token, and both names of the limit are known.
  EXPECT_EQ(post(text, R"({"prompt": "x", "max_tokens": 2, "unknown": {"a": [1]}, "logit_bias": {"7": -100}})").status,
            200);
  EXPECT_EQ(post(chat, R"({"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 2})")
                .json()["usage"]["completion_tokens"],
            2);
}

TEST_F(ServeTest, HasLimits) {
  start(
      {.engine = {.max_rows = 2}, .max_queue = 2, .max_request_bytes = 2000, .read_timeout = std::chrono::seconds(1)});
  EXPECT_EQ(post("/v1/completions", std::string(2001, ' ')).status, 413);
  EXPECT_EQ(post("/v1/completions", std::string(2001, ' ')).error("type"), "invalid_request_error");
  EXPECT_EQ(http_raw(server_->port(), "nonsense\r\n\r\n").status, 400);
  EXPECT_EQ(get("/" + std::string(9000, 'x')).status, 414);
  // Both ways to say where a body ends.
  EXPECT_EQ(http_raw(server_->port(),
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
                     "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
                .status,
            400);
  // A body that never comes, and a header that comes a byte at a time.
  const auto start_time = std::chrono::steady_clock::now();
  http_raw(server_->port(), "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{");
  HttpConnection slow(server_->port());
  std::thread drip([&] {
    for (int i = 0; i < 400 && slow.send(i == 0 ? "GET / HTTP/1.1\r\nX: " : "x"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  std::string text;
  while (slow.receive(text)) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start_time, std::chrono::seconds(30));
  drip.join();
  // Two run and two wait; a fifth is refused, whatever its request asks for besides.
  EXPECT_EQ(post("/v1/completions", R"({"prompt": ["a", "b", "c", "d"], "max_tokens": 2})").status, 200);
  HttpConnection busy(server_->port());
  busy.send(http_text("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 500, "ignore_eos": true, "n": 4})"));
  // All four: rows of the request before may be counted for a moment after their reply.
  ASSERT_TRUE(soon([&] {
    const auto stats = server_->stats();
    return stats.running == 2 && stats.waiting == 2;
  }));
  const auto refused = post("/v1/completions", R"({"prompt": "x"})");
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_EQ(refused.error("type"), "rate_limit_error");
  EXPECT_THAT(refused.head, HasSubstr("Retry-After"));
}

TEST_F(ServeTest, AChatWithoutALimitFitsTheCache) {
  start({.engine = {.max_rows = 2, .cache_tokens = 64}});
  const std::string chat = R"({"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": true})";
  const auto reply = post("/v1/chat/completions", chat);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["usage"]["total_tokens"], 64);
  EXPECT_EQ(reply.json()["choices"][0]["finish_reason"], "length");
  const auto refused = post("/v1/completions", R"({"prompt": "x", "max_tokens": 200})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.error("message"), HasSubstr("do not fit the cache"));
}

TEST_F(ServeTest, AsksForItsKey) {
  start({.api_key = "sk-secret"});
  for (const auto* path : {"/v1/models", "/metrics", "/v1/stats"}) {
    EXPECT_EQ(get(path).status, 401);
    EXPECT_EQ(get(path, {"Authorization: Bearer sk-wrong"}).error("code"), "invalid_api_key");
    EXPECT_EQ(get(path, {"Authorization: Bearer sk-secretsk-secret"}).status, 401);
    EXPECT_EQ(get(path, {"Authorization: Bearer "}).status, 401);
    EXPECT_EQ(get(path, {"Authorization: Basic sk-secret"}).status, 401);
    EXPECT_EQ(get(path, {"Authorization: Bearer sk-secret"}).status, 200);
    EXPECT_EQ(get(path, {"Authorization: bearer sk-secret"}).status, 200);
    EXPECT_EQ(get(path, {"Authorization: BEARER  sk-secret"}).status, 200);
    EXPECT_EQ(get(path, {"x-api-key: sk-secret"}).status, 200);
    EXPECT_EQ(get(path, {"x-api-key: sk-wrong"}).error("code"), "invalid_api_key");
  }
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/").status, 200);
  EXPECT_EQ(post("/v1/completions", R"({"prompt": "x"})").status, 401);
}

TEST_F(ServeTest, PagesOfOtherSitesReachNothing) {
  start();
  EXPECT_EQ(get("/v1/models", {"Origin: http://127.0.0.1"}).status, 200);
  EXPECT_EQ(get("/v1/models", {"Origin: http://elsewhere.example"}).status, 403);
  EXPECT_EQ(get("/v1/models", {"Origin: null"}).status, 403);
  EXPECT_EQ(
      http_raw(server_->port(), "GET /v1/models HTTP/1.1\r\nHost: rebound.example\r\nConnection: close\r\n\r\n").status,
      403);
  EXPECT_THAT(get("/v1/models").head, Not(HasSubstr("Access-Control")));
}

TEST_F(ServeTest, ThePageNeedsNothingFromElsewhere) {
  start();
  for (const auto* path : {"/", "/page.css", "/page.js", "/page.markdown.js", "/icon.svg"}) {
    const auto reply = get(path);
    EXPECT_EQ(reply.status, 200);
    EXPECT_THAT(reply.head, AllOf(HasSubstr("Content-Security-Policy: default-src 'none'"), HasSubstr("nosniff")));
    EXPECT_THAT(reply.body, AllOf(Not(HasSubstr("https://")), Not(HasSubstr("innerHTML"))));
  }
}

TEST_F(ServeTest, EchoedLogprobsAreThoseOfTheModel) {
  start();
  const auto reply = post("/v1/completions", R"({"prompt": "The sea", "echo": true, "max_tokens": 0, "logprobs": 2})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto choice = reply.json()["choices"][0];
  const std::vector<std::vector<int64_t>> rows{tokenizer_->encode("The sea").ids};
  const auto expected = models::score_rows(*model_, rows)[0].logprobs;
  const auto& found = choice["logprobs"]["token_logprobs"];
  EXPECT_EQ(choice["text"], "The sea");
  ASSERT_EQ(found.size(), expected.size() + 1);
  EXPECT_TRUE(found[0].is_null());
  for (size_t t = 0; t < expected.size(); ++t) EXPECT_NEAR(found[t + 1].get<double>(), expected[t], 1e-4);
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 0);
  EXPECT_THAT(completed(R"({"prompt": "The sea", "echo": true, "max_tokens": 3})"), StartsWith("The sea"));
}

/// 40 prompts of 400 tokens to score.
std::string scores_body() {
  std::vector<std::string> prompts(40, std::string(400, 'x'));
  return nlohmann::json{{"prompt", prompts}, {"echo", true}, {"max_tokens", 0}, {"logprobs", 1}}.dump();
}

TEST_F(ServeTest, ScoresAreRowsLikeAnyOther) {
  start({.engine = {.max_rows = 8}, .max_queue = 40});
  // A stream beside them has a token at every step.
  HttpConnection stream(server_->port());
  stream.send(http_text("POST", "/v1/completions",
                        R"({"prompt": "x", "max_tokens": 500, "ignore_eos": true, "stream": true})"));
  ASSERT_TRUE(soon([&] { return server_->stats().generated_tokens > 0; }));
  HttpReply reply;
  std::thread client([&] { reply = post("/v1/completions", scores_body()); });
  EXPECT_TRUE(soon([&] { return server_->stats().waiting > 20; }));
  EXPECT_EQ(post("/v1/completions", scores_body()).status, 429);
  const auto begin = server_->stats();
  client.join();
  const auto end = server_->stats();
  const auto steps = end.steps - begin.steps;
  EXPECT_GT(steps, 30);
  // Unless the stream ended first, which takes as many steps.
  if (end.running > 0) {
    EXPECT_GE(end.generated_tokens - begin.generated_tokens, steps - 2);
  }
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["choices"][39]["logprobs"]["token_logprobs"].size(), 400u);
  std::string text;
  while (text.find("[DONE]") == text.npos && stream.receive(text)) {
  }
  EXPECT_THAT(text, HasSubstr("[DONE]"));
}

TEST_F(ServeTest, ScoresOfAClientThatLeftEnd) {
  start();
  HttpConnection connection(server_->port());
  connection.send(http_text("POST", "/v1/completions", scores_body()));
  ASSERT_TRUE(soon([&] { return server_->stats().running > 0; }));
  connection.close();
  ASSERT_TRUE(soon([&] { return server_->stats().running + server_->stats().waiting == 0; }));
  EXPECT_GT(server_->stats().cancelled, 0);
  EXPECT_EQ(server_->stats().finished + server_->stats().cancelled, 40);
}

TEST_F(ServeTest, ScoresDoNotHoldUpTheEnd) {
  start({.shutdown_timeout = std::chrono::seconds(0)});
  HttpReply reply;
  std::thread client([&] { reply = post("/v1/completions", scores_body()); });
  ASSERT_TRUE(soon([&] { return server_->stats().running > 0; }));
  server_->stop();
  stopped_ = true;
  client.join();
  EXPECT_EQ(reply.status, 503) << reply.body;
  EXPECT_LT(server_->stats().finished, 40);
}

TEST_F(ServeTest, EchoedStreamsBeginWithTheirScores) {
  start();
  const std::string fields = R"("prompt": ["The sea", "x"], "echo": true, "logprobs": 1, "max_tokens": 4, "seed": 1)";
  const auto whole = post("/v1/completions", "{" + fields + "}").json();
  const auto reply = post("/v1/completions", "{" + fields + R"(, "stream": true})");
  std::vector<std::string> texts(2);
  std::vector<size_t> tokens(2);
  for (const auto& event : events_of(reply.body)) {
    const auto& choice = event["choices"][0];
    texts[choice["index"]] += choice["text"].get<std::string>();
    if (!choice["logprobs"].is_null()) tokens[choice["index"]] += choice["logprobs"]["tokens"].size();
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(whole["choices"][i]["text"], texts[i]);
    EXPECT_EQ(whole["choices"][i]["logprobs"]["tokens"].size(), tokens[i]);
  }
}

TEST_F(ServeTest, EmbeddingsTakeTurns) {
  start({}, kTests / "models/fixtures/language/bert");
  serve::EmbeddingRows rows(*model_, {});
  std::vector<size_t> order;
  const auto request = [&](size_t name, size_t count) {
    return serve::EmbeddingRows::Request{
        .rows = std::vector<std::vector<int64_t>>(count, {1, 2, 3}),
        .on_vector = [&order, name](size_t, const at::Tensor&) { order.push_back(name); }};
  };
  rows.submit(request(0, 500));
  rows.submit(request(1, 2));
  const auto third = rows.submit(request(2, 500));
  EXPECT_EQ(rows.stats().waiting, 1002);
  ASSERT_TRUE(rows.step());
  EXPECT_EQ(order.size(), serve::EmbeddingRows::kStepRows);
  EXPECT_EQ(std::ranges::count(order, 1u), 2);
  rows.cancel(third);
  EXPECT_LT(rows.stats().waiting, 500);
  while (rows.step()) {
  }
  EXPECT_EQ(std::ranges::count(order, 0u), 500);
  EXPECT_LT(std::ranges::count(order, 2u), 40);
  EXPECT_EQ(rows.stats().waiting + rows.stats().running, 0);
  EXPECT_EQ(rows.stats().finished + rows.stats().cancelled, 1002);
}

/// A request whose client is told nothing.
struct Silent final : serve::Generation {
  using Generation::Generation;
  void advance() override {}
};

TEST(ModelThread, EmbeddingsAreCountedRefusedAndCancelled) {
  auto model = models::open_model(kTests / "models/fixtures/language/bert", {.head = "none"});
  serve::EmbeddingRows rows(model, {});
  serve::ModelThread thread({.embeddings = &rows, .most = 100});
  std::atomic<bool> is_busy = true;
  std::thread busy([&] {
    thread.run([&] {
      while (is_busy) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  });
  const serve::EmbeddingRequest asked{.rows = std::vector<std::vector<int64_t>>(500, {1, 2})};
  // More than the queue has room for, but nobody else waits.
  const auto one = std::make_shared<Silent>(asked.rows.size(), false);
  thread.begin(one, asked);
  EXPECT_EQ(thread.stats().waiting + thread.stats().running, 500);
  try {
    thread.begin(std::make_shared<Silent>(asked.rows.size(), false), asked);
    ADD_FAILURE() << "taken";
  } catch (const serve::ApiError& error) {
    EXPECT_EQ(error.status(), 429);
  }
  thread.end(one);
  EXPECT_EQ(thread.disconnected(), 1);
  is_busy = false;
  busy.join();
  for (int i = 0; i < 1000 && thread.stats().running > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(thread.stats().waiting, 0);
  EXPECT_EQ(thread.stats().cancelled + thread.stats().finished, 500);
  EXPECT_GT(thread.stats().cancelled, 400);
}

std::atomic<bool> is_held = false;

/// The threads of this process.
std::set<int> threads_now() {
  std::set<int> ids;
  for (const auto& entry : fs::directory_iterator("/proc/self/task")) ids.insert(std::stoi(entry.path().filename()));
  return ids;
}

TEST_F(ServeTest, HealthIsThatOfTheModelsThread) {
  struct sigaction action = {};
  action.sa_handler = [](int) {
    while (is_held) usleep(1000);
  };
  sigaction(SIGUSR1, &action, nullptr);
  const auto before = threads_now();
  model_ = models::open_model(kTests / "generate/fixtures/chat");
  server_ = std::make_unique<Server>(*model_, std::nullopt, ServeOptions{.port = 0});
  auto made = threads_now();
  running_ = std::thread([this] { server_->run(); });
  EXPECT_EQ(get("/health").status, 200);
  // All that a server has besides the thread of its connections.
  is_held = true;
  for (const int id : made)
    if (!before.contains(id)) syscall(SYS_tgkill, getpid(), id, SIGUSR1);
  const auto start = std::chrono::steady_clock::now();
  const auto reply = get("/health");
  is_held = false;
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.error("code"), "model_stalled");
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  EXPECT_EQ(get("/health").status, 200);
}

TEST(ServeOptions, AQueueBeyondThatOfTheEngineIsRefused) {
  EXPECT_THAT(error_of([] { check_options(ServeOptions{.engine = {.max_queue = 10}, .max_queue = 11}); }),
              HasSubstr("max_queue 11 is more than engine.max_queue 10"));
  check_options(ServeOptions{.engine = {.max_queue = 10}, .max_queue = 10});
}

TEST_F(ServeTest, EmbeddingsAreThoseOfTheEncoder) {
  start({.model_name = "vectors"}, kTests / "models/fixtures/language/bert");
  const std::vector<std::vector<int64_t>> rows{{1, 2, 3}, {4}};
  const auto expected = models::embed_rows(*model_, rows);
  const auto reply = post("/v1/embeddings", R"({"model": "vectors", "input": [[1, 2, 3], [4]]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  for (int64_t i = 0; i < 2; ++i) {
    const auto found = reply.json()["data"][i]["embedding"].get<std::vector<float>>();
    ASSERT_EQ(static_cast<int64_t>(found.size()), expected.size(1));
    for (int64_t k = 0; k < expected.size(1); ++k) EXPECT_NEAR(found[k], expected[i][k].item<float>(), 1e-6);
  }
  EXPECT_EQ(reply.json()["usage"]["prompt_tokens"], 4);
  const auto packed = post("/v1/embeddings", R"({"input": [4], "encoding_format": "base64"})").json();
  EXPECT_EQ(packed["data"][0]["embedding"].get<std::string>().size(), (expected.size(1) * 4 + 2) / 3 * 4);
  EXPECT_EQ(post("/v1/embeddings", R"({"input": "words"})").error("param"), "input");
  EXPECT_EQ(post("/v1/completions", R"({"prompt": [1]})").error("param"), "model");
}

TEST_F(ServeTest, TextsOfEmbeddingsAreThoseOfSentenceTransformers) {
  const TemporaryFolder temporary;
  const auto folder = temporary / "bert";
  fs::copy(kTests / "models/fixtures/text_tasks/distilbert", folder);
  fs::create_directory(folder / "1_Pooling");
  write_file(folder / "modules.json", R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
      {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])");
  write_file(folder / "1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true})");
  write_file(folder / "config_sentence_transformers.json",
             R"({"prompts": {"query": "good "}, "default_prompt_name": "query"})");
  start({}, folder);
  const auto vector = [&](const std::string& input) {
    const auto reply = post("/v1/embeddings", R"({"input": )" + input + "}");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["data"][0]["embedding"].get<std::vector<float>>();
  };
  const auto ids = [&](const std::string& text) { return nlohmann::json(tokenizer_->encode(text).ids).dump(); };
  ASSERT_NE(ids("bad"), ids("good bad"));
  EXPECT_EQ(vector(R"("bad")"), vector(ids("good bad")));
}

TEST_F(ServeTest, StopFinishesWhatRunsAndRefusesTheRest) {
  start();
  std::string finish;
  std::thread client([&] {
    const auto reply = post("/v1/completions", R"({"prompt": "x", "max_tokens": 400, "ignore_eos": true})");
    EXPECT_EQ(reply.status, 200) << reply.body;
    if (reply.status == 200) finish = reply.json()["choices"][0]["finish_reason"];
  });
  ASSERT_TRUE(soon([&] { return server_->stats().running > 0; }));
  std::atomic<bool> stopped = false;
  std::thread stopping([&] {
    server_->stop();
    stopped = true;
  });
  HttpReply refused;
  ASSERT_TRUE(soon([&] { return (refused = post("/v1/completions", R"({"prompt": "x"})")).status == 503; }));
  EXPECT_EQ(refused.error("code"), "shutting_down");
  EXPECT_FALSE(stopped);
  client.join();
  stopping.join();
  stopped_ = true;
  EXPECT_EQ(finish, "length");
}

TEST_F(ServeTest, StopWaitsNoLongerThanItsLimit) {
  start({.shutdown_timeout = std::chrono::seconds(0)});
  HttpReply reply;
  std::thread client([&] { reply = post("/v1/completions", kLong); });
  ASSERT_TRUE(soon([&] { return server_->stats().generated_tokens > 16; }));
  server_->stop();
  stopped_ = true;
  client.join();
  EXPECT_THAT(reply.body, HasSubstr("The server is shutting down."));
}

TEST_F(ServeTest, TwoServersDoNotShareAPort) {
  start();
  try {
    Server second(*model_, tokenizer_, {.port = server_->port()});
    FAIL() << "the port was bound twice";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              fmt::format("[levin serve] cannot listen on 127.0.0.1:{}: Address already in use", server_->port()));
  }
}

TEST_F(ServeTest, CountsWhatItDoes) {
  start();
  completed(R"({"prompt": "The sea", "max_tokens": 5, "ignore_eos": true})");
  post("/v1/completions", "{}");
  const auto text = get("/metrics").body;
  for (const auto* line :
       {"levin_generated_tokens_total 5\n", "levin_prompt_tokens_total 7\n", "levin_sequences_running 0\n",
        "levin_disconnected_total 0\n", "levin_sequences_cancelled_total 0\n",
        "levin_requests_total{path=\"/v1/completions\",status=\"200\"} 1\n",
        "levin_requests_total{path=\"/v1/completions\",status=\"400\"} 1\n",
        "levin_time_to_first_token_seconds_count 1\n", "levin_info{model=\"chat\"} 1\n"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_EQ(get("/v1/stats").json()["kind"], "chat");
  EXPECT_EQ(get("/v1/models").json()["data"][0]["id"], "chat");
  EXPECT_EQ(get("/v1/models/chat").status, 200);
  EXPECT_EQ(get("/v1/models/another").status, 404);
}

}  // namespace
}  // namespace levin::testing::serve_test
