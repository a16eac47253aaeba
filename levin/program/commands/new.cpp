#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/program/command.h"
#include "levin/program/own_prefix.h"

namespace levin::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHelp =
    "Writes the files of a new project, which builds and trains as it is.\n"
    "Usage: levin new app [FOLDER]\n\n"
    "  app      CMakeLists.txt and main.cpp: a training loop with Fabric\n"
    "  FOLDER   where to write them (app); what is there already is never overwritten\n";

constexpr const char* kCMakeLists = R"(cmake_minimum_required(VERSION 3.25)
project(app LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(Levin REQUIRED)
add_executable(app main.cpp)
target_link_libraries(app PRIVATE Levin::levin)
if(COMMAND levin_precompile)
  levin_precompile(app)  # torch's headers are large: compile them once
endif()
)";

constexpr const char* kMain = R"(#include <levin/levin.h>
#include <torch/torch.h>

// Learns y = 3 x1 - 2 x2 + 1 from points that the program makes itself.
//   ./app                    one process
//   ./app --devices 2        two ranks on this machine
int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const int devices = static_cast<int>(args.get("devices", 1));
    const auto steps = args.get("steps", 200);
    args.check_all_used();

    levin::Fabric fabric({.devices = devices});
    fabric.launch(args);
    torch::manual_seed(fabric.global_rank());  // every rank makes points of its own

    torch::nn::Linear model(2, 1);
    auto [net, opt] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 0.05}));
    const auto weight = torch::tensor({{3.0f}, {-2.0f}}, fabric.device());
    for (int64_t step = 1; step <= steps; ++step) {
      const auto x = torch::randn({64, 2}, fabric.device());
      const auto loss = torch::mse_loss(net(x), x.matmul(weight) + 1);
      fabric.backward(loss);
      opt.step();
      opt.zero_grad();
      if (step % 50 == 0) fabric.print("step ", step, "  loss ", loss.item<float>());
    }
  });
}
)";

/// A word of a command line as a shell takes it back.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-=:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

void write(const fs::path& path, const char* text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  LEVIN_CHECK(file, "[levin new] \"", path.string(), "\" cannot be written: ", std::strerror(errno));
}

}  // namespace

int new_project(const std::vector<std::string>& words, const Args&) {
  if (!words.empty() && (words[0] == "--help" || words[0] == "-h")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  LEVIN_CHECK(!words.empty(), "[levin new] nothing was asked for; known: app (levin new app [FOLDER])");
  const std::array<std::string, 1> known{"app"};
  if (words[0] != "app") fail_unknown("levin new", "project", words[0], known);
  LEVIN_CHECK(words.size() <= 2, "[levin new] \"", words[2], "\" is one word too many (levin new app [FOLDER])");
  const fs::path folder = words.size() == 2 ? words[1] : "app";
  LEVIN_CHECK(!folder.string().starts_with("-"), "[levin new] flag \"", folder.string(),
              "\" is not known (levin new app [FOLDER])");
  for (const char* name : {"CMakeLists.txt", "main.cpp"})
    LEVIN_CHECK(!fs::exists(folder / name), "[levin new] \"", (folder / name).string(),
                "\" is there already; name another folder");
  std::error_code error;
  fs::create_directories(folder, error);
  LEVIN_CHECK(!error, "[levin new] folder \"", folder.string(), "\" cannot be made: ", error.message());
  write(folder / "CMakeLists.txt", kCMakeLists);
  write(folder / "main.cpp", kMain);
  const auto prefix = own_prefix();
  const auto place = shell_word(folder.string()), build = shell_word((folder / "build").string());
  const auto find =
      prefix.empty() ? std::string("-DCMAKE_PREFIX_PATH=PREFIX") : shell_word("-DCMAKE_PREFIX_PATH=" + prefix.string());
  fmt::print("Wrote {0}/CMakeLists.txt and {0}/main.cpp. Build and run{1}:\n", folder.string(),
             prefix.empty() ? " (PREFIX is the folder that Levin is installed in, or its build folder)" : "");
  fmt::print("  cmake -S {} -B {} {}\n  cmake --build {}\n  {}\n", place, build, find, build,
             shell_word(((folder.is_absolute() ? folder : "." / folder) / "build" / "app").string()));
  return 0;
}

}  // namespace levin::cli
