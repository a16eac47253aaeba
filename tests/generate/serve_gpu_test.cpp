// levin serve with a model on a GPU.
#include <filesystem>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "levin/generate/serve/server.h"
#include "levin/testing/gpu.h"
#include "levin/testing/paths.h"
#include "tests/generate/http_client.h"

namespace levin::testing::serve_gpu_test {
namespace {

using ServeGpu = GpuTest;

TEST_F(ServeGpu, RequestsAtOnceAreAsAlone) {
  const auto folder = std::filesystem::path(source_dir()) / "tests/generate/fixtures/chat";
  Server server(models::open_model(folder, {.device = at::kCUDA}), text::Tokenizer::from_folder(folder),
                {.port = 0, .engine = {.max_rows = 16}});
  std::thread running([&] { server.run(); });
  const auto ask = [&](int i) {
    const auto body = fmt::format(R"({{"prompt": "Ship {}", "max_tokens": {}, "temperature": 0}})", i, 8 + i % 9);
    const auto reply = http(server.port(), "POST", "/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? reply.json()["choices"][0]["text"].get<std::string>() : "";
  };
  std::vector<std::string> alone(48), together(48);
  for (int i = 0; i < 48; ++i) alone[static_cast<size_t>(i)] = ask(i);
  std::vector<std::thread> clients;
  for (int i = 0; i < 48; ++i) clients.emplace_back([&, i] { together[static_cast<size_t>(i)] = ask(i); });
  for (auto& client : clients) client.join();
  EXPECT_EQ(together, alone);
  EXPECT_GT(http(server.port(), "GET", "/v1/stats").json()["memory_bytes"].get<double>(), 0);
  server.stop();
  running.join();
}

}  // namespace
}  // namespace levin::testing::serve_gpu_test
